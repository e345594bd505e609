"""Committed measurements: `corpus/results/<name>.json`, written from bench results and read back with staleness.

A row keeps everything needed to doubt it: content ids, compiler, device, raw samples, the command and date. A row is
marked stale, not dropped, when the corpus kernel or its contract has changed since, or when the kernel now builds to
another cubin (see corpus/rebuild.py).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cake_ir.diagnostics import CakeError, error
from corpus import files
from corpus.jobs import VALID
from corpus.kernels import CorpusKernel, kernels, programs

DIRECTORY = Path(__file__).parent / "results"


class Evidence(BaseModel):
    """Where a row comes from. `date` is ISO 8601 UTC, `commit` the git commit of the measured tree."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str
    date: str
    commit: str = ""


class ResultRow(BaseModel):
    """One measured shape. Times in microseconds per launch; `ratio` is baseline over candidate, above 1 is faster.

    `verdict`: faster, slower, inconclusive (against `baseline`, by `rule`), or measured (no baseline ran). `cv` and
    `baseline_cv`: standard deviation of the samples over their mean. `stale` is computed on reading.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    contract: str
    contract_digest: str = ""
    kernel: str
    content_id: str = ""
    variant_id: str = ""
    bindings: dict[str, Any] = Field(default_factory=dict)
    target: str = ""
    shape: dict[str, int]
    dtypes: dict[str, str] = Field(default_factory=dict)
    device: str
    driver: str = ""
    compiler: str = ""
    cubin_sha256: str = ""
    mode: str
    method: str = ""
    time_us: float
    samples_us: tuple[float, ...] = ()
    batch: int = 0
    cv: float | None = None
    baseline: str | None = None
    baseline_us: float | None = None
    baseline_samples_us: tuple[float, ...] = ()
    baseline_versions: dict[str, str] = Field(default_factory=dict)
    baseline_verdict: str = ""
    baseline_cv: float | None = None
    ratio: float | None = None
    ratio_interval: tuple[float, float] | None = None
    floor_us: float = 0.0
    verdict: str
    rule: str = ""
    checks: str = ""
    conditions: dict[str, Any] = Field(default_factory=dict)
    evidence: Evidence
    stale: str | None = Field(default=None, description="why the row no longer speaks for the corpus kernel, or null")


def rows_from_bench(
    bench: Mapping[str, Any], *, content_id: str, variant_id: str, bindings: Mapping[str, Any], target: str,
    compiler: str, cubin_sha256: str, command: str, date: str, commit: str,
) -> list[ResultRow]:  # fmt: skip
    """Rows of the validly timed shapes of a `corpus.jobs.Bench` (as JSON), one per baseline; others give none.

    kernel names: give `bench["kernel"]` the corpus name. `command` and `date` say how to repeat it and when it was run.
    """
    device = bench.get("device", {})
    rows = []
    for s in bench["shapes"]:
        if s["verdict"] not in VALID:
            continue
        candidate = s["candidate"]
        common: dict[str, Any] = {
            "contract": bench["contract"], "contract_digest": bench["contract_digest"], "kernel": bench["kernel"],
            "content_id": content_id, "variant_id": variant_id, "bindings": dict(bindings), "target": target,
            "shape": s["shape"], "dtypes": s.get("dtypes", {}), "device": str(device.get("name", "unknown")),
            "driver": str(device.get("driver", "")), "compiler": compiler, "cubin_sha256": cubin_sha256,
            "mode": s["mode"], "method": s.get("method", ""), "time_us": candidate["median_us"],
            "samples_us": tuple(candidate["samples_us"]), "batch": candidate["batch"], "cv": candidate.get("cv"),
            "floor_us": s.get("floor_us", 0.0), "rule": bench.get("rule", ""), "conditions": s.get("conditions", {}),
            "checks": "; ".join(f"{c['message'].split(':')[0]}: {c['verdict']}" for c in s.get("checks", [])),
            "evidence": Evidence(command=command, date=date, commit=commit),
        }  # fmt: skip
        for b in s["baselines"]:
            bounds = (b["ratio_low"], b["ratio_high"])
            rows.append(
                ResultRow(
                    **common, baseline=b["name"], baseline_us=b["median_us"],
                    baseline_samples_us=tuple(b["samples_us"]), baseline_versions=b.get("versions", {}),
                    baseline_verdict=b.get("verdict", ""), baseline_cv=b.get("cv"), ratio=b["ratio"], ratio_interval=bounds,
                    verdict=b["comparison"],
                )
            )  # fmt: skip
        if not s["baselines"]:
            rows.append(ResultRow(**common, verdict="measured"))
    return rows


class CheckRow(BaseModel):
    """One kernel judged on a device: how many cases of which distributions and shapes, and the verdict."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    contract: str
    contract_digest: str
    kernel: str
    content_id: str
    variant_id: str
    bindings: dict[str, Any]
    target: str
    device: str
    driver: str
    compiler: str
    cubin_sha256: str
    passed: bool
    summary: str
    cases: int
    shapes: list[dict[str, int]]
    distributions: list[str]
    judge: str
    evidence: Evidence


