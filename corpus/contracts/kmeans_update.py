"""k-means update: the mean of each cluster's points, its squared norm, its size, and how far the centroids moved."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from corpus.arrays import Array, Math
from corpus.compare import Verdict, compare, merge
from corpus.contract import Contract, Expected, Gen, Shape, TensorSpec, gamma

CAP = 2.0**-7
"""Greatest share of the largest magnitude that accumulation may cost."""

STAY = 2.0**-17
"""A mean that lies between two roundings may be given as the one that it was before, if that is farther by so much of the mean."""


def _sums(m: Math, t: dict[str, Array]) -> tuple[Array, Array, Array]:
    """(sums [B * C, D], sums of magnitudes, sizes [B * C, 1]) in float64."""
    batches, _, _ = t["x"].shape
    count = t["c"].shape[1]
    sums: list[Array] = []
    for b in range(batches):
        label = m.i64(t["label"][b])
        inside = (label >= 0) & (label < count)
        to = m.where(inside, label + b * count, batches * count)
        x = m.f64(t["x"][b])
        parts = [m.sum_rows(a, to, batches * count + 1) for a in (x, m.abs(x), m.f64(inside)[:, None])]
        sums = [a + p for a, p in zip(sums, parts, strict=True)] if sums else parts
    return tuple(a[: batches * count] for a in sums)  # type: ignore[return-value]


def _judge(dtype: str) -> Callable[..., Verdict]:
    def judge(m: Math, t: dict[str, Array], out: dict[str, Array], s: dict[str, float]) -> Verdict:
        """The means against float64; norms and moves against the means that were written; sizes exactly."""
        batches, count, width = t["c"].shape
        total, magnitude, size = _sums(m, t)
        old = m.f64(t["c"]).reshape(batches * count, width)
        going = m.f64(t["before"]) > m.f64(t["tol"])
        size_of = size.reshape(batches, count)
        live = m.where(going[:, None], size_of, 0.0).reshape(batches * count, 1)
        n = m.maximum(live, 1.0)
        exact = m.where(live > 0.0, total / n, old)
        # gamma of as many terms as the cluster has points; the reciprocal of the size costs 2**-22
        each = m.maximum(m.maximum(2.0 * m.sqrt(n), n / 8.0), 8.0) * 2.0**-23
        extra = m.where(live > 0.0, each * magnitude / n + (2.0**-21 + STAY) * m.abs(exact) + 2.0**-125, 0.0)
        shape = (batches, count, width)
        mean = Expected(exact.reshape(*shape), (magnitude / n).reshape(*shape), extra=extra.reshape(*shape))
        got = m.f64(out["mean"])
        norm = m.sum(got * got)
        gap = got - m.f64(t["c"])
        moved = m.where(going, m.max(m.sqrt(m.sum(gap * gap))), m.f64(t["before"]))
        # squares below the least normal number are lost: 2**-126 each, under the root 2**-63
        lost = 2.0**-62 * math.sqrt(width)
        slack = 2.0**-20 + gamma(width)
        return merge([
            compare(m, "size", Expected(size_of), out["size"], "i32", CAP),
            compare(m, "mean", mean, out["mean"], dtype, CAP),
            compare(m, "mean_sq", Expected(norm, length=width, extra=0.0 * norm + width * 2.0**-125), out["mean_sq"], "f32", CAP),
            compare(m, "shift", Expected(moved, extra=moved * slack + lost), out["shift"], "f32", CAP),
        ])  # fmt: skip

    return judge


def solution(t: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Means, norms, sizes and moves in float64, each rounded once."""
    m = Math()
    batches, count, width = t["c"].shape
    total, _, size = _sums(m, t)
    old = t["c"].astype(np.float64).reshape(batches * count, width)
    going = t["before"] > t["tol"]
    live = np.where(going[:, None], size.reshape(batches, count), 0).reshape(batches * count, 1)
    mean = (
        np.where(live > 0, total / np.maximum(live, 1.0), old)
        .reshape(t["c"].shape)
        .astype(np.float32)
        .astype(t["c"].dtype)
    )
    wide = mean.astype(np.float64)
    gap = np.sqrt(np.sum((wide - t["c"].astype(np.float64)) ** 2, axis=-1))
    return {
        "mean": mean, "mean_sq": np.sum(wide * wide, axis=-1).astype(np.float32),
        "size": size.reshape(batches, count).astype(np.int32), "shift": np.where(going, gap.max(axis=1), t["before"]).astype(np.float32),
    }  # fmt: skip


