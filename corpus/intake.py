"""Taking in an evidence bundle: what is checked before somebody else's numbers become rows, and how they are merged.

A row is taken only if everything in it that can be recomputed here comes out the same: the kernel and contract are those
of this corpus, the launches are those this version plans for that device, the machine code is what the same compiler
builds, and medians, ratios and verdicts follow from the raw samples by today's rule. What cannot be recomputed, the
samples themselves, is the reporter's word; the row says whose device and which command. Every job of a bundle is judged
alone; nothing is written before all are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NoReturn

from pydantic import ValidationError

from cake_ir import content_id, parse, variant_id
from cake_ir.binding import bind
from cake_ir.diagnostics import CakeError
from corpus import evidence, jobs
from corpus.bundle import Bundle, Part
from corpus.check import CheckResult, conclude, shape_text
from corpus.contract import Contract, contracts
from corpus.evidence import CheckRow, ResultRow
from corpus.kernels import CorpusKernel, kernels
from corpus.rebuild import Built, rebuilt

MAX_ROW = 64 << 10
MAX_NAME = 80
MAX_SAMPLES = 1_000
MAX_BATCH = 1_000_000_000
MAX_CLOCK_MHZ = 5_000
"""No SM runs faster: where a bundle does not say how fast its device can be, this bounds its FLOP/s."""
FUTURE_S = 2 * 86_400
"""A later date than this from now is a wrong clock, and its rows would never be replaced."""
Action = Literal["added", "replaced", "kept", "refused", "no result"]


@dataclass(frozen=True)
class Line:
    """What became of one job or row, and why."""

    action: Action
    what: str
    why: str = ""


@dataclass
class Intake:
    """The outcome: lines in the order of the bundle, rows to write by file, verdicts of checks."""

    lines: list[Line] = field(default_factory=list)
    rows: dict[str, list[ResultRow]] = field(default_factory=dict)
    checks: list[CheckRow] = field(default_factory=list)

    @property
    def refused(self) -> bool:
        """Whether any job was refused."""
        return any(line.action == "refused" for line in self.lines)

    def count(self, action: Action) -> int:
        """Lines with this action."""
        return sum(line.action == action for line in self.lines)


class Refused(Exception):
    """Why a job of a bundle is not believed, in one sentence."""


def judge(bundle: Bundle, directory: Path, *, cache_dir: Path | None = None) -> Intake:
    """Check every job of a bundle and say what its rows would do to the files in `directory`. Writes nothing."""
    out = Intake()
    when = _when(bundle.manifest.date)
    wrong_date = not when or when > time.time() + FUTURE_S
    for part in bundle.parts:
        name = part.entry.name
        if part.result is None or part.job is None:
            out.lines.append(Line("no result", name, f"{part.entry.code}: {part.entry.message}"))
            continue
        try:
            if wrong_date:
                _refuse(f"{bundle.manifest.date} is no date of a past run: the machine's clock was wrong")
            subject = _subject(part, bundle, cache_dir)
            if part.entry.kind == "check":
                _take_check(out, subject, bundle, directory)
            else:
                _take_bench(out, subject, bundle, directory)
        except Refused as exc:
            out.lines.append(Line("refused", name, str(exc)))
    return out


def write(found: Intake, directory: Path) -> list[Path]:
    """Write the rows that `judge` took. Raises OSError."""
    paths = [evidence.write(name, rows, directory) for name, rows in sorted(found.rows.items())]
    return [*paths, evidence.write_checks(found.checks, directory)] if found.checks else paths


# ---- who was measured ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Subject:
    part: Part
    job: jobs.Job
    kernel: CorpusKernel
    contract: Contract
    note: str


def _subject(part: Part, bundle: Bundle, cache_dir: Path | None) -> _Subject:
    """The corpus kernel of a job, once it is sure that the job is about it."""
    job, entry = part.job, part.entry
    assert job is not None
    device = bundle.manifest.device.get("name")
    if not isinstance(device, str) or not 0 < len(device) <= MAX_NAME:
        _refuse("the manifest does not name the device")
    kernel = {k.name: k for k in kernels()}.get(job.kernel)
    if kernel is None:
        _refuse(f"the corpus has no kernel {job.kernel[:80]!r}")
    if (entry.kernel, entry.kind, entry.target) != (job.kernel, job.kind, job.target):
        _refuse("the manifest and the job name different kernels, kinds or targets")
    if job.target not in kernel.targets:
        _refuse(f"{kernel.name} is written for {', '.join(kernel.targets)}, not for {job.target[:20]!r}")
    contract = contracts().get(kernel.contract)
    if contract is None or job.contract != kernel.contract:
        _refuse(f"{kernel.name} belongs to contract {kernel.contract}, the job names {job.contract[:80]!r}")
    if job.contract_digest != contract.digest:
        _refuse(
            f"contract {contract.name} is {contract.digest} here, the job was judged by {job.contract_digest[:40]!r}"
        )
    bound = _bound(kernel, job)
    note = _code(kernel, job, contract, bound, bundle, cache_dir)
    return _Subject(part, job, kernel, contract, note)


def _bound(kernel: CorpusKernel, job: jobs.Job) -> Any:
    file = parse(kernel.text(), kernel.file).file
    if file is None:
        _refuse(f"the corpus kernel {kernel.name} does not parse here")
    now = content_id(file)
    if job.content_id != now:
        _refuse(f"{kernel.name} is {now} here, the job measured {job.content_id[:40]!r}: the kernel differs")
    if not all(isinstance(v, bool | int | float | str) for v in job.bindings.values()):
        _refuse("the bindings are no plain values")
    try:
        done = bind(file, dict(job.bindings), job.target, kernel.kernel)
    except CakeError as exc:
        _refuse(f"the bindings do not fit: {exc.diagnostic.message}")
    if done.bound is None:
        first = next((d.message for d in done.diagnostics if d.severity == "error"), "")
        _refuse(f"the kernel does not bind with these values: {first[:200]}")
    if variant_id(file, dict(job.bindings), job.target, done.bound.name) != job.variant_id:
        _refuse("the variant id does not name this kernel with these bindings")
    return done.bound


def _code(
    kernel: CorpusKernel, job: jobs.Job, contract: Contract, bound: Any, bundle: Bundle, cache_dir: Path | None
) -> str:
    """Launches and machine code are those of this kernel. Returns what could not be checked, in words."""
    from lowering.emission import emit

    used = {
        str(p.get("cubin_sha256"))
        for launch in job.launches
        for p in (*launch.plans, *(launch.fewer.plans if launch.fewer else ()))
    }
    if len(used) != 1:
        _refuse(f"the launches name {len(used)} cubins; a kernel has one")
    (sha,) = used
    if sha not in bundle.cubins:
        _refuse(f"the bundle lacks cubin {sha[:12]}")
    sms = bundle.manifest.device.get("sms")
    if not isinstance(sms, int) or not 0 < sms < 10_000:
        _refuse("the manifest does not say how many multiprocessors the device has")
    gate = job.kind == "check"
    shapes = contract.shapes["boundary"] if gate else [launch.shape for launch in job.launches]
    try:
        planned, _ = jobs.launches(bound, emit(bound), contract, shapes, sms, sha, gate=gate)
    except CakeError as exc:
        _refuse(f"the launches cannot be planned here: {exc.diagnostic.message}")
    if [p.model_dump(mode="json") for p in planned] != [p.model_dump(mode="json") for p in job.launches]:
        _refuse("the launches are not those that this version plans for that device")
    here = rebuilt(kernel, job.bindings, job.target, cache_dir)
    if not isinstance(here, Built):
        return f"machine code not reproduced: {here}"
    if here.compiler != job.compiler:
        return f"compiler differs ({job.compiler[:40]} there, {here.compiler} here): machine code not reproduced"
    if here.sha256 != sha:
        _refuse(f"{here.compiler} builds cubin {here.sha256[:12]} from {kernel.name}; the bundle ran {sha[:12]}")
    return ""


# ---- what was found ------------------------------------------------------------------------------------------------


def _common(result: jobs.Bench | CheckResult, s: _Subject, bundle: Bundle) -> None:
    if (result.contract, result.contract_digest, result.kernel) != (s.contract.name, s.contract.digest, s.kernel.name):
        _refuse("the result is about another kernel or contract than its job")
    if result.passed != (s.part.entry.status == "passed"):
        _refuse("the manifest and the result disagree on the outcome")


def _take_check(out: Intake, s: _Subject, bundle: Bundle, directory: Path) -> None:
    from corpus.gpu_check import distributions_of

    try:
        result = CheckResult.model_validate(s.part.result)
    except ValidationError as exc:
        _refuse(f"the result has not the form of a check: {exc.errors()[0]['msg'][:160]}")
    _common(result, s, bundle)
    if result.on != "gpu":
        _refuse("the check was not run on a GPU")
    strange = set(s.job.distributions or ()) - set(s.contract.distributions)
    if strange:
        _refuse("the job names distributions that the contract does not have")
    due = [(x.shape, n) for x in s.job.launches for n in distributions_of(s.job, s.contract, x)]
    if result.passed and [(c.shape, c.distribution) for c in result.cases] != due:
        _refuse(f"{len(due)} cases were asked for; the result does not list exactly these")
    lies = [c for c in result.cases if c.verdict == "passed" and (c.bad or not _at_most_one(c.excess))]
    if lies:
        _refuse(f"{shape_text(lies[0].shape)} {lies[0].distribution} is called passed with elements out of tolerance")
    if conclude(result.cases) != {"passed": result.passed, "summary": result.summary}:
        _refuse("the verdict does not follow from the cases")
    m = bundle.manifest
    row = evidence.check_row(
        result.model_dump(mode="json"), s.job, m.device, command=m.command, date=m.date, commit=m.commit
    )
    old = [c for c in evidence.read_checks(directory) if (c.kernel, c.device) == (row.kernel, row.device)]
    if old and _when(old[0].evidence.date) > _when(m.date):
        out.lines.append(Line("kept", f"check of {row.kernel}", f"the row of {old[0].evidence.date} is newer"))
        return
    out.checks.append(row)
    what = f"check of {row.kernel} on {row.device}: {row.summary[:160]}"
    out.lines.append(Line("replaced" if old else "added", what, s.note))


def _take_bench(out: Intake, s: _Subject, bundle: Bundle, directory: Path) -> None:
    try:
        result = jobs.Bench.model_validate(s.part.result)
    except ValidationError as exc:
        _refuse(f"the result has not the form of a timing: {exc.errors()[0]['msg'][:160]}")
    _common(result, s, bundle)
    if result.device.get("name") != bundle.manifest.device.get("name"):
        _refuse("the manifest and the result name different devices")
    due = [(launch.shape, mode) for launch in s.job.launches for mode in s.job.modes]
    if [(x.shape, x.mode) for x in result.shapes] != due:
        _refuse("the timed shapes and modes are not those of the job")
    if s.job.peak_flops or s.job.peak_bytes:
        _refuse("the job sets physical limits of its own")
    m = bundle.manifest
    for x in result.shapes:
        rejudge(x, result.rule)
        if x.verdict in jobs.VALID:
            _possible(x, s, m.device)
    rows = evidence.rows_from_bench(
        result.model_dump(mode="json"), content_id=s.job.content_id, variant_id=s.job.variant_id,
        bindings=s.job.bindings, target=s.job.target, compiler=s.job.compiler,
        cubin_sha256=str(s.job.launches[0].plans[0]["cubin_sha256"]), command=m.command, date=m.date, commit=m.commit,
    )  # fmt: skip
    if any(len(r.model_dump_json()) > MAX_ROW for r in rows):
        _refuse(f"a row would be larger than {MAX_ROW >> 10} kB")
    name = s.kernel.name.replace("-", "_")
    known = out.rows.get(name, evidence.read_rows(directory / f"{name}.json"))
    merged = list(known)
    for x in result.shapes:
        new = [r for r in rows if r.shape == x.shape and r.mode == x.mode]
        what = f"{s.kernel.name} {shape_text(x.shape)} {x.mode} on {m.device.get('name')}"
        if not new:
            out.lines.append(Line("no result", what, f"{x.verdict}: {x.message}"))
            continue
        old = [r for r in merged if place(r) == place(new[0])]
        if any(_when(r.evidence.date) > _when(m.date) for r in old):
            out.lines.append(Line("kept", what, f"the row of {old[0].evidence.date} is newer"))
            continue
        merged = [*(r for r in merged if r not in old), *new]
        out.lines.append(Line("replaced" if old else "added", what, s.note))
    if merged != known:
        out.rows[name] = merged


def place(r: ResultRow) -> tuple[Any, ...]:
    """What a newer measurement replaces: the same variant on a device of the same name, at a shape in a mode."""
    return r.device, r.kernel, sorted(r.bindings.items()), sorted(r.dtypes.items()), sorted(r.shape.items()), r.mode


# ---- numbers again -------------------------------------------------------------------------------------------------


def rejudge(x: jobs.BenchShape, rule: str) -> None:
    """Everything of a timed shape that follows from its samples; raises Refused at the first difference."""
    from corpus import gpu_bench
    from lowering.runtime import stats

    where = f"{shape_text(x.shape)} {x.mode}: "
    valid = x.verdict in jobs.VALID
    if x.candidate is None:
        if valid:
            _refuse(f"{where}called {x.verdict} without a time")
        return
    for t in (x.candidate, *x.baselines):
        if not t.samples_us or len(t.samples_us) > MAX_SAMPLES or not all(0 < v < 1e9 for v in t.samples_us):
            _refuse(f"{where}{t.name[:80]} has no plausible samples")
        found = stats.summarise(t.samples_us)
        cv = found.cv if t.cv is None else t.cv
        if not (_close(found.median, t.median_us) and _close(found.mad, t.mad_us) and _close(found.cv, cv)):
            _refuse(f"{where}median or spread of {t.name[:80]} do not follow from its samples")
        if not 0 < t.batch <= MAX_BATCH:
            _refuse(f"{where}{t.name[:80]} has no plausible batch")
    if not valid:
        return
    if rule != gpu_bench.rule():
        _refuse(f"{where}judged by another rule than this version's; measure again with this version")
    for b in x.baselines:
        _compare(b, x.candidate, where)
    fair = [b for b in x.baselines if b.computes and not b.verdict.startswith("failed")]
    best = min(fair, key=lambda b: b.median_us, default=None)
    if (x.baseline, x.ratio) != ((best.name, best.ratio) if best else (None, None)):
        _refuse(
            f"{where}compared with {x.baseline or 'nothing'}; the fastest baseline is {best.name if best else 'none'}"
        )
    follows = (best.comparison or "inconclusive") if best else "measured"
    if x.verdict != follows:
        _refuse(f"{where}called {x.verdict}, the samples say {follows}")
    if not 0 <= x.floor_us < math.inf:
        _refuse(f"{where}the physical floor is no time")
    if x.candidate.median_us < x.floor_us:
        _refuse(f"{where}{x.candidate.median_us:.4g} us is below the physical floor of {x.floor_us:.4g} us")
    bad = [c for c in x.checks if c.verdict != "passed"]
    if bad or not x.checks:
        _refuse(f"{where}timed although {bad[0].message[:160] if bad else 'its results were not checked'}")


def _possible(x: jobs.BenchShape, s: _Subject, device: Mapping[str, Any]) -> None:
    """The time is one that the device can reach: the FLOP of the contract's at the rates of the target's architecture."""
    from cake_ir import targets
    from corpus.gpu_bench import peak_flops

    clock = device.get("sm_clock_mhz")
    clock = clock if isinstance(clock, int | float) and 0 < clock < MAX_CLOCK_MHZ else MAX_CLOCK_MHZ
    major = targets.get(s.job.target).compute_capability[0]
    rate = peak_flops(major, s.contract.flop_unit, device["sms"], clock)
    least = 1e6 * s.contract.flops(x.shape) / rate if rate else 0.0
    if x.candidate is not None and x.candidate.median_us < least:
        at = f"{shape_text(x.shape)} {x.mode}"
        _refuse(
            f"{at}: {x.candidate.median_us:.4g} us is less than the {least:.4g} us that the device needs for its FLOP"
        )


def _compare(b: jobs.Timing, candidate: jobs.Timing, where: str) -> None:
    from lowering.runtime import stats

    if len(b.samples_us) != len(candidate.samples_us) or len(b.samples_us) < 2:
        _refuse(f"{where}the rounds of {b.name[:80]} and of the candidate are not paired")
    clocks = candidate.sm_mhz / b.sm_mhz if candidate.sm_mhz and b.sm_mhz else None
    found = stats.compare(b.name, b.samples_us, candidate.samples_us, clocks)
    if (clocks is None) != (b.clock_ratio is None) or (clocks is not None and not _close(clocks, b.clock_ratio)):
        _refuse(f"{where}the clock ratio of {b.name[:80]} does not follow from the clocks")
    claimed = (b.ratio, b.ratio_low, b.ratio_high)
    if not all(map(_close, (found.ratio, found.low, found.high), claimed)):
        _refuse(f"{where}the ratio over {b.name[:80]} does not follow from the samples")
    if found.verdict != b.comparison:
        _refuse(f"{where}called {b.comparison} than {b.name[:80]}, the samples say {found.verdict}")


def _close(a: float, b: float | None) -> bool:
    return b is not None and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def _at_most_one(excess: float | str) -> bool:
    return isinstance(excess, int | float) and excess <= 1


def _when(date: str) -> float:
    try:
        return datetime.fromisoformat(date).timestamp()
    except ValueError:
        return 0.0


def _refuse(why: str) -> NoReturn:
    raise Refused(why)


def table(lines: Sequence[Line]) -> list[Mapping[str, str]]:
    """Lines as rows of a table."""
    return [{"action": line.action, "what": line.what, "why": line.why} for line in lines]
