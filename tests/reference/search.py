"""References of the searches: nearest centroid, and k nearest neighbours in two kernels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests.reference import Arrays, Problem, f64, normal, sum_error


def kmeans(batches: int, points: int, centroids: int, width: int, *, packed: bool = False) -> Problem:
    """label[b, n] = argmin over c of |c|^2 - 2 x.c; a label may miss the least score by what rounding costs.

    packed: five low mantissa bits of the score carry the column, so scores are known to 2^-18 of their size.
    """
    rng = np.random.default_rng([3, batches, points, centroids, width])
    x, c = normal(rng, batches, points, width), normal(rng, batches, centroids, width)
    square = (f64(c) ** 2).sum(-1).astype(np.float32)
    score = f64(square)[:, None, :] - 2.0 * np.matmul(f64(x), np.swapaxes(f64(c), 1, 2))
    weight = f64(square)[:, None, :] + 2.0 * np.matmul(np.abs(f64(x)), np.swapaxes(np.abs(f64(c)), 1, 2))
    bound = 2.0 * sum_error(width) * weight.max(-1) + (2.0**-17 * np.abs(score).max(-1) if packed else 0.0)

    def judge(out: Mapping[str, np.ndarray]) -> list[str]:
        label = out["label"].astype(np.int64)
        if label.shape != (batches, points):
            return [f"label has shape {label.shape}"]
        if ((label < 0) | (label >= centroids)).any():
            return [f"{int(((label < 0) | (label >= centroids)).sum())} labels are out of range"]
        excess = np.take_along_axis(score, label[..., None], -1)[..., 0] - score.min(-1)
        wrong = np.argwhere(excess > bound)
        return [f"label: {len(wrong)} of {label.size} wrong, first at {wrong[0].tolist()}"] if len(wrong) else []

    return Problem({"x": x, "c": c, "c_sq": square}, judge, {"label": score.argmin(-1).astype(np.int32)})


def neighbours(queries: int, entries: int, width: int, parts: int, k: int) -> tuple[Problem, Problem]:
    """The partial search over `parts` shares of the database, and the merge of the partial results.

    Partial: part_v ascending, part_i its indices, (inf, -1) where a share has fewer than k entries. The merge's inputs are
    the float64 answer of the first, so that each kernel is judged alone; tests also run them in sequence.
    """
    rng = np.random.default_rng([4, queries, entries, width])
    q, db = normal(rng, queries, width), normal(rng, entries, width)
    square = (f64(db) ** 2).sum(-1).astype(np.float32)
    score = f64(square)[None, :] - 2.0 * f64(q) @ f64(db).T
    weight = f64(square)[None, :] + 2.0 * np.abs(f64(q)) @ np.abs(f64(db)).T
    bound = 2.0 * sum_error(width) * float(weight.max())
    blocks = -(-entries // 128)
    share = 128 * -(-blocks // parts)
    value = np.full((parts, queries, k), np.inf)
    index = np.full((parts, queries, k), -1, np.int32)
    for p in range(parts):
        mine = score[:, p * share : (p + 1) * share]
        order = np.argsort(mine, axis=1, kind="stable")[:, :k]
        value[p, :, : order.shape[1]] = np.take_along_axis(mine, order, 1)
        index[p, :, : order.shape[1]] = order + p * share

    def judge_partial(out: Mapping[str, np.ndarray]) -> list[str]:
        v, i = f64(out["part_v"]), out["part_i"]
        if v.shape != value.shape or i.shape != index.shape:
            return [f"part_v has shape {v.shape}, part_i {i.shape}"]
        full = np.isfinite(value)
        found = []
        if not (np.array_equal(full, np.isfinite(v)) and np.array_equal(full, i >= 0)):
            found.append("the number of neighbours found is wrong")
        elif (np.abs(v[full] - value[full]) > bound).any():
            found.append(f"{int((np.abs(v[full] - value[full]) > bound).sum())} distances are wrong")
        elif not all(_names(i[p], value[p], full[p], score, bound, (p * share, (p + 1) * share)) for p in range(parts)):
            found.append("an index does not belong to its distance")
        return found

    best = np.sort(score, axis=1)[:, :k]
    merged = np.full((queries, k), -1, np.int32)  # fewer entries than k leave the rest at -1
    merged[:, : best.shape[1]] = np.argsort(score, axis=1, kind="stable")[:, :k]

    def judge_merge(out: Mapping[str, np.ndarray]) -> list[str]:
        i = out["nearest"]
        if i.shape != (queries, k):
            return [f"nearest has shape {i.shape}"]
        there = best.shape[1]
        ok = _names(i[:, :there], best, np.ones(best.shape, bool), score, bound, (0, entries))
        return [] if ok and (i[:, there:] == -1).all() else ["nearest does not name the nearest entries in order"]

    value32 = value.astype(np.float32)
    first: Arrays = {"q": q, "db": db, "db_sq": square}
    return (
        Problem(first, judge_partial, {"part_v": value32, "part_i": index}, {"P": parts}),
        Problem({"part_v": value32, "part_i": index}, judge_merge, {"nearest": merged}),
    )


def _names(
    index: np.ndarray, value: np.ndarray, full: np.ndarray, score: np.ndarray, bound: float, within: tuple[int, int]
) -> bool:
    """Whether the indices [queries, k] are distinct, in range, and score what `value` says, within the bound."""
    for row in range(len(index)):
        mine = index[row][full[row]]
        if (
            len(set(mine.tolist())) != len(mine)
            or ((mine < within[0]) | (mine >= min(within[1], score.shape[1]))).any()
        ):
            return False
        if (np.abs(score[row, mine] - value[row][full[row]]) > bound).any():
            return False
    return True
