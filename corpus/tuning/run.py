"""Run a prepared campaign on the GPU: `python -m corpus.tuning.run DIR OUT`. DIR is what `cake tune FAMILY --prepare DIR` wrote.

OUT is the journal (`corpus.tuning.journal`). Every shape is on disk before the next begins; started again with the same OUT the
run goes on where it ended. A candidate that hangs or breaks the device is recorded as lost, the process is started afresh, and
the candidate is not launched again. Exit codes: 0 done, 1 given up after too many restarts, else as `corpus.jobs`.

Without arguments it is a worker under `server.worker`: one job {"directory", "out", "device", "budget_s", "timeout_s"} on stdin.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError
from corpus import jobs
from corpus.contract import Case
from corpus.families import Family, Shape, family
from corpus.gpu_buffers import Env
from corpus.tuning import campaign as campaigns
from corpus.tuning.buckets import served
from corpus.tuning.campaign import Campaign
from corpus.tuning.decide import JUDGE, TUNE, VALIDATE, Decision, decide, report, served_dtypes, to_validate
from corpus.tuning.journal import Journal
from corpus.tuning.measure import Contender, Fault, measure

ATTEMPTS = 8
TUNE_SHARE = 0.7
"""Of the budget; the rest is for validation."""
JUDGED = 3
"""Shapes at which a variant of an element type without routes of its own is judged and timed."""
ROUNDS_OF_DECIDING = 4
Progress = Callable[[float, float | None, str], None]


@dataclass
class Session:
    """One process's work on a campaign."""

    directory: Path
    campaign: Campaign
    family: Family
    journal: Journal
    env: Env
    sms: int
    secret: int
    deadline: float
    budget_s: float
    progress: Progress = lambda done, total, what: None
    code: dict[str, bytes] = field(default_factory=dict)

    def contenders(self, names: Sequence[str], shape: Shape) -> list[Contender]:
        """Those that are not lost and take the shape, ready to be launched."""
        from lowering.recipe import concrete

        out = []
        lost = self.journal.lost_ids
        for name in names:
            if name in lost:
                continue
            record = self.campaign.record(name)
            try:
                call = concrete(record.recipe, shape, self.campaign.contract(record.dtype).scalar_values(), self.sms)
            except CakeError as exc:
                if exc.diagnostic.rule != "lowering/shape-not-admitted":
                    raise
                continue
            if call.steps:
                out.append(Contender(name, call, {k: self._cubin(sha) for k, sha in record.cubins.items()}))
        return out

    def shape(self, phase: str, name: str, dtype: str, dims: Shape, ids: Sequence[str]) -> None:
        """Measure candidates at a shape, into the journal. Raises Fault after the candidate was recorded as lost."""
        found = self.contenders(ids, dims)
        if not found:
            return
        contract = self.campaign.contract(dtype)
        record = self.campaign.record(found[0].id)
        case = Case(dims, contract.bench_distribution, self.campaign.seed, self.secret, record.dtypes)
        try:
            entry = measure(
                self.env, contract, case, found, self.campaign.settings, large=name in self.family.large,
                repeat=self.family.repeat, floor_us=self._floor_us(contract, dims),
                begin=lambda who: self.journal.begin(who, dims),
            )  # fmt: skip
        except Fault as exc:
            self.journal.lost(exc.contender, dims, exc.cause, exc.message)
            self.journal.rest()
            raise
        except CakeError as exc:
            if exc.diagnostic.rule != "lowering/out-of-memory":
                raise
            entry = {"dims": dict(dims), "contenders": {}, "skipped": exc.diagnostic.message[:200]}
        self.journal.rest()
        self.journal.add({"kind": "shape", "phase": phase, "set": name, "dtype": dtype, **entry})

    def left(self, share: float = 1.0) -> float:
        """Seconds of the budget's share that are left."""
        return self.deadline - time.monotonic() - (1 - share) * self.budget_s

    def _cubin(self, sha: str) -> bytes:
        if sha not in self.code:
            self.code[sha] = campaigns.cubin(self.directory, sha)
        return self.code[sha]

    def _floor_us(self, contract: Any, dims: Shape) -> float | None:
        from corpus.gpu_bench import peak_flops

        info = self.env.device.info()
        rate = peak_flops(info.compute_capability[0], contract.flop_unit, info.sms, info.sm_clock_mhz)
        return 1e6 * contract.flops(dims) / rate if rate else None


