"""Kernels that pack a column into the low bits of a score, on data that stretches what a score can be."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from analyses import interpret
from cake_ir import bind, parse
from corpus.arrays import Math
from corpus.contract import contracts
from corpus.kernels import kernel

SMALL = {
    "kmeans_bias": {"DP": 64, "WG": 2, "STAGES": 2},
    "kmeans_split": {"DP": 64, "WG": 1, "G": 2, "S": 2, "BC": 64, "STAGES": 4},
}
B, N, C, D = 1, 70, 129, 64


@cache
def _bound(name: str) -> Any:
    entry = kernel(name)
    file = parse(entry.text()).file
    assert file is not None
    bound = bind(file, {**entry.bindings, **SMALL[name]}, "sm_90a", entry.kernel).bound
    assert bound is not None
    return bound


def _labels(name: str, x: np.ndarray, c: np.ndarray, c_sq: np.ndarray) -> np.ndarray:
    return interpret(_bound(name), {"x": x, "c": c, "c_sq": c_sq}, {}, sms=2)["label"]


def _against(r: np.random.Generator, of_points: float, of_centroids: float) -> tuple[np.ndarray, np.ndarray]:
    """Every product is negative: the best score is as low as it can be."""
    return np.abs(r.standard_normal((B, N, D))) * of_points, -np.abs(r.standard_normal((B, C, D))) * of_centroids


def _outlier(r: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x, c = r.standard_normal((B, N, D)), r.standard_normal((B, C, D))
    c[:, C // 2] *= 1e4
    return x, c


CASES = {
    "one": lambda r: _against(r, 1, 1),
    "2**37": lambda r: _against(r, 2.0**37, 2.0**37),
    "2**-40": lambda r: _against(r, 2.0**-40, 2.0**-40),
    "2**-52": lambda r: _against(r, 2.0**-52, 2.0**-52),
    "2**-60": lambda r: _against(r, 2.0**-60, 2.0**-60),
    "centroids 2**-66": lambda r: _against(r, 1, 2.0**-66),
    "points 2**-66": lambda r: _against(r, 2.0**-66, 2.0**-56),
    "subnormal": lambda r: _against(r, 2.0**-130, 2.0**-130),
    "far points": lambda r: _against(r, 2.0**30, 2.0**-50),
    "no points": lambda r: (np.zeros((B, N, D)), _against(r, 1, 1)[1]),
    "equal centroids": lambda r: (r.standard_normal((B, N, D)), np.ones((B, C, D))),
    "zero centroids": lambda r: (r.standard_normal((B, N, D)), np.zeros((B, C, D))),
    "outlier": _outlier,
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("case", CASES)
def test_labels_are_nearest_whatever_the_scale(name: str, case: str) -> None:
    """Offsets that would overflow (2**37) or vanish (2**-40) make the best score look negative, and any label win."""
    x, c = (a.astype(ml_dtypes.bfloat16) for a in CASES[case](np.random.default_rng(5)))
    c_sq = np.square(c.astype(np.float64)).sum(-1).astype(np.float32)
    label = _labels(name, x, c, c_sq)
    verdict = contracts()["kmeans_assign"].judge(Math(), {"x": x, "c": c, "c_sq": c_sq}, {"label": label}, {})
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("count", [1, C])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_labels_are_in_range_whatever_the_numbers(name: str, count: int, value: float) -> None:
    """Which label such a point gets is open, but it names a centroid: callers index with it."""
    r = np.random.default_rng(1)
    x, c = (r.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((B, N, D), (B, count, D)))
    x[0, 0, 0] = c[0, 0, 1] = value
    c_sq = np.square(c.astype(np.float32)).sum(-1)
    for squares in (c_sq, np.full_like(c_sq, 1e37)):
        label = _labels(name, x, c, squares)
        assert label.min() >= 0
        assert label.max() < count
