"""`cake selftest`: every corpus kernel that the connected GPU runs, through numbers and timing, into one evidence bundle.

Each job is prepared in a CPU worker and run in a GPU worker of its own under the device's lock, so a kernel that hangs
or breaks the device costs its own row and nothing else. After such an end the device is asked whether it answers; the
rest is left out only when it does not. The bundle is written after every job: a run that is cut short leaves what it has.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from corpus import bundle
from corpus.bundle import Entry, Manifest, Part
from corpus.jobs import Job
from corpus.kernels import CorpusKernel, kernels
from server import __version__
from server.diagnosis import health
from server.errors import BadArgument, Cancelled, EngineError, Missing
from server.gpu_work import COMPILE_TIMEOUT_S, GPU_TIMEOUT_S, NO_GPU, fault_in
from server.results import clean
from server.worker import Control, gpu_lock, run_worker

TUNING_SHAPES = 2
QUICK_ROUNDS, ROUNDS = 12, 22
WITHOUT_GPU = (
    "run it on the machine with the GPU; there `cake doctor` says what is missing. Here `cake check` interprets kernels "
    "and `cake build` compiles them"
)


@dataclass(frozen=True)
class Step:
    """One job: a corpus kernel bound for the device's target, and what is asked of it."""

    kernel: CorpusKernel
    target: str
    kind: str
    shapes: str | list[dict[str, int]]
    more: Mapping[str, Any]
    timeout_s: float

    @property
    def name(self) -> str:
        """Names the job's files in the bundle."""
        return f"{self.kernel.name}-{self.kind}"


@dataclass
class Outcome:
    """What the run found so far. `compiler`: that of the first job that was built."""

    device: dict[str, Any]
    date: str
    command: str
    commit: str
    parts: list[Part] = field(default_factory=list)
    cubins: dict[str, bytes] = field(default_factory=dict)
    compiler: str = ""
    packages: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Every job passed, and there was one."""
        return bool(self.parts) and all(p.entry.status == "passed" for p in self.parts)

    def rows(self) -> list[dict[str, Any]]:
        """One row per job, for a table."""
        return [
            p.entry.model_dump(include={"kernel", "target", "kind", "status", "message", "seconds"}) for p in self.parts
        ]

    def manifest(self, complete: bool) -> Manifest:
        """The bundle's manifest."""
        return Manifest(
            format=bundle.FORMAT, cake=__version__, commit=self.commit, date=self.date, command=self.command,
            complete=complete, device=bundle.public(self.device), driver=str(self.device.get("driver", "")),
            compiler=self.compiler, packages=self.packages, host=bundle.host(), entries=tuple(p.entry for p in self.parts),
        )  # fmt: skip


def target_of(device: Mapping[str, Any], named: Sequence[str]) -> str | None:
    """The target among `named` that a device of this compute capability runs, or None."""
    from cake_ir import targets

    here = tuple(device["compute_capability"])
    return next((t for t in named if tuple(targets.get(t).compute_capability) == here), None)


def plan(device: Mapping[str, Any], only: Sequence[str] = (), quick: bool = False) -> list[Step]:
    """The jobs for a device, all checks before all timings. Raises BadArgument for a kernel that the corpus lacks, Missing
    `gpu/other-target` when no kernel is written for the device."""
    from corpus.check import QUICK
    from corpus.contract import contracts

    table = {k.name: k for k in kernels()}
    unknown = [n for n in only if n not in table]
    if unknown:
        raise BadArgument(
            f"the corpus has no kernel {unknown[0]!r}; it has {', '.join(table)}",
            "see `cake corpus`",
            "args/unknown-kernel",
        )
    chosen = [(k, target_of(device, k.targets)) for k in table.values() if not only or k.name in only]
    fitting = [(k, t) for k, t in chosen if t is not None]
    if not fitting:
        here = ".".join(map(str, device["compute_capability"]))
        named = sorted({t for k, _ in chosen for t in k.targets})
        raise Missing(
            "gpu/other-target",
            f"{device['name']} (compute capability {here}) runs none of these kernels; they are written for {', '.join(named)}",
            "add the GPU's target to a kernel's @kernel(target=...), see docs/adding-a-kernel.md",
        )
    known = contracts()
    checks, timings = [], []
    for kernel, target in fitting:
        contract = known[kernel.contract]
        some = tuple(d for d in contract.distributions if d in QUICK) if quick else None
        checks.append(Step(kernel, target, "check", "boundary", {"distributions": some}, GPU_TIMEOUT_S))
        shapes = [dict(s) for s in contract.shapes["tuning"][: 1 if quick else TUNING_SHAPES]]
        how = {"modes": ("warm",) if quick else ("warm", "cold"), "samples": QUICK_ROUNDS if quick else ROUNDS}
        timings.append(Step(kernel, target, "bench", shapes, how, GPU_TIMEOUT_S))
    return [*checks, *timings]