def tune(s: Session) -> bool:
    """Phase one: every tuning shape, in an order that makes a run cut short a fair sample. False: the budget ended it."""
    todo = [
        (e.set, e.dims, dtype, ids)
        for e in s.campaign.shapes
        for dtype, ids in e.candidates.items()
        if s.journal.measured(TUNE, dtype, e.dims) is None
    ]
    random.Random(s.campaign.seed).shuffle(todo)
    for i, (name, dims, dtype, ids) in enumerate(todo):
        if s.left(TUNE_SHARE) <= 0:
            return False
        s.progress(i, len(todo), f"tuning {_text(dims)} {dtype}")
        s.shape(TUNE, name, dtype, dims, ids)
    return True


def prove(s: Session, dtype: str) -> Decision:
    """Phase two: routes, and their variants measured where validation asks. A variant that proves wrong makes the routes be
    decided anew without it."""
    decision = decide(s.family, s.campaign, s.journal, dtype, s.sms, quick=True)
    for _ in range(ROUNDS_OF_DECIDING):
        rows = to_validate(s.family, s.campaign, decision, s.sms)
        todo = [(n, d, ids) for n, d, ids in rows if not _covers(s.journal, dtype, d, ids)]
        for i, (name, dims, ids) in enumerate(todo):
            if s.left() <= 0:
                return decision
            s.progress(i, len(todo), f"validating {_text(dims)} {dtype}")
            s.shape(VALIDATE, name, dtype, dims, ids)
        again = decide(s.family, s.campaign, s.journal, dtype, s.sms, quick=True)
        if again.named == decision.named and again.listing == decision.listing:
            return again
        decision = again
    return decision


def _covers(journal: Journal, dtype: str, dims: Shape, ids: Sequence[str]) -> bool:
    entry = journal.measured(VALIDATE, dtype, dims)
    return entry is not None and set(ids) - journal.lost_ids <= set(entry["contenders"])


