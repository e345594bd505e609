"""k-means assignment: the nearest centroid of every point, as an index."""

from __future__ import annotations

import math

import numpy as np

from corpus.arrays import Array, Math
from corpus.compare import Verdict, Worst, pattern
from corpus.contract import Contract, Gen, Shape, TensorSpec, gamma

TIE = 2.0**-17
"""Scores nearer than TIE * (|c|^2 + 2 sum |x c|) are a tie: f32 scores with a few low mantissa bits spent on the index
stay within it, bf16 scores (2**-9) do not."""

BLOCK = 1 << 24
"""Scores held at a time."""


def judge(m: Math, t: dict[str, Array], out: dict[str, Array], s: dict[str, float]) -> Verdict:
    """Every label must be in range and its float64 score within the rounding bound of the least score."""
    label = m.i64(out["label"])
    batches, points, width = t["x"].shape
    centroids = t["c"].shape[1]
    total = batches * points
    step = max(1, BLOCK // max(1, centroids))
    bad, not_argmin, worst_excess, worst = 0, 0, 0.0, None
    wrong = np.zeros((batches, points), dtype=bool)
    for b in range(batches):
        c = m.t(m.f64(t["c"][b]))
        c_abs = m.abs(c)
        sq = m.f64(t["c_sq"][b])[None, :]
        for n in range(0, points, step):
            x = m.f64(t["x"][b, n : n + step])
            got = label[b, n : n + step]
            outside = (got < 0) | (got >= centroids)
            chosen = m.where(outside, 0, got)[:, None]
            score = sq - 2.0 * m.matmul(x, c)
            least = m.min(score)
            first = m.argmin(score)
            mine = m.take_along(score, chosen)[:, 0]
            # the bound of both candidates: what rounding may have done to either score
            weight = sq + 2.0 * m.matmul(m.abs(x), c_abs)
            slack = m.maximum(m.take_along(weight, chosen)[:, 0], m.take_along(weight, first[:, None])[:, 0])
            bound = (TIE + 2.0 * gamma(width)) * slack + (width + 1) * 2.0**-125
            excess = m.where(outside, m.inf, (mine - least) / bound)
            here = int(m.scalar(m.sum(m.i64(~(excess <= 1.0)), axis=0)))
            if here:
                bad += here
                wrong[b, n : n + step] = m.cpu(~(excess <= 1.0))
            not_argmin += int(m.scalar(m.sum(m.i64(mine > least), axis=0)))
            at = int(m.scalar(m.argmax(excess, axis=0)))
            top = float(m.scalar(excess[at]))
            if worst is None or top > worst_excess:
                near, have, above, slack_at = (float(m.scalar(a[at])) for a in (first, got, mine - least, bound))
                worst_excess = top
                worst = Worst("label", (b, n + at), near, have, above, slack_at, top, math.nan)
    facts = {"rows_not_strict_argmin": float(not_argmin)}
    if worst is None:
        return Verdict(True, "no points", total=0)
    if bad:
        if not 0 <= worst.got < centroids:
            what = f"label {int(worst.got)} is outside 0..{centroids - 1}"
        else:
            what = f"label {int(worst.got)} scores {worst.error:.4g} above the nearest, {int(worst.expected)}"
            what += f" (tie bound {worst.tolerance:.3g})"
        where = pattern(wrong)
        text = f"{bad} of {total} labels are wrong ({where}); worst at [{worst.index[0]}, {worst.index[1]}]: {what}"
        return Verdict(False, text, "label", bad, total, worst, facts, where, (worst.tensor, worst.index))
    text = f"all {total} labels are nearest within rounding ({not_argmin} resolve a near-tie differently from float64)"
    return Verdict(True, text, "ok", 0, total, worst, facts)


def solution(t: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The float64 argmin (lowest index on exact ties), for shapes whose scores fit in memory."""
    x, c = t["x"].astype(np.float64), t["c"].astype(np.float64)
    score = t["c_sq"].astype(np.float64)[:, None, :] - 2.0 * np.matmul(x, np.swapaxes(c, 1, 2))
    return {"label": np.argmin(score, axis=-1).astype(np.int32)}


def generate(g: Gen) -> dict[str, np.ndarray]:
    """Points from the distribution; centroids are points plus noise, or duplicates, or of the same distribution.

    c_sq is |c|^2 of the bf16 centroids, summed in float64 and rounded to f32.
    """
    batches, points, count = (g.shape[d] for d in "BNC")
    x = g.draw("x")
    if g.distribution in ("normal", "uniform"):
        r = g.rng("pick")
        pick = r.integers(points, size=(batches, count)) if points else np.zeros((batches, count), int)
        base = np.take_along_axis(x, pick[:, :, None], axis=1).astype(np.float32)
        c = (base + 0.1 * r.standard_normal(base.shape, dtype=np.float32)).astype(x.dtype)
    elif g.distribution in ("one_hot", "zeros", "subnormal"):
        c = g.draw("c", {"one_hot": "small_int", "zeros": "normal", "subnormal": "ones"}[g.distribution])
    else:
        c = g.draw("c")
    sq = np.zeros((batches, count), np.float32)
    for b in range(batches):
        wide = c[b].astype(np.float64)
        sq[b] = np.einsum("cd,cd->c", wide, wide)
    return {"x": x, "c": c, "c_sq": sq}


def flops(shape: Shape) -> float:
    """The products only; the epilogue is not counted."""
    return 2.0 * shape["B"] * shape["N"] * shape["C"] * shape["D"]


def _s(b: int, n: int, c: int, d: int) -> Shape:
    return {"B": b, "N": n, "C": c, "D": d}


def _contract(name: str, dtype: str, limit: float) -> Contract:
    return Contract(
        name=name,
        summary=f"label[b, n] = argmin over c of |c|^2 - 2 x.c: x[B, N, D], c[B, C, D] {dtype}, c_sq[B, C] f32, label i32.",
        dims={"B": "independent problems", "N": "points", "C": "centroids", "D": "features"},
        tensors=(
            TensorSpec("x", "in", dtype, ("B", "N", "D"), "points"),
            TensorSpec("c", "in", dtype, ("B", "C", "D"), "centroids"),
            TensorSpec("c_sq", "in", "f32", ("B", "C"), f"squared norms of the {dtype} centroids"),
            TensorSpec("label", "out", "i32", ("B", "N"), "index of the nearest centroid"),
        ),
        oracle=None,
        judge=judge,
        solution=solution,
        generate=generate,
        flops=flops,
        limit=limit,
        least={"C": 1},
        precision=f"x.c is accumulated in f32 from exact {dtype} products and scores are compared in f32. Either of two "
        "candidates is right whose scores differ by at most (2**-17 + 2 gamma(D)) (|c|^2 + 2 sum |x c|); no other label "
        f"is. Inputs are finite and at most 2**{math.log2(limit):g} in magnitude.",
        shapes={
            "tuning": (_s(32, 65536, 1024, 128), _s(8, 8192, 512, 128), _s(1, 262144, 4096, 128),
                       _s(2, 262144, 256, 128), _s(8, 131072, 1000, 128)),
            "heldout": (_s(1, 1000000, 1024, 128), _s(7, 2432, 1024, 128), _s(4, 4480, 512, 128), _s(3, 10007, 777, 120),
                        _s(4, 8192, 1024, 112)),
            "boundary": (_s(1, 1, 1, 8), _s(1, 127, 5, 64), _s(2, 129, 128, 64), _s(1, 128, 129, 128),
                         _s(2, 300, 257, 120), _s(1, 40, 40, 16)),
        },
        baselines=("flash_kmeans", "flashlib_triton"),
        flop_unit=dtype,
    )  # fmt: skip


CONTRACT = _contract("kmeans_assign", "bf16", 2.0**40)
CONTRACTS = (CONTRACT, _contract("kmeans_assign_f16", "f16", 2.0**15))
"""One problem in two element types; families serve both by one kernel text (tunable DT)."""
