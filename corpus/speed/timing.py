"""Contenders and their interleaved timing: `lowering.runtime.bench` with an idle gap before each sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corpus.gpu_bench import peak_flops
from corpus.gpu_buffers import Env
from corpus.speed.model import Program, Row, Time

ROUNDS = 9
"""Nine: the first is left out of the comparison, eight are the fewest for an interval of 99 %."""

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
    base: dict[str, Any] = {"shape": dict(shape), "layout": layout, "group": group, "flops": flops}
    if isinstance(ours, str):
        base["refused"] = ours
    else:
        base["programs"] = ours.programs
    info = env.device.info()
    peak = peak_flops(info.compute_capability[0], "bf16", info.sms, info.sm_clock_mhz)
    floor = flops / peak * 1e6 * per if peak else None
    idle = (lambda number: time.sleep(pace.idle_s)) if pace.idle_s else None
    settings = bench.Settings(
        rounds=pace.rounds, batch_ms=pace.batch_ms, warmup_ms=pace.warmup_ms, warmup_limit_s=2.0, stable=0.1, graph=pace.graph,
    )  # fmt: skip
    candidates = [bench.Candidate(c.name, [c.run], floor if c.computes else None, c.kernels, idle) for c in contenders]
    result = bench.bench(env.device, candidates, settings, env.stream)
    compared = {} if isinstance(ours, str) else {c.baseline: c for c in result.comparisons}
    times = []
    faults = list(result.faults)
    for c, t in zip(contenders, result.timings, strict=True):
        checked = c.check() if c.check else {}
        # of ours a wrong result voids the row; of another it is told, and the time stands
        if checked and not checked["ok"] and c.name == OURS:
            faults.append(f"the outputs are wrong: {checked}")
        more: dict[str, Any] = {}
        if c.name in compared and c.computes:
            v = compared[c.name]
            more = {"ratio": v.ratio, "ratio_interval": (v.low, v.high), "verdict": v.verdict}
        times.append(
            Time(
                name=c.name, us=t.summary.median / per, samples_us=tuple(round(s / per, 4) for s in t.samples_us), batch=t.batch,
                cv=t.summary.cv, sm_mhz=t.sm_mhz, versions=dict(c.versions), detail=c.detail, computes=c.computes, checked=checked,
                **more,
            )
        )  # fmt: skip
    mine = None if isinstance(ours, str) else times[0]
    rest = sorted(times if mine is None else times[1:], key=lambda t: t.us)
    seen = result.telemetry or {}
    kept = (
        "sm_mhz_min",
        "sm_mhz_mean",
        "power_w_mean",
        "temperature_c_max",
        "reasons",
        "other_processes",
        "unavailable",
    )
    return Row(
        **base, ours=mine, against=tuple(rest), method=result.method, faults=tuple(faults), notes=tuple(result.notes),
        conditions={k: seen[k] for k in kept if k in seen},
    )  # fmt: skip