def run(
    index: int | None, out: Path, control: Control, *, only: Sequence[str] = (), quick: bool = False, command: str,
    tell: Callable[[dict[str, Any]], None] = lambda row: None,
) -> Outcome:  # fmt: skip
    """Run every job and write the bundle. `tell` gets each row as it is done.

    Raises Missing (`gpu/none`, `gpu/unusable`, `gpu/other-target`, `gpu/busy`), BadArgument for `out` or a kernel's name.
    """
    if index is None:
        raise Missing("gpu/none", NO_GPU, WITHOUT_GPU)
    if not out.resolve().parent.is_dir():
        raise BadArgument(f"{out} cannot be written: {out.parent} is not a directory", code="args/file")
    probed = _probe(index, control)
    done = Outcome(probed["device"], _now(), command, installed_commit(), packages=dict(probed.get("packages") or {}))
    steps = plan(done.device, only, quick)
    dead = ""
    for number, step in enumerate(steps):
        control.progress(number, len(steps), f"{step.kernel.name} {step.kind}")
        begin = time.monotonic()
        if dead:
            part = _failed(step, None, "gpu/unusable", f"not run: {dead}", 0.0)
        else:
            part, dead = _one(index, step, done, control, begin)
        done.parts.append(part)
        _write(out, done, complete=number == len(steps) - 1)
        tell(done.rows()[-1])
    return done


def _one(index: int, step: Step, done: Outcome, control: Control, begin: float) -> tuple[Part, str]:
    """One job, and why the device cannot be used after it (empty: it answers)."""
    job: Job | None = None
    try:
        ready = run_worker(
            "server.cpu_main", _preparation(index, step, done.device), timeout_s=COMPILE_TIMEOUT_S, control=control
        )
        if "diagnostic" in ready:
            found = ready["diagnostic"]
            return _failed(step, None, found["rule"], found["message"], time.monotonic() - begin), ""
        job = Job.model_validate(ready["job"])
        if not job.launches:
            why = "; ".join(sorted({str(s[1]) for s in ready["skipped"]}))
            return _failed(
                step, None, "args/shape", f"the kernel refuses every shape: {why}", time.monotonic() - begin
            ), ""
        done.compiler = done.compiler or job.compiler
        done.cubins |= {sha: job.cubin(sha) for sha in job.cubins}
        with gpu_lock(index, control):
            raw = run_worker("corpus.gpu_main", ready["job"], timeout_s=step.timeout_s, control=control)
    except Cancelled:
        raise
    except EngineError as exc:
        dead = _dead(index, control) if exc.code.startswith(("worker/", "lowering/")) else ""
        return _failed(step, job, exc.code, exc.message, time.monotonic() - begin), dead
    seconds = round(time.monotonic() - begin, 3)
    status = "passed" if raw.get("passed") else "failed"
    entry = Entry(
        name=step.name, kernel=step.kernel.name, target=step.target, kind=step.kind, status=status,  # type: ignore[arg-type]
        message=clean(str(raw.get("summary", "")), 1_000), seconds=seconds,
    )  # fmt: skip
    return Part(entry, job, raw), (_dead(index, control) if fault_in(raw) else "")


def _preparation(index: int, step: Step, device: Mapping[str, Any]) -> dict[str, Any]:
    """The CPU worker's job that builds one GPU job."""
    k = step.kernel
    more = {"device": index, "timeout_s": step.timeout_s - 20, "name": k.name, **step.more}
    return {
        "kind": "prepare", "job": step.kind, "text": k.text(), "bindings": dict(k.bindings), "target": step.target,
        "kernel": k.kernel, "contract": k.contract, "shapes": step.shapes, "contracts_dir": None, "sms": device["sms"],
        "more": more,
    }  # fmt: skip


def _failed(step: Step, job: Job | None, code: str, message: str, seconds: float) -> Part:
    entry = Entry(
        name=step.name, kernel=step.kernel.name, target=step.target, kind=step.kind, status="error",  # type: ignore[arg-type]
        code=clean(code, 80), message=clean(message, 1_000), seconds=round(seconds, 3),
    )  # fmt: skip
    return Part(entry, job, None)


def _probe(index: int, control: Control) -> dict[str, Any]:
    try:
        with gpu_lock(index, control):
            return run_worker("corpus.gpu_main", {"kind": "probe", "device": index}, timeout_s=60, control=control)
    except Cancelled:
        raise
    except EngineError as exc:
        if exc.code == "gpu/busy":
            raise
        raise Missing("gpu/unusable", f"GPU {index} does not answer: {exc.message}", "see `cake doctor`") from exc


def _dead(index: int, control: Control) -> str:
    """Why the device does not answer a probe, or an empty string."""

    def ask(job: dict[str, Any], seconds: float) -> dict[str, Any]:
        return run_worker("corpus.gpu_main", job, timeout_s=seconds, control=control)

    with gpu_lock(index, control) as lock:
        answers, words = health(index, ask)
        lock.set_problem("" if answers else words)
    return "" if answers else words


def _write(out: Path, done: Outcome, *, complete: bool) -> None:
    try:
        bundle.write(out, done.manifest(complete), done.parts, done.cubins)
    except OSError as exc:
        raise EngineError(
            "storage/unavailable",
            f"{out} cannot be written: {exc.strerror}",
            "free space, or name another file with --out",
        ) from exc


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def installed_commit() -> str:
    """The git commit of this installation, with `+changes` when the tree differs from it; empty outside a checkout."""
    root = Path(__file__).resolve().parent.parent
    said = []
    for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no")):
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=20, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        if done.returncode:
            return ""
        said.append(done.stdout.strip())
    return said[0][:64] + ("+changes" if said[1] else "")
