"""Distributions and seeds."""

from __future__ import annotations

import numpy as np
import pytest

from corpus import distributions as dist
from corpus.arrays import ELEMENTS, numpy_dtype


@pytest.mark.parametrize("name", [*dist.BATTERY, "tiny"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "e4m3"])
def test_values_are_finite_typed_and_repeatable(name: str, dtype: str) -> None:
    for shape in ((), (0,), (1,), (7,), (5, 9), (2, 3, 16), (4, 0)):
        a = dist.draw(name, shape, dtype, dist.rng(1, 2, name))
        b = dist.draw(name, shape, dtype, dist.rng(1, 2, name))
        assert a.shape == shape and a.dtype == numpy_dtype(dtype)
        assert np.isfinite(a.astype(np.float64)).all()
        assert a.tobytes() == b.tobytes()


def test_secret_changes_the_values() -> None:
    a = dist.draw("normal", (64,), "f32", dist.rng(1, 2, "x"))
    assert a.tobytes() != dist.draw("normal", (64,), "f32", dist.rng(1, 3, "x")).tobytes()
    assert a.tobytes() != dist.draw("normal", (64,), "f32", dist.rng(1, 2, "y")).tobytes()
    assert dist.fresh_secret() != dist.fresh_secret()


def test_each_distribution_is_what_it_says() -> None:
    def draw(name: str, shape: tuple[int, ...] = (12, 16), dtype: str = "bf16") -> np.ndarray:
        return dist.draw(name, shape, dtype, dist.rng(0, 0, name)).astype(np.float64)

    assert set(np.unique(draw("small_int"))) <= {-3, -2, -1, 0, 1, 2, 3}
    assert not draw("zeros").any() and np.signbit(draw("zeros")).any()
    assert (draw("ones") == 1).all()
    rows = draw("constant_rows")
    assert (rows == rows[:, :1]).all() and len(np.unique(rows)) > 6
    assert (np.diff(draw("sorted")) >= 0).all()
    assert (draw("alternating").sum(axis=-1) == 0).all()
    sub = np.abs(draw("subnormal", dtype="f32"))
    assert sub.max() < 2.0**-126 and (sub > 0).any()
    assert np.abs(draw("near_max")).min() >= 0.4 * ELEMENTS["bf16"].max
    assert len(np.unique(draw("duplicates"), axis=0)) <= 4
    hot = draw("one_hot")
    assert (hot.sum(axis=1) == 1).all() and ((hot == 0) | (hot == 1)).all() and len(set(hot.argmax(axis=1))) == 12
    assert (np.sort(draw("permuted"), axis=1) == np.sort(draw("permuted"), axis=1)[:1]).all()
    assert np.abs(draw("outlier")).max() == 2.0**12
    big = np.abs(draw("log_uniform"))
    assert big.max() / big.min() > 2.0**12


def test_limit_bounds_magnitudes() -> None:
    for name in dist.BATTERY:
        a = dist.draw(name, (64, 8), "f32", dist.rng(3, 4, name), limit=2.0**14)
        assert np.abs(a).max() <= 2.0**14


def test_unknown_names_are_told() -> None:
    with pytest.raises(KeyError, match="unknown distribution 'gauss'"):
        dist.draw("gauss", (2,), "f32", dist.rng(0, 0))
    with pytest.raises(KeyError, match="unknown element type"):
        dist.draw("normal", (2,), "f3", dist.rng(0, 0))
