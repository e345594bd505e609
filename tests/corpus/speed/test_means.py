"""The check of one k-means iteration."""

from __future__ import annotations

import numpy as np
import pytest

from corpus.arrays import Math
from corpus.speed import means

B, N, C, D = 2, 50, 5, 4


def case() -> dict[str, np.ndarray]:
    r = np.random.default_rng(1)
    x = r.standard_normal((B, N, D)).astype(np.float32)
    label = r.integers(0, C - 1, (B, N)).astype(np.int32)  # the last centroid has no point
    old = r.standard_normal((B, C, D)).astype(np.float32)
    new = np.stack(
        [[x[b][label[b] == k].mean(0) if (label[b] == k).any() else old[b, k] for k in range(C)] for b in range(B)]
    )
    return {"x": x, "old": old, "label": label, "new": new.astype(np.float32)}


def judge(t: dict[str, np.ndarray], block: int = 1 << 20) -> dict[str, float]:
    return means.check(Math(), t["x"], t["old"], t["label"], t["new"], np.arange(C), block)


@pytest.mark.parametrize("block", [C, 7 * C, 1 << 20])
def test_means_are_right_in_blocks_of_any_size(block: int) -> None:
    found = judge(case(), block)
    assert found["ok"] and found["elements"] == B * C * D and found["worst"] < 0.1


def test_one_point_counted_twice_is_found() -> None:
    t = case()
    first = t["label"][1, 0]
    members = (t["label"][1] == first).sum()
    t["new"][1, first] += t["x"][1, 0] / members
    assert judge(t)["wrong"] == D


def test_a_centroid_without_points_must_stay() -> None:
    t = case()
    t["new"][0, C - 1, 2] = 0.0
    assert judge(t)["wrong"] == 1


def test_nan_is_wrong() -> None:
    t = case()
    t["new"][0, 0, 0] = np.nan
    assert judge(t)["wrong"] == 1