def generate(g: Gen) -> dict[str, np.ndarray]:
    """Points and centroids of the distribution; labels are even, skewed, sorted, all equal, a few clusters only, or of nobody.

    Points of no cluster have -1 or the number of clusters. Two distributions have problems that have converged.
    """
    batches, points, count = (g.shape[d] for d in "BNC")
    r = g.rng("label")
    shape = (batches, points)
    kind = g.distribution
    label = r.integers(count, size=shape)
    if kind in ("ones", "near_max"):
        label[:] = count // 2
    elif kind in ("uniform", "log_uniform"):  # half of the points in one cluster, the rest in clusters that grow rare
        rare = np.minimum(r.geometric(0.1, size=shape) - 1, count - 1)
        label = np.where(r.random(shape) < 0.5, count - 1, rare)
    elif kind in ("sorted", "subnormal"):
        label = np.sort(label, axis=1)
    elif kind in ("duplicates", "permuted"):
        label = label // 3
    elif kind in ("outlier", "alternating"):
        label = r.integers(-1, count + 1, size=shape)
    elif kind == "zeros":
        label = np.where(r.random(shape) < 0.5, -1, count)
    tol = r.random(batches, dtype=np.float32)
    before = np.full(batches, np.finfo(np.float32).max)
    if kind in ("small_int", "alternating"):
        before = (tol * r.choice(np.array([0.5, 1.0, 1.5], np.float32), batches)).astype(np.float32)
    return {"x": g.draw("x"), "label": label.astype(np.int32), "c": g.draw("c", "normal"), "before": before, "tol": tol}


def flops(shape: Shape) -> float:
    """One addition for each element of x."""
    return float(shape["B"] * shape["N"] * shape["D"])


def _s(b: int, n: int, c: int, d: int) -> Shape:
    return {"B": b, "N": n, "C": c, "D": d}


def _contract(name: str, dtype: str, limit: float) -> Contract:
    return Contract(
        name=name,
        summary="mean[b, k] = mean of the points with label k, or c[b, k] when there are none or before[b] <= tol[b]; their norms, "
        "sizes and the greatest distance between mean and c (before[b] where that is at most tol[b]): "
        f"x[B, N, D], c[B, C, D] {dtype}, label i32.",
        dims={"B": "independent problems", "N": "points", "C": "centroids", "D": "features"},
        tensors=(
            TensorSpec("x", "in", dtype, ("B", "N", "D"), "points"),
            TensorSpec("label", "in", "i32", ("B", "N"), "cluster of each point; outside 0 .. C - 1: of none"),
            TensorSpec("c", "in", dtype, ("B", "C", "D"), "centroids before"),
            TensorSpec("before", "in", "f32", ("B",), "shift of the last update, a huge number at first"),
            TensorSpec("tol", "in", "f32", ("B",), "a problem whose last shift is at most this has converged"),
            TensorSpec("mean", "out", dtype, ("B", "C", "D"), "centroids after"),
            TensorSpec("mean_sq", "out", "f32", ("B", "C"), f"squared norms of the {dtype} centroids after"),
            TensorSpec("size", "out", "i32", ("B", "C"), "points of each cluster"),
            TensorSpec("shift", "out", "f32", ("B",), "greatest distance that a centroid moved now, or `before`"),
        ),
        oracle=None,
        judge=_judge(dtype),
        solution=solution,
        generate=generate,
        flops=flops,
        limit=limit,
        least={"C": 1},
        cap=CAP,
        precision="Sums in f32 in any order, rounded once to the centroids' type after the division; between two roundings that differ in "
        "distance by no more than 2**-17 of the mean the old centroid may stay. Norms and distances are those of the rounded centroids.",
        shapes={
            "tuning": (_s(32, 65536, 1024, 128), _s(1, 1000000, 1024, 128), _s(8, 8192, 512, 128), _s(1, 262144, 4096, 128),
                       _s(8, 131072, 1000, 128)),
            "heldout": (_s(1, 262144, 4096, 256), _s(7, 2432, 1024, 128), _s(1, 512, 8192, 288), _s(3, 10007, 777, 120),
                        _s(4, 8192, 1024, 112)),
            "boundary": (_s(1, 1, 1, 8), _s(1, 127, 5, 64), _s(2, 300, 3, 24), _s(1, 600, 130, 16), _s(1, 530, 2, 128)),
        },
        flop_unit="f32",
    )  # fmt: skip


CONTRACT = _contract("kmeans_update", "bf16", 2.0**40)
CONTRACTS = (CONTRACT, _contract("kmeans_update_f16", "f16", 2.0**15))
