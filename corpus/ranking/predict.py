"""What the cost model says of measured points: as it is, with each of its terms taken out in turn, and a roofline alone."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from corpus.contract import contracts
from corpus.families import Member
from corpus.ranking.points import Point, Points

WHOLE = "none"
"""The model with nothing taken out."""
ROOFLINE = "roofline"
"""The largest of the times that each resource needs if nothing else cost anything."""
SAID = {WHOLE: "the whole model", ROOFLINE: "a roofline alone"}
"""What is said of these; of a term that it is left out."""
PROCESSES = 2
FEW = 40
"""Candidates below which no processes are started for them."""


@dataclass(frozen=True)
class Prediction:
    """Microseconds; low and high: the interval, None where the model claims none."""

    us: float
    low: float | None = None
    high: float | None = None
    bound_class: str = ""


@dataclass(frozen=True)
class _Task:
    """One candidate at its shapes."""

    kernel: str
    bindings: Mapping[str, Any]
    contract: str
    target: str
    device: str
    l2: str
    shapes: tuple[tuple[tuple[str, int], ...], ...]
    ablations: tuple[str, ...]


Key = tuple[str, tuple[tuple[str, int], ...], str]


def ablations() -> tuple[str, ...]:
    """What is taken out, in order: nothing, each term, everything but the resources' rates."""
    from analyses.cost.terms import TERMS

    return (WHOLE, *TERMS, ROOFLINE)


def predict(
    found: Points, points: Iterable[Point], wanted: Sequence[str] = (WHOLE,), processes: int = PROCESSES
) -> dict[str, dict[Key, Prediction]]:
    """ablation -> point -> prediction, on the device that the points were measured on, as they were measured (`l2`).

    Raises CakeError for a text that does not bind any more or a shape that it does not take: leave stale points out
    (`corpus.ranking.points.usable`).
    """
    by_candidate: dict[tuple[str, str], list[Point]] = {}
    for p in points:
        by_candidate.setdefault((p.workload, p.id), []).append(p)
    tasks = [
        _Task(
            ps[0].kernel, ps[0].bindings, found.workloads[name].contract, found.target, found.device, found.l2,
            tuple(p.shape for p in ps), tuple(wanted),
        )
        for (name, _), ps in by_candidate.items()
    ]  # fmt: skip
    if processes < 2 or len(tasks) < FEW:
        answers = list(map(_one, tasks))
    else:
        with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
            answers = list(pool.map(_one, tasks, chunksize=4))
    out: dict[str, dict[Key, Prediction]] = {w: {} for w in wanted}
    for ps, answer in zip(by_candidate.values(), answers, strict=True):
        for p, said in zip(ps, answer, strict=True):
            for w, prediction in zip(wanted, said, strict=True):
                out[w][p.key] = prediction
    return out


@functools.cache
def _source(kernel: str, target: str) -> Any:
    from corpus.tuning.candidates import member_source

    return member_source(Member(kernel), target)


def _one(task: _Task) -> list[list[Prediction]]:
    from corpus import executable

    source = _source(task.kernel, task.target)
    subject = executable.load(source.file, dict(task.bindings), task.target, source.entry.kernel)
    contract = contracts()[task.contract]
    return [[_ablated(subject, contract, dict(s), task, a) for a in task.ablations] for s in task.shapes]


def _ablated(subject: Any, contract: Any, shape: dict[str, int], task: _Task, ablation: str) -> Prediction:
    without = frozenset() if ablation in (WHOLE, ROOFLINE) else frozenset({ablation})
    parts = subject.estimates(contract, shape, task.device, l2=task.l2, without=without, explain=False)
    if ablation == ROOFLINE:
        return Prediction(sum(max(e.bounds_us.values()) for e in parts))
    longest = max(parts, key=lambda e: e.time_us)
    claimed = all(e.low_us is not None and e.high_us is not None for e in parts)
    return Prediction(
        sum(e.time_us for e in parts), sum(e.low_us for e in parts) if claimed else None,
        sum(e.high_us for e in parts) if claimed else None, longest.bound_class,
    )  # fmt: skip