def check_row(
    result: Mapping[str, Any], job: Any, device: Mapping[str, Any], *, command: str, date: str, commit: str
) -> CheckRow:
    """The verdict of a check job (`corpus.jobs.Job`) on the probed device."""
    cases = result["cases"]
    shapes = [dict(launch.shape) for launch in job.launches]
    return CheckRow(
        contract=result["contract"], contract_digest=result["contract_digest"], kernel=result["kernel"],
        content_id=job.content_id, variant_id=job.variant_id, bindings=job.bindings, target=job.target,
        device=str(device.get("name", "unknown")), driver=str(device.get("driver", "")), compiler=job.compiler,
        cubin_sha256=",".join(sorted({str(p["cubin_sha256"]) for launch in job.launches for p in launch.plans})),
        passed=result["passed"], summary=result["summary"], cases=len(cases), shapes=shapes,
        distributions=sorted({str(c.get("distribution", "")) for c in cases}), judge=str(result.get("judge_selftest", "")),
        evidence=Evidence(command=command, date=date, commit=commit),
    )  # fmt: skip


def write_checks(rows: Sequence[CheckRow], directory: Path = DIRECTORY) -> Path:
    """Write `checks.json`: verdicts of kernels on a device; rows of other kernels already there are kept."""
    new = {(r.kernel, r.device): r for r in [*read_checks(directory), *rows]}
    return replace(
        directory / "checks.json", {"kind": "checks", "checks": [r.model_dump(mode="json") for r in new.values()]}
    )


def read_checks(directory: Path = DIRECTORY) -> list[CheckRow]:
    """The committed verdicts; none without the file. Raises CakeError `corpus/bad-results`."""
    path = directory / "checks.json"
    if not path.exists():
        return []
    try:
        return [CheckRow.model_validate(r) for r in json.loads(path.read_text(encoding="utf-8"))["checks"]]
    except (ValueError, KeyError, TypeError, ValidationError) as exc:
        raise _unreadable(path, exc) from exc


def write_probes(lines: str, *, command: str, commit: str, directory: Path = DIRECTORY) -> Path:
    """Write `decoder.json`: the descriptor decoder's probes on a device, from the JSON lines that the probe program prints."""
    objects = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    device = next((o["device"] for o in objects if "device" in o), {})
    probes = {str(o["probe"]): bool(o["ok"]) for o in objects if "probe" in o}
    plain = {
        "kind": "decoder",
        "device": device,
        "probes": probes,
        "passed": all(probes.values()),
        "command": command,
        "commit": commit,
    }
    return replace(directory / "decoder.json", plain)


def write(name: str, rows: Sequence[ResultRow], directory: Path = DIRECTORY) -> Path:
    """Write rows to `<name>.json`, replacing that file as a whole. Raises ValueError unless `name` is a plain word."""
    if not name.replace("-", "_").isidentifier():
        raise ValueError(f"{name!r} is not a plain file name")
    plain = {"rows": [r.model_dump(mode="json", exclude={"stale"}) for r in rows]}
    return replace(directory / f"{name}.json", plain)


@contextlib.contextmanager
def editing(directory: Path, wait_s: float = 30.0) -> Iterator[None]:
    """Hold the directory while its files are read, merged and written, so that two imports lose no row of each other.

    The lock is the kernel's, on the directory itself (flock), and ends with its process. Raises CakeError `corpus/busy` after
    `wait_s` seconds, OSError where the directory cannot be made or opened.
    """
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not files.lock(handle, wait_s):
            law = "One process at a time writes into a directory of results."
            text = f"{directory} was held for {wait_s:g} s by another process; try again when its import is done"
            raise CakeError(error("corpus/busy", "data", text, contract=law))
        yield
    finally:
        os.close(handle)


def replace(path: Path, plain: dict[str, Any]) -> Path:
    """Write indented JSON through a temporary file, so that a full disk leaves the old one whole."""
    return replace_text(path, json.dumps(plain, indent=1, sort_keys=True) + "\n")


