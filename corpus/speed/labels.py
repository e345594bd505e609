"""The check of k-means labels: every row against the float64 argmin, blockwise, on the device where the tensors are.

A label that is not the float64 argmin is a tie when its score exceeds the least by at most TIE * (|c|^2 + 2 |x| |c|), c being the
chosen centroid or the nearest one, whichever weighs more; else it is wrong. Scores are c_sq - 2 x.c with the c_sq that the kernels
were given.
"""

from __future__ import annotations

from typing import Any

from corpus.arrays import Array, Math

TIE = 2.0**-15
POISON = -0x5A5A5A5B
"""What labels hold before the checked launch; no index."""

BLOCK = 1 << 26
"""Scores held at a time (float64)."""


def check(m: Math, x: Array, c: Array, c_sq: Array, label: Array, block: int = BLOCK) -> dict[str, Any]:
    """Judge all labels. x (B, N, D), c (B, C, D), c_sq (B, C) f32, label (B, N) i32, arrays of `m` (numpy or torch).

    Returns rows, unwritten, outside (written, but no index), wrong (beyond a tie; the two before count too), ties (not the
    argmin, within the bound), worst (greatest excess over its bound among labels that are an index; above 1 is wrong) and ok.
    """
    batches, points, _ = x.shape
    centroids = c.shape[1]
    step = max(1, block // centroids)
    found = {"unwritten": 0, "outside": 0, "wrong": 0, "ties": 0}
    worst = 0.0
    for b in range(batches):
        wide, sq = m.f64(c[b]), m.f64(c_sq[b])
        size = m.sqrt(m.sum(wide * wide))
        for n in range(0, points, step):
            rows = m.f64(x[b, n : n + step])
            got = m.i64(label[b, n : n + step])
            out = (got < 0) | (got >= centroids)
            chosen = m.where(out, 0, got)
            score = sq[None, :] - 2.0 * m.matmul(rows, m.t(wide))
            near = m.argmin(score)
            above = m.take_along(score, chosen[:, None])[:, 0] - m.min(score)
            length = 2.0 * m.sqrt(m.sum(rows * rows))
            weight = m.maximum(size[chosen] * (size[chosen] + length), size[near] * (size[near] + length))
            worse = above > 0
            # only where a score is above the least can there be an excess; elsewhere both may be 0
            excess = m.where(worse, above, 0.0) / (TIE * m.where(worse, weight, 1.0))
            bad = out | ~(excess <= 1.0)
            for name, mask in (
                ("unwritten", got == POISON), ("outside", out & (got != POISON)), ("wrong", bad), ("ties", worse & ~bad),
            ):  # fmt: skip
                found[name] += int(m.scalar(m.sum(m.i64(mask), axis=0)))
            worst = max(worst, float(m.scalar(m.max(m.where(out, 0.0, excess)))))
    return {"rows": batches * points, **found, "worst": round(worst, 6), "ok": found["wrong"] == 0}
