"""The check of one k-means iteration: centroids against the float64 means of the points that their labels name."""

from __future__ import annotations

from typing import Any

from corpus.arrays import Array, Math

BLOCK = 1 << 26
"""Elements of the membership matrix held at a time (float64)."""


def check(m: Math, x: Array, old: Array, label: Array, new: Array, index: Array, block: int = BLOCK) -> dict[str, Any]:
    """Judge all centroids. x (B, N, D), old and new (B, C, D) in a 16-bit type, label (B, N), index: 0 .. C-1 as i64.

    A mean may be off by two roundings to bf16 and by what f32 sums of its points lose; a centroid without points must stay.
    Returns elements, wrong, worst (greatest error over its bound) and ok.
    """
    batches, points, width = x.shape
    centroids = old.shape[1]
    step = max(1, block // centroids)
    wrong, worst = 0, 0.0
    for b in range(batches):
        sums: Array = 0.0
        sizes: Array = 0.0
        counts: Array = 0.0
        for n in range(0, points, step):
            rows = m.f64(x[b, n : n + step])
            same: Array = index[:, None] == m.i64(label[b, n : n + step])[None, :]
            member = m.f64(same)
            sums = sums + m.matmul(member, rows)
            sizes = sizes + m.matmul(member, m.abs(rows))
            counts = counts + m.sum(member)
        count = m.maximum(counts, 1.0)[:, None]
        none: Array = counts == 0
        empty = none[:, None]
        want = m.where(empty, m.f64(old[b]), sums / count)
        # f32 sums in any order: (terms) half units of the last place of the sum of magnitudes
        bound = 2.0**-8 * m.abs(want) + 2.0**-24 * sizes + 1e-30
        bound = m.where(empty, 1e-30, bound)
        excess = m.abs(m.f64(new[b]) - want) / bound
        bad = ~(excess <= 1.0)
        wrong += int(m.scalar(m.sum(m.i64(bad).reshape(-1), axis=0)))
        worst = max(worst, float(m.scalar(m.max(excess.reshape(-1)))))
    return {"elements": batches * centroids * width, "wrong": wrong, "worst": round(worst, 6), "ok": wrong == 0}
