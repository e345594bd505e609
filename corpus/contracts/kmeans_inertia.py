"""Inertia of a clustering: the sum of squared distances of points from the centroids of their clusters."""

from __future__ import annotations

import numpy as np

from corpus.arrays import Array, Math
from corpus.contract import Contract, Expected, Gen, Shape, TensorSpec, gamma


def _distances(m: Math, t: dict[str, Array], b: int) -> Array:
    """Squared distance of each point of a problem in float64; 0 for points of no cluster."""
    count = t["c"].shape[1]
    label = m.i64(t["label"][b])
    inside = (label >= 0) & (label < count)
    rows = m.where(inside, label, 0)
    gap = m.f64(t["x"][b]) - m.f64(t["c"][b])[rows]
    return m.where(inside, m.sum(gap * gap), 0.0)


def oracle(m: Math, t: dict[str, Array], s: dict[str, float]) -> dict[str, Expected]:
    """Every term is a square, so the sum's error is relative to it: that of each distance, and of adding them."""
    batches, points, width = t["x"].shape
    sums = [m.sum(_distances(m, t, b), axis=0, keepdims=True) for b in range(batches)]
    value = m.concatenate(sums)
    # squares below the least normal f32 are lost
    return {"inertia": Expected(value, length=points, extra=value * gamma(width) + points * width * 2.0**-125)}


def generate(g: Gen) -> dict[str, np.ndarray]:
    """Points of the distribution, normal centroids, even labels; with outliers or alternating signs some are of no cluster."""
    batches, points, count = (g.shape[d] for d in "BNC")
    r = g.rng("label")
    low, high = (-1, count + 1) if g.distribution in ("outlier", "alternating") else (0, count)
    return {
        "x": g.draw("x"),
        "label": r.integers(low, high, (batches, points)).astype(np.int32),
        "c": g.draw("c", "normal"),
    }


def flops(shape: Shape) -> float:
    """A difference and a multiply-add for each element of x."""
    return 3.0 * shape["B"] * shape["N"] * shape["D"]


def _s(b: int, n: int, c: int, d: int) -> Shape:
    return {"B": b, "N": n, "C": c, "D": d}


def _contract(name: str, dtype: str, limit: float) -> Contract:
    return Contract(
        name=name,
        summary=f"inertia[b] = sum of |x[b, n] - c[b, label[b, n]]|^2 over n: x[B, N, D], c[B, C, D] {dtype}, label i32, inertia f32.",
        dims={"B": "independent problems", "N": "points", "C": "centroids", "D": "features"},
        tensors=(
            TensorSpec("x", "in", dtype, ("B", "N", "D"), "points"),
            TensorSpec("label", "in", "i32", ("B", "N"), "cluster of each point; outside 0 .. C - 1: of none"),
            TensorSpec("c", "in", dtype, ("B", "C", "D"), "centroids"),
            TensorSpec("inertia", "out", "f32", ("B",), "sum of squared distances"),
        ),
        oracle=oracle,
        generate=generate,
        flops=flops,
        limit=limit,
        least={"C": 1},
        precision="Differences, squares and sums in f32, in any order.",
        shapes={
            "tuning": (_s(32, 65536, 1024, 128), _s(1, 1000000, 1024, 128), _s(8, 8192, 512, 128)),
            "heldout": (_s(1, 262144, 4096, 256), _s(3, 10007, 777, 120), _s(1, 512, 8192, 288)),
            "boundary": (_s(1, 1, 1, 8), _s(1, 127, 5, 64), _s(2, 600, 3, 24), _s(1, 65, 2, 136)),
        },
        flop_unit="f32",
    )  # fmt: skip


CONTRACT = _contract("kmeans_inertia", "bf16", 2.0**40)
CONTRACTS = (CONTRACT, _contract("kmeans_inertia_f16", "f16", 2.0**15))
