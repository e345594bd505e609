"""Contenders and their interleaved timing: `lowering.runtime.bench` with an idle gap before each sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corpus.gpu_bench import peak_flops
from corpus.gpu_buffers import Env
from corpus.speed.model import Program, Row, Time
from lowering.runtime import stats

ROUNDS = 9
"""Nine: the first is left out of the comparison, eight are the fewest for an interval of 99 %."""

WARM_CALLS = 3
"""Untimed rounds of wall times."""

CONDITIONS = (
    "sm_mhz_min", "sm_mhz_mean", "power_w_mean", "temperature_c_max", "reasons", "other_processes", "unavailable",
)  # fmt: skip
"""What a row keeps of the telemetry of its run."""

OURS = "cake"


@dataclass
class Contender:
    """Something that computes one shape. run(stream) only enqueues. output(): the tensor it wrote last.

    kernels: how many kernels one run enqueues, if declared. computes False: a yardstick, not the same work; flops are then its
    own. check() -> what the float64 check of one more run from poisoned outputs found.
    """

    name: str
    run: Callable[[int], Any]
    check: Callable[[], dict[str, Any]] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    detail: str = ""
    programs: tuple[Program, ...] = ()
    kernels: int | None = None
    computes: bool = True
    keep: Any = None


@dataclass(frozen=True)
class Measured:
    """The samples of one contender and their summary, in µs."""

    us: float
    samples_us: tuple[float, ...]
    batch: int
    cv: float | None = None
    sm_mhz: float | None = None


@dataclass(frozen=True)
class Pace:
    """How long: idle_s before each sample (clocks recover from the contender before), batch_ms of a sample, rounds."""

    rounds: int = ROUNDS
    batch_ms: float = 2.0
    idle_s: float = 0.0
    warmup_ms: float = 5.0
    graph: bool = True


def row(
    env: Env, shape: Mapping[str, int], ours: Contender | str, others: Sequence[Contender], pace: Pace, *,
    flops: float = 0.0, layout: str = "", group: str = "", per: int = 1,
) -> Row:  # fmt: skip
    """Time all contenders of one shape together, then check each. ours: a reason (str) where Cake does not serve the shape.

    per: how many units (iterations) one run is; times are per unit.
    """
    from lowering.runtime import bench

    contenders = [*([] if isinstance(ours, str) else [ours]), *others]
    info = env.device.info()
    peak = peak_flops(info.compute_capability[0], "bf16", info.sms, info.sm_clock_mhz)
    floor = flops / peak * 1e6 * per if peak else None
    idle = (lambda number: time.sleep(pace.idle_s)) if pace.idle_s else None
    settings = bench.Settings(
        rounds=pace.rounds, batch_ms=pace.batch_ms, warmup_ms=pace.warmup_ms, warmup_limit_s=2.0, stable=0.1, graph=pace.graph,
    )  # fmt: skip
    candidates = [bench.Candidate(c.name, [c.run], floor if c.computes else None, c.kernels, idle) for c in contenders]
    result = bench.bench(env.device, candidates, settings, env.stream)
    measured = [
        Measured(t.summary.median / per, tuple(x / per for x in t.samples_us), t.batch, t.summary.cv, t.sm_mhz)
        for t in result.timings
    ]
    seen = result.telemetry or {}
    return _row(
        shape, ours, contenders, measured, result.faults, layout=layout, group=group, flops=flops, method=result.method,
        notes=tuple(result.notes), conditions={k: seen[k] for k in CONDITIONS if k in seen},
    )  # fmt: skip


def wall_row(
    env: Env, shape: Mapping[str, int], ours: Contender | str, others: Sequence[Contender], *, calls: int, rounds: int = 21,
    wait: bool = True, flops: float = 0.0, group: str = "",
) -> Row:  # fmt: skip
    """Wall time per call, host work included: `calls` calls in a row, then (wait) until the device is done; interleaved.

    wait False: the time in which the calls return, what they enqueued is waited for outside.
    """
    contenders = [*([] if isinstance(ours, str) else [ours]), *others]
    samples: list[list[float]] = [[] for _ in contenders]
    for number in range(-WARM_CALLS, rounds):
        order = range(len(contenders))
        for i in order if number % 2 == 0 else reversed(order):
            env.sync()
            start = time.perf_counter()
            for _ in range(calls):
                contenders[i].run(env.stream)
            if wait:
                env.sync()
            took = time.perf_counter() - start
            if number >= 0:
                samples[i].append(took * 1e6 / calls)
    env.sync()
    measured = [Measured(stats.median(s), tuple(s), calls, stats.cv(s)) for s in samples]
    method = "wall" if wait else "host"
    return _row(shape, ours, contenders, measured, (), group=group, flops=flops, method=method)


def _row(
    shape: Mapping[str, int], ours: Contender | str, contenders: Sequence[Contender], measured: Sequence[Measured],
    faults: Sequence[str], **more: Any,
) -> Row:  # fmt: skip
    """The record; contenders begin with ours where it is one."""
    found = list(faults)
    times = _times(contenders, measured, found)
    if isinstance(ours, str):
        more["refused"] = ours
    else:
        more |= {"programs": ours.programs, "ours": times.pop(0)}
    return Row(shape=dict(shape), against=tuple(sorted(times, key=lambda t: t.us)), faults=tuple(found), **more)


def _times(contenders: Sequence[Contender], measured: Sequence[Measured], faults: list[str]) -> list[Time]:
    """Records of all contenders, each compared with ours where there is one (the first), each checked."""
    mine = measured[0] if contenders and contenders[0].name == OURS else None
    out = []
    for c, t in zip(contenders, measured, strict=True):
        checked = c.check() if c.check else {}
        # of ours a wrong result voids the row; of another it is told, and the time stands
        if checked and not checked["ok"] and c.name == OURS:
            faults.append(f"the outputs are wrong: {checked}")
        more: dict[str, Any] = {}
        if mine is not None and c.name != OURS and c.computes:
            clocks = mine.sm_mhz / t.sm_mhz if mine.sm_mhz and t.sm_mhz else None
            v = stats.compare(c.name, t.samples_us, mine.samples_us, clocks)
            more = {"ratio": v.ratio, "ratio_interval": (v.low, v.high), "verdict": v.verdict}
        out.append(
            Time(
                name=c.name, us=t.us, samples_us=tuple(round(s, 4) for s in t.samples_us), batch=t.batch, cv=t.cv,
                sm_mhz=t.sm_mhz, versions=dict(c.versions), detail=c.detail, computes=c.computes, checked=checked, **more,
            )
        )  # fmt: skip
    return out
