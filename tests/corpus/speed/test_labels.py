"""The check of labels finds what it must and forgives what it may."""

from __future__ import annotations

import numpy as np
import pytest

from corpus.arrays import Math
from corpus.speed import labels

B, N, C, D = 2, 37, 11, 8


def case() -> dict[str, np.ndarray]:
    r = np.random.default_rng(0)
    x = r.standard_normal((B, N, D)).astype(np.float32)
    c = r.standard_normal((B, C, D)).astype(np.float32)
    sq = np.einsum("bcd,bcd->bc", c.astype(np.float64), c.astype(np.float64)).astype(np.float32)
    score = sq[:, None, :].astype(np.float64) - 2.0 * x.astype(np.float64) @ c.astype(np.float64).swapaxes(1, 2)
    return {"x": x, "c": c, "c_sq": sq, "label": score.argmin(-1).astype(np.int32), "score": score}


def judge(t: dict[str, np.ndarray], **more: int) -> dict[str, float]:
    return labels.check(Math(), t["x"], t["c"], t["c_sq"], t["label"], **more)


@pytest.mark.parametrize("block", [C, 5 * C, 1 << 20])
def test_the_argmin_is_right_in_blocks_of_any_size(block: int) -> None:
    assert judge(case(), block=block) == {
        "rows": B * N, "unwritten": 0, "outside": 0, "wrong": 0, "ties": 0, "worst": 0.0, "ok": True,
    }  # fmt: skip


@pytest.mark.parametrize(("batch", "row"), [(0, 0), (0, N - 1), (1, 0), (1, N - 1)])
def test_one_wrong_label_anywhere_is_found(batch: int, row: int) -> None:
    t = case()
    t["label"][batch, row] = t["score"][batch, row].argmax()
    found = judge(t, block=5 * C)
    assert found["wrong"] == 1 and not found["ok"] and found["worst"] > 1


def test_labels_that_are_no_index_count_and_are_told_apart() -> None:
    t = case()
    t["label"][0, 3], t["label"][1, 4], t["label"][1, 5] = labels.POISON, C, -1
    found = judge(t)
    assert (found["unwritten"], found["outside"], found["wrong"], found["ok"]) == (1, 2, 3, False)


@pytest.mark.parametrize(("share", "tie"), [(0.5, True), (2.0, False)])
def test_a_tie_is_within_the_bound_and_nothing_beyond(share: float, tie: bool) -> None:
    """Two centroids, the second `share` of the bound farther than the first, through its c_sq."""
    x = np.ones((1, 1, 4), np.float32)
    c = np.ones((1, 2, 4), np.float32)
    weight = 4.0 + 2.0 * 2.0 * 2.0
    sq = np.array([[4.0, 4.0 + share * labels.TIE * weight]], np.float32)
    found = labels.check(Math(), x, c, sq, np.array([[1]], np.int32))
    assert (found["ties"], found["wrong"]) == ((1, 0) if tie else (0, 1))
    assert found["worst"] == pytest.approx(share, rel=1e-3)


def test_zeros_are_no_excess() -> None:
    zero = np.zeros((1, 3, 4), np.float32)
    found = labels.check(Math(), zero, zero, np.zeros((1, 3), np.float32), np.array([[2, 1, 0]], np.int32))
    assert found["ok"] and found["worst"] == 0.0