def replace_text(path: Path, text: str) -> Path:
    """Write a file whole or not at all (`corpus.files.replace`), in a directory that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, text.encode())
    return path


def results(
    directory: Path = DIRECTORY,
    *,
    rebuild: bool = False,
    cache_dir: Path | None = None,
    known: Mapping[Any, str] | None = None,
) -> list[ResultRow]:
    """All committed rows by file name, staleness filled in; raises CakeError `corpus/bad-results` naming the file.

    rebuild: build every variant again instead of taking what the last recorded rebuild found (cache_dir: of cubins);
    raises CakeError `lowering/compiler-missing` when it cannot. known: what a rebuild found, by variant.
    """
    from corpus.rebuild import Record, find_marks, marks

    found = [(path.name, r) for path in sorted(directory.glob("*.json")) for r in read_rows(path)]
    if known is None:
        fresh = {Record("", m).variant: str(m["why"]) for m in find_marks(directory, cache_dir)} if rebuild else None
        known = marks(directory) if fresh is None else fresh
    out = []
    for name, row in found:
        plain = row.model_dump(mode="json")
        why = changed(plain) or known.get(Record(name, plain).variant)
        out.append(row.model_copy(update={"stale": why}))
    return out


def read_rows(path: Path) -> list[ResultRow]:
    """Rows of one file; none when it does not exist. Raises CakeError `corpus/bad-results`."""
    if not path.exists():
        return []
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if "kind" in raw:  # verdicts and reports live beside the timing rows
            return []
        return [ResultRow.model_validate(r) for r in raw["rows"]]
    except (ValueError, KeyError, TypeError, ValidationError) as exc:
        raise _unreadable(path, exc) from exc


def _unreadable(path: Path, exc: Exception) -> CakeError:
    law = "Files under corpus/results/ hold rows as corpus.evidence writes them."
    return CakeError(error("corpus/bad-results", "data", f"{path.name}: {exc}", contract=law))


def merged(old: Sequence[ResultRow], new: Sequence[ResultRow]) -> list[ResultRow]:
    """Old rows that no new row replaces (same kernel, dtypes, shape, mode, device and baseline), then the new ones."""

    def key(r: ResultRow) -> tuple[Any, ...]:
        return r.kernel, sorted(r.dtypes.items()), sorted(r.shape.items()), r.mode, r.device, r.baseline

    replaced = [key(r) for r in new]
    return [*(r for r in old if key(r) not in replaced), *new]


def outdated(row: Mapping[str, Any], directory: Path = DIRECTORY) -> str | None:
    """Why a record no longer speaks for its corpus kernel, or None: kernel or contract changed, or the last recorded rebuild
    found other machine code. Builds nothing."""
    from corpus.rebuild import KEYS, Record, marks

    why = changed(row)
    return why or (marks(directory).get(Record("", row).variant) if all(k in row for k in KEYS) else None)


def changed(row: Mapping[str, Any]) -> str | None:
    """How kernel or contract of a record (`kernel`, `content_id`, `contract_digest`) differ from the corpus today, or None."""
    known = {k.name: k for k in (*kernels(), *programs())}
    entry = known.get(row["kernel"])
    if entry is None:
        # rows may carry the @kernel name instead of the index name
        same = [k for k in known.values() if (k.kernel or k.path.stem) == row["kernel"]]
        entry = same[0] if len(same) == 1 else None
    if entry is None:
        return "the corpus has no kernel of this name"
    now = current_id(entry)
    if now is None:
        return "the corpus kernel does not parse"
    if now != row["content_id"]:
        return f"the kernel has changed: it is {now} now"
    digest = current_digest(entry.contract)
    return (
        None if digest == row["contract_digest"] else f"the contract {entry.contract} has changed: it is {digest} now"
    )


def current_digest(contract: str) -> str:
    """The digest of a contract that comes with Cake, as it is today; empty when there is none of this name."""
    from corpus.contract import contracts

    found = contracts().get(contract)
    return found.digest if found is not None else ""


def current_id(kernel: CorpusKernel) -> str | None:
    """The content id of a corpus kernel's text today; None when it does not parse."""
    return _content_id(kernel.path, kernel.path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _content_id(path: Path, mtime: int) -> str | None:
    from cake_ir import content_id, parse

    parsed = parse(path.read_text(encoding="utf-8"), path.name)
    return None if parsed.file is None else content_id(parsed.file)
