"""The comparator: tolerances, specials, unwritten elements, messages."""

from __future__ import annotations

import math

import numpy as np
import pytest

from corpus.arrays import Math, numpy_dtype, poison
from corpus.compare import cast_output, compare, difference, finite_json, pattern, unwritten
from corpus.contract import Expected, gamma

M = Math()


def verdict(exp: object, got: object, dtype: str = "f32", **kw: object):
    g = np.asarray(got, dtype=np.float64).astype(numpy_dtype(dtype))
    return compare(M, "d", Expected(np.asarray(exp, np.float64), **kw), g, dtype, 2.0**-7)


def test_one_rounding_passes_and_two_units_fail() -> None:
    x = np.linspace(1, 2, 64)
    assert verdict(x, x, "bf16").ok
    assert verdict(x, x * (1 + 2.0**-6), "bf16").cause == "mismatch"


def test_worst_element_is_named() -> None:
    exp = np.ones((4, 8))
    got = exp.copy()
    got[2, 5] = 1.5
    v = verdict(exp, got, "bf16")
    assert not v.ok and v.bad == 1 and v.total == 32
    assert v.worst is not None and v.worst.index == (2, 5) and v.worst.ulp == 64
    assert "d[2, 5]: expected 1, got 1.5" in v.message and "1 of 32" in v.message


@pytest.mark.parametrize(
    ("exp", "got", "ok"),
    [
        (1.0, math.nan, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (1.0, math.inf, False),
        (1e6, math.inf, True),  # rounds to infinity in f16
        (-1e6, math.inf, False),
        (1e6, 65504.0, False),
    ],
)
def test_specials(exp: float, got: float, ok: bool) -> None:
    v = verdict([exp, 1.0], [got, 1.0], "f16")
    assert v.ok is ok
    if not ok and math.isfinite(exp) and not math.isfinite(got) and exp > 0:
        assert v.cause == "nonfinite"


def test_cancellation_uses_the_magnitude_not_the_value() -> None:
    exp, mag = np.zeros(8), np.full(8, 1000.0)
    err = np.full(8, 0.5 * gamma(64) * 1000.0)
    assert verdict(exp, err, magnitude=mag, length=64).ok
    assert not verdict(exp, 3 * err, magnitude=mag, length=64).ok
    assert not verdict(exp, err, length=64).ok


def test_cap_bounds_long_sums() -> None:
    mag = np.ones(4)
    assert not verdict(np.zeros(4), np.full(4, 0.01), magnitude=mag, length=2**24).ok


def test_systematic_error_fails_by_rms() -> None:
    # bf16 integers are exact, so an error of half a unit in every element is no rounding error
    exp = np.arange(128.0, 256.0) + 0.25
    ok = verdict(exp, np.arange(128.0, 256.0), "bf16")
    assert ok.ok and ok.facts is not None and 0 < ok.facts["rms_error"] <= ok.facts["rms_bound"]
    v = verdict(exp, np.arange(129.0, 257.0), "bf16")
    assert v.cause in ("rms", "mismatch") and not v.ok
    v = verdict(np.arange(192.0, 256.0) + 0.4, np.arange(193.0, 257.0), "bf16")
    assert v.cause == "rms" and "exceeds" in v.message


def test_integers_must_be_equal() -> None:
    v = compare(M, "n", Expected(np.array([1, 2, 3])), np.array([1, 9, 3], np.int32), "i32", 0.0)
    assert not v.ok and v.worst is not None and v.worst.index == (1,)


@pytest.mark.parametrize(
    ("marked", "words"),
    [
        ((slice(64, 128), slice(None)), "dim 0: 64..127 of 300; dim 1: all 64"),
        ((slice(299, None), slice(0, 3)), "dim 0: 299 of 300; dim 1: 0..2 of 64"),
        ((slice(1, None, 4), slice(None)), "dim 0: = 1 mod 4; dim 1: all 64"),
        (([0, 7, 19, 23, 24, 40], 3), "dim 0: 0, 7, 19, ... of 300; dim 1: 3 of 64"),
    ],
)
def test_pattern_of_bad_elements(marked: object, words: str) -> None:
    mask = np.zeros((300, 64), bool)
    mask[marked] = True  # type: ignore[index]
    assert pattern(mask) == words


def test_unwritten_needs_both_poisons() -> None:
    runs = ({"d": poison((4, 4), "bf16", 0)}, {"d": poison((4, 4), "bf16", 1)})
    v = unwritten(runs)
    assert v is not None and v.bad == 16
    for r in runs:
        r["d"][:3] = 1.0
    v = unwritten(runs)
    assert v is not None and v.bad == 4 and "[3, 0]" in v.message
    for r in runs:
        r["d"][3] = -1.0
    assert unwritten(runs) is None


def test_difference_sees_nan_as_equal_and_zero_signs_as_different() -> None:
    a = {"d": np.array([math.nan, 0.0], np.float32)}
    assert difference(a, {"d": a["d"].copy()}) is None
    text, at = difference(a, {"d": np.array([math.nan, -0.0], np.float32)}) or ("", None)
    assert "d[1]" in text and at == ("d", (1,))


def test_empty_outputs_and_json() -> None:
    assert verdict(np.zeros((0, 4)), np.zeros((0, 4))).ok
    assert finite_json({"a": (math.inf, np.float32(1.5))}) == {"a": ["inf", 1.5]}
    assert cast_output(np.array([1e6]), "f16")[0] == np.inf
