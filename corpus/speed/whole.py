"""Tables of whole calls through the public interface `cake_mcp`: iterations, calls with their host work, the host path."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from corpus.baselines import lloyd
from corpus.contract import Shape
from corpus.speed import cute, fresh, labels, means
from corpus.speed.model import Row, Time
from corpus.speed.timing import OURS, Contender, Pace, row, wall_row

if TYPE_CHECKING:
    from corpus.speed.tables import Session

ITERATIONS = 10
"""Of one call of a whole k-means."""

CALLS = 10
"""Public calls in a row whose wall time is taken."""

ENQUEUED = 64
"""Calls in a row whose return is timed: fewer than a stream's queue holds, so that none waits for the device."""

FRESH_ROUNDS = 2
LOOP_ROUNDS = 9

LONG = Pace(batch_ms=3.0, idle_s=0.1, warmup_ms=5.0, graph=False)
"""Without a graph: the loops allocate, and some wait for the device, which a graph cannot hold."""

ASSIGN, LOOP = "one assignment", "ten iterations"


def iteration(s: Session) -> Iterator[Row]:
    """Device time of an iteration on the large shapes, in calls of ITERATIONS."""
    for shape in s.large_shapes():
        t = s.points(shape)
        others = _loops(s, shape, t)
        flops = s.known["kmeans_assign"].flops(shape)
        yield row(s.env, shape, _iterations(s, shape, t), others, LONG, flops=flops, per=ITERATIONS)


def calls(s: Session) -> Iterator[Row]:
    """Wall time per call on small shapes: ten assignments, and one k-means of ten iterations."""
    for shape in s.small_shapes():
        t = s.points(shape)
        yield wall_row(s.env, shape, _assign(s, shape, t), _assigns(s, t), calls=CALLS, group=ASSIGN)
        yield wall_row(s.env, shape, _loop(s, shape, t), _loops(s, shape, t), calls=1, rounds=LOOP_ROUNDS, group=LOOP)


def host(s: Session) -> Iterator[Row]:
    """What calls cost the host: until a call returns, the first call of a process, the import."""
    shape = fresh.SHAPE
    t = s.points(shape)
    yield wall_row(
        s.env, shape, _assign(s, shape, t), _assigns(s, t), calls=ENQUEUED, wait=False, group="until the call returns"
    )
    found = fresh.sample(list(fresh.LOADERS), FRESH_ROUNDS)
    for what, group in (("import", "import, after torch's"), ("first", "first call of a process")):
        times = {n: v[what] for n, v in found.items()}
        mine = times.pop(OURS, None)
        yield Row(
            shape=shape, group=group, method="host", refused="" if mine else "it did not run",
            ours=_plain(OURS, mine, None) if mine else None, against=tuple(_plain(n, v, mine) for n, v in times.items()),
        )  # fmt: skip


def _plain(name: str, samples: list[float], mine: list[float] | None) -> Time:
    """Too few samples for an interval: the ratio of medians, without a verdict."""
    us = statistics.median(samples)
    return Time(name=name, us=us, samples_us=tuple(samples), ratio=us / statistics.median(mine) if mine else None)


def _assign(s: Session, shape: Shape, t: Mapping[str, Any]) -> Contender | str:
    def judge(label: Any) -> dict[str, Any]:
        return labels.check(s.math, t["x"], t["c"], t["c_sq"], label)

    return s.own(s.product.assign(shape, t), t["label"], judge)


def _assigns(s: Session, t: Mapping[str, Any]) -> list[Contender]:
    from corpus.speed.tables import TRITON

    def judge(label: Any) -> dict[str, Any]:
        return labels.check(s.math, t["x"], t["c"], t["c_sq"], label)

    return [c for name in TRITON if (c := s.baseline(name, t, "label", judge)) is not None]


def _loop(s: Session, shape: Shape, t: Mapping[str, Any]) -> Contender | str:
    made = s.product.kmeans(shape, t, ITERATIONS)
    if isinstance(made, str):
        return made

    def check() -> dict[str, Any]:
        done = s.product.mcp.kmeans(t["x"], init=t["c"], max_iter=ITERATIONS, tol=-1.0)
        s.env.sync()
        # its labels are those of its centroids
        return labels.check(s.math, t["x"], done.centroids, done.centroids.double().square().sum(-1), done.labels)

    made.check = check
    return made


def _iterations(s: Session, shape: Shape, t: Mapping[str, Any]) -> Contender | str:
    made = s.product.iterate(shape, s.torch, t, ITERATIONS)
    if isinstance(made, str):
        return made

    def check() -> dict[str, Any]:
        found, centroids = s.product.step(s.torch, t)(1)
        s.env.sync()
        return _judged(s, t, found, centroids)

    made.check = check
    return made


def _loops(s: Session, shape: Shape, t: Mapping[str, Any]) -> list[Contender]:
    """The loops of the libraries. Each goes on from where its last call ended, which copies nothing inside the time."""
    found = []
    for known in lloyd.LLOYD:
        why = known.unavailable()
        if why is None:
            found.append(_lloyd(t, known.name, known.run, known.versions()))
        else:
            s.unavailable[known.name] = why
    fastest = s.cute_launch(shape, t)
    if fastest is not None:
        kernel, detail = fastest

        def assign(x: Any, c: Any, c_sq: Any, label: Any) -> None:
            # a launch is bound to addresses: a handful, since the loop's buffers return
            kernel.bind(*(v.data_ptr() for v in (x, c, c_sq, label)))(s.torch.cuda.current_stream().cuda_stream)

        versions = s.library.versions if s.library is not None else {}
        found.append(_lloyd(t, cute.NAME, lloyd.flashlib_cute(assign), versions, detail))
    return found


def _lloyd(
    t: Mapping[str, Any], name: str, run: lloyd.Iterate, versions: Mapping[str, str], detail: str = ""
) -> Contender:
    x, own = t["x"], t["c"].clone()
    return Contender(name, lambda _: run(x, own, ITERATIONS), versions=versions, detail=detail)


def _judged(s: Session, t: Mapping[str, Any], found: Any, centroids: Any) -> dict[str, Any]:
    """Labels against the given centroids, then the new centroids against the means of those labels."""
    index = s.torch.arange(t["c"].shape[1], device="cuda")
    first = labels.check(s.math, t["x"], t["c"], t["c_sq"], found)
    second = means.check(s.math, t["x"], t["c"], found, centroids, index)
    return {**first, "elements": second["elements"], "wrong_means": second["wrong"], "worst_mean": second["worst"],
            "ok": first["ok"] and second["ok"]}  # fmt: skip
