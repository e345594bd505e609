"""The timeline of one shape on a device: the instrumented kernel beside the plain one, then one recorded launch.

Both forms are timed interleaved in one run; their results must agree bit by bit. The recorded launch follows warm launches
of the plain kernel on the same stream, after a short recording that only tells how fast the SM clock runs in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cake_ir.diagnostics import CakeError
from corpus.contract import Case, Contract
from corpus.gpu_buffers import Buffers, Env, Run
from corpus.gpu_check import Trial, allocate, launcher
from corpus.jobs import Instrumented, Job, Launch
from lowering import timeline as tl

BUDGET = 160 << 20
"""Bytes of one recording on the device."""

CAPACITY = 1 << 14
"""Words of one block, as far as the budget goes: a persistent GEMM of 8192 x 4096 x 14336 makes about 7,000."""

CALIBRATION_US = 20_000.0
"""Between the two readings of the clocks: %globaltimer may tick once in a microsecond only."""

ROUNDS, BATCH_MS = 15, 4.0


@dataclass
class Recording:
    """One instrumented launch with memory of its own, in which the buffer starts at `offset`."""

    step: Run
    memory: Any
    shape: tl.Shape
    table: dict[str, Any]
    offset: int

    @staticmethod
    def of(
        env: Env, job: Job, form: Instrumented, pointers: Mapping[str, int], memory: Any, shape: tl.Shape
    ) -> Recording:
        """Bind an instrumented plan to `memory`, which holds `shape` and one block more."""
        offset = -memory.pointer % shape.align
        plan = tl.sized(form.plan, shape)
        step = env.prepare(
            job.cubin(str(plan.get("cubin_sha256"))), plan, {**pointers, tl.POINTER: memory.pointer + offset}
        )
        return Recording(step, memory, shape, form.table, offset)

    def tracks(self) -> list[tl.Track]:
        """What it holds."""
        return list(tl.tracks_of(self.bytes(), self.table, self.shape))

    def bytes(self) -> Any:
        """The buffer's contents."""
        return self._memory()[self.offset : self.offset + self.shape.nbytes]

    def damaged(self) -> bool:
        """Whether anything around the buffer was written."""
        raw = self._memory()
        return bool(raw[: self.offset].any() or raw[self.offset + self.shape.nbytes :].any() or self.memory.damage())

    def _memory(self) -> Any:
        import numpy as np

        raw = np.zeros(self.memory.nbytes, np.uint8)
        self.memory.read_into(raw)
        return raw