def judge_twins(s: Session, dtype: str) -> Decision:
    """The variants of an element type that takes the routes of another, at a few of the shapes that each will serve."""
    decision = decide(s.family, s.campaign, s.journal, dtype, s.sms, quick=True)
    for _ in range(ROUNDS_OF_DECIDING):
        serving: dict[str, list[Shape]] = {}
        for i, c in enumerate(served(decision.listing, decision.seen)):
            serving.setdefault(decision.name(int(c)), []).append(decision.seen.shapes[i])
        for name in decision.named:
            shapes = serving.get(name) or [d for d in decision.seen.shapes if s.contenders([name], d)]
            for dims in shapes[:: max(1, len(shapes) // JUDGED)][:JUDGED]:
                if s.left() <= 0:
                    return decision
                if not s.journal.has(JUDGE, name, dims):
                    s.progress(0, None, f"judging {name} at {_text(dims)}")
                    s.shape(JUDGE, "twin", dtype, dims, [name])
        again = decide(s.family, s.campaign, s.journal, dtype, s.sms, quick=True)
        if again.named == decision.named:
            return again
        decision = again
    return decision


def work(s: Session) -> dict[str, Any]:
    """All phases; the summary that the last line of the journal holds. Raises Fault."""
    start = time.monotonic()
    whole = tune(s)
    found: dict[str, Any] = {}
    for dtype in served_dtypes(s.family, s.campaign):
        decision = judge_twins(s, dtype) if dtype in s.family.alike else prove(s, dtype)
        proved = report(s.family, s.campaign, s.journal, decision, s.sms)
        found[dtype] = {
            "routes": [
                {"variant": decision.name(r.candidate), "guard": [[c.feature, c.op, c.value] for c in r.guard],
                 "gain": round(r.gain, 4), "shapes": len(r.served)}
                for r in decision.listing.rules
            ],
            "fallback": [decision.name(c) for c in decision.listing.fallback],
            "sets": proved["sets"], "quarters_left_out": proved["quarters_left_out"], "noise": proved["noise"],
        }  # fmt: skip
    return {"complete": whole and s.left() > 0, "seconds": round(time.monotonic() - start, 1), "dtypes": found}


@dataclass(frozen=True)
class Task:
    """What processes do with a campaign: `find` knows its family by name, `work` measures and returns the summary that the last line
    of the journal holds, `lines` says it for people; `module` is what is started, as `python -m`."""

    module: str
    find: Callable[[str], Family]
    work: Callable[[Session], dict[str, Any]]
    lines: Callable[[dict[str, Any]], list[str]]


TUNING = Task("corpus.tuning.run", lambda name: family(name), work, lambda summary: lines_of(summary))


def attempt(
    directory: Path, out: Path, *, device: int = 0, budget_s: float = 600.0, progress: Progress = lambda d, t, w: None,
    hung: Callable[[str], None] = lambda name: None, env: Env | None = None, task: Task = TUNING,
) -> dict[str, Any]:  # fmt: skip
    """One process's try; returns the summary. hung: told (on another thread) who does not end, before the process does.

    Raises Fault, CakeError, OSError (a full disk: what was written stays, and a later run goes on from it).
    """
    from corpus.distributions import fresh_secret
    from corpus.gpu_buffers import open_env
    from lowering.runtime import telemetry

    campaign = campaigns.read(directory)
    chosen = task.find(campaign.family)
    journal = Journal(out, campaign.id, write=True)
    try:
        journal.blame("worker/ended")
        used = env or open_env(device)
        info = used.device.info()

        def expired() -> None:
            hung(journal.blame("worker/hung") or "")

        used.device.patience.limit(campaign.settings.hang, expired)
        starts = journal.of("start")
        secret = int(starts[0]["secret"], 16) if starts else fresh_secret()
        journal.add(
            {"kind": "start", "campaign": campaign.id, "date": now(), "secret": f"{secret:032x}", "device": _public(info.to_json()),
             "packages": _packages(), "budget_s": budget_s, "command": f"python -m {task.module} DIR OUT"}
        )  # fmt: skip
        monitor = telemetry.Monitor(info.uuid)
        monitor.start()
        session = Session(
            directory,
            campaign,
            chosen,
            journal,
            used,
            info.sms,
            secret,
            time.monotonic() + budget_s,
            budget_s,
            progress,
        )
        try:
            summary = task.work(session)
        finally:
            seen = monitor.stop()
        journal.add({"kind": "end", "date": now(), "telemetry": seen.to_json(), "faults": list(seen.faults), **summary})
        return summary
    finally:
        journal.close()


def now() -> str:
    """ISO 8601, UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _public(device: dict[str, Any]) -> dict[str, Any]:
    from corpus.bundle import public

    return public(device)


def _packages() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    out = {}
    for name in ("torch", "numpy", "cuda-bindings", "nvidia-ml-py"):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            continue
    return out


def _text(dims: Shape) -> str:
    return " ".join(f"{k}={v}" for k, v in dims.items())


def lines_of(summary: dict[str, Any]) -> list[str]:
    """The summary for people."""
    out = []
    for dtype, found in summary["dtypes"].items():
        sets = ", ".join(
            f"{n} {v['loss']:.3f} (worst {v['worst']:.2f}, {v['shapes']} shapes)" for n, v in found["sets"].items()
        )
        out.append(f"{dtype}: {len(found['routes'])} routes, noise {found['noise']:.3f}; served over best: {sets}")
        for i, r in enumerate(found["routes"]):
            guard = " and ".join(f"{a} {b} {c}" for a, b, c in r["guard"]) or "every shape"
            out.append(f"  {i}: {guard} -> {r['variant']} (x{r['gain']:.3f} on {r['shapes']} shapes)")
        out.append(f"  else {', '.join(found['fallback'])}")
    return out


# ---- processes -----------------------------------------------------------------------------------------------------


def child(directory: Path, out: Path, device: int, budget_s: float, task: Task = TUNING) -> int:
    """One try with progress on stderr; the exit code."""

    def hung(name: str) -> None:
        print(f"hung: {name or 'the device'}", file=sys.stderr, flush=True)
        os._exit(jobs.EXIT_WATCHDOG)

    last = [0.0]

    def progress(done: float, total: float | None, what: str) -> None:
        if time.monotonic() - last[0] > 5:
            last[0] = time.monotonic()
            print(f"{done:g}/{total:g} {what}" if total else what, file=sys.stderr, flush=True)

    try:
        summary = attempt(directory, out, device=device, budget_s=budget_s, progress=progress, hung=hung, task=task)
    except Fault as exc:
        print(f"lost: {exc.contender}: {exc.cause}: {exc.message}", file=sys.stderr)
        return jobs.EXIT_FAULT
    except CakeError as exc:
        print(f"error[{exc.diagnostic.rule}]: {exc.diagnostic.message}", file=sys.stderr)
        return jobs.EXIT_NO_GPU if exc.diagnostic.rule == "lowering/no-gpu" else jobs.EXIT_BAD_JOB
    except OSError as exc:
        print(f"{out} cannot be written: {exc.strerror}; what is in it is whole, run again to go on", file=sys.stderr)
        return jobs.EXIT_BAD_JOB
    said = "done" if summary["complete"] else "cut short"
    print("\n".join([f"{said} in {summary['seconds']} s", *task.lines(summary)]))
    return jobs.EXIT_OK


def supervise(directory: Path, out: Path, device: int, budget_s: float, task: Task = TUNING) -> int:
    """Start processes until one ends by itself; a candidate that a process died of is left out by the next."""
    end = time.monotonic() + budget_s
    root = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))}
    for _ in range(ATTEMPTS):
        left = max(5.0, end - time.monotonic())
        words = [
            sys.executable,
            "-m",
            task.module,
            "--child",
            "--device",
            str(device),
            "--budget",
            f"{left:.1f}",
        ]
        try:
            code = subprocess.run(
                [*words, str(directory), str(out)], check=False, timeout=left + 240, env=env
            ).returncode
        except subprocess.TimeoutExpired:
            code = jobs.EXIT_WATCHDOG
        if code not in (jobs.EXIT_WATCHDOG, jobs.EXIT_FAULT) and code >= 0:
            return code
        print(f"the process ended ({code}); going on from {out}", file=sys.stderr)
    return 1


def worker() -> int:
    """Under `server.worker`: the job on stdin, progress and the answer on stdout."""
    from corpus import gpu_main

    gpu_main.die_with_parent()
    channel = gpu_main.take_stdout()
    try:
        job = json.loads(sys.stdin.buffer.readline(1 << 20))
        directory, out = Path(job["directory"]), Path(job["out"])

        def hung(name: str) -> None:
            text = f"{name or 'the device'} did not end; it is left out of what follows"
            channel.answer({"error": {"code": "worker/hung", "message": text, "next": "", "at": {"candidate": name}}})
            os._exit(jobs.EXIT_WATCHDOG)

        summary = attempt(
            directory, out, device=int(job["device"]), budget_s=float(job["budget_s"]), hung=hung,
            progress=lambda done, total, what: channel.progress(int(done), int(total or 0), what),
        )  # fmt: skip
        channel.answer({"result": summary})
        return jobs.EXIT_OK
    except Fault as exc:
        at = {"candidate": exc.contender}
        channel.answer({"error": {"code": exc.cause, "message": exc.message, "next": "", "at": at}})
        return jobs.EXIT_FAULT
    except CakeError as exc:
        d = exc.diagnostic
        channel.answer({"error": {"code": d.rule, "message": d.message, "next": d.contract}})
        return jobs.EXIT_NO_GPU if d.rule == "lowering/no-gpu" else jobs.EXIT_BAD_JOB
    except OSError as exc:
        text = f"the journal cannot be written: {exc.strerror}"
        channel.answer({"error": {"code": "storage/full", "message": text, "next": "free space; run again to go on"}})
        return jobs.EXIT_BAD_JOB
    except Exception as exc:  # the answer must be coded whatever happened; the trace goes to the log
        traceback.print_exc()
        text = f"the worker failed unexpectedly: {type(exc).__name__}"
        channel.answer({"error": {"code": "internal/unexpected", "message": text, "next": "see the log; report it"}})
        return jobs.EXIT_INTERNAL


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    words = sys.argv[1:] if argv is None else argv
    return command(words, TUNING, __doc__) if words else worker()


def command(words: Sequence[str], task: Task, about: str | None) -> int:
    """`DIR OUT [--device N] [--budget SECONDS]`, and `--child` where a process is told to be one try."""
    p = argparse.ArgumentParser(prog=task.module, description=about)
    p.add_argument("directory", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("--device", type=int, default=0)
    p.add_argument("--budget", type=float, default=600.0, help="seconds for everything")
    p.add_argument("--child", action="store_true", help="one try in this process")
    a = p.parse_args(words)
    if not a.out.resolve().parent.is_dir():
        p.error(f"{a.out.parent} is not a directory")
    return (child if a.child else supervise)(a.directory, a.out, a.device, a.budget, task)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # skip interpreter teardown: destructors of a broken context may block
    os._exit(code)