def timeline(env: Env, job: Job, contract: Contract, launch: Launch, secret: int) -> dict[str, Any]:
    """The Timeline JSON of docs/measuring.md for one launch, or {"unavailable": reason}. Of a program with several kernels it
    is the timeline of the one that takes longest; `kernels` lists them all."""
    if not launch.timeline or len(launch.timeline) != len(launch.plans):
        return {"unavailable": "the job carries no instrumented kernel for this shape"}
    buffers = allocate(env, contract, launch)
    recordings: list[Recording] = []
    try:
        case = Case(launch.shape, contract.bench_distribution, job.seed, secret, launch.dtypes)
        plain = launcher(env, job, launch, buffers.pointers)
        trial = Trial(buffers, contract, launch, case, contract.inputs(case), plain)
        for form in launch.timeline:
            for capacity in (1, CAPACITY):  # a small one to read the clocks, and the recording
                shape = tl.fit(form.table, int(form.plan["grid"]), BUDGET // len(launch.plans), capacity)
                recordings.append(Recording.of(env, job, form, buffers.pointers, _zeroed(env, shape), shape))
        return _record(env, launch, trial, plain, recordings)
    except CakeError as exc:
        if exc.diagnostic.rule not in ("lowering/out-of-memory", "lowering/bad-timeline"):
            raise
        return {"unavailable": exc.diagnostic.message}
    finally:
        for r in recordings:
            r.memory.free(ignore_errors=True)
        buffers.close()


def _zeroed(env: Env, shape: tl.Shape) -> Any:
    memory = env.device.alloc(shape.nbytes + shape.align)
    memory.poison(0)
    return memory


def _record(env: Env, launch: Launch, trial: Trial, plain: Run, recordings: list[Recording]) -> dict[str, Any]:
    clocks, full = recordings[::2], recordings[1::2]
    instrumented = _sequence([r.step for r in full])
    changed = _changed(trial, plain, instrumented, bool(launch.unordered))
    if changed:
        return {"unavailable": f"the instrumented kernel computes other bits than the plain one: {changed}"}
    plain_us, instrumented_us = times(env, plain, instrumented)
    for r in recordings:
        if r.damaged():
            return {"unavailable": "the instrumented kernel wrote outside its timeline's buffer"}
        r.memory.poison(0)
    trial.reset(0)
    _sequence([r.step for r in clocks])(env.stream)
    for _ in range(max(3, min(2000, round(CALIBRATION_US / max(plain_us, 1.0))))):
        plain(env.stream)
    begin, end = env.device.event(), env.device.event()
    begin.record(env.stream)
    instrumented(env.stream)
    end.record(env.stream)
    env.sync()
    recorded_us = end.ms_since(begin) * 1000
    begin.close()
    end.close()
    decoded: list[tl.Timeline] = []
    for short, r in zip(clocks, full, strict=True):
        ghz = tl.clock_ghz(r.tracks(), short.tracks())
        decoded.append(tl.decode(r.bytes(), r.table, r.shape, slots=_slots(r.step), ghz=ghz))
    longest = max(decoded, key=lambda t: t.kernel_us)
    out = longest.timed(plain_us, instrumented_us, recorded_us).to_json()
    out["notes"] = _notes(longest, plain, full[decoded.index(longest)])
    if len(decoded) > 1:
        out["kernels"] = [{"kernel": t.kernel, "kernel_us": t.kernel_us} for t in decoded]
    return out


def _changed(trial: Trial, plain: Run, instrumented: Run, unordered: bool) -> str:
    """The first output in which the two forms differ bitwise, or nothing. Sums in no fixed order are not compared."""
    b = trial.buffers
    for name, values in trial.inputs.items():
        b.load(name, values)
    b.env.sync()
    results: list[dict[str, Any]] = []
    for i, run in enumerate((plain, instrumented)):
        trial.reset(i)
        run(b.env.stream)
        b.env.sync()
        results.append(_snapshots(b, trial.contract))
    if unordered:
        return ""
    return next((n for n in results[0] if not b.same(results[0][n], results[1][n])), "")


def _snapshots(b: Buffers, contract: Contract) -> dict[str, Any]:
    return {t.name: b.snapshot(t.name) for t in contract.outputs}


def times(env: Env, plain: Run, instrumented: Run) -> tuple[float, float]:
    """Microseconds of one launch of each, timed interleaved in one run (medians)."""
    from lowering.runtime.bench import Candidate, Settings, bench

    found = bench(
        env.device, [Candidate("plain", [plain]), Candidate("instrumented", [instrumented])],
        Settings(rounds=ROUNDS, batch_ms=BATCH_MS, monitor=False), env.stream,
    )  # fmt: skip
    a, b = (t.summary.median for t in found.timings)
    return a, b


def _sequence(steps: list[Run]) -> Run:
    def run(stream: int) -> None:
        for step in steps:
            step(stream)

    return steps[0] if len(steps) == 1 else run


def _slots(step: Any) -> int | None:
    """CTAs that the device holds at once."""
    resident: Callable[[], int] | None = getattr(step, "max_clusters", None)
    return resident() * int(step.plan.cluster) if resident is not None else None


def _notes(found: tl.Timeline, plain: Run, recorded: Recording) -> list[str]:
    notes = []
    if found.dropped:
        notes.append(
            f"{found.dropped} records or so are lost: a ring holds {recorded.shape.capacity // 2}, the oldest were overwritten"
        )
    if recorded.shape.stride > 1:
        notes.append(f"one CTA in {recorded.shape.stride} was recorded; times per role are scaled up")
    before, after = _slots(plain), _slots(recorded.step)
    if before and after and before != after:
        notes.append(f"the instrumented form fits the device {after} times at once, the plain one {before} times")
    return notes
