"""The battery of input distributions, and the seeds they are drawn from.

Every value is drawn in float64 or float32 and rounded once to the element type; oracles see the rounded values. The
last dimension is taken as the feature (reduction) dimension, all others together as rows.

A seed has a public part (in the record, chosen by the caller) and a secret part drawn fresh for every run, so that no
program can be fitted to the values it will be judged on. The secret is written into the result afterwards: a failed run
can be repeated exactly.
"""

from __future__ import annotations

import math
import secrets
import zlib
from collections.abc import Callable

import numpy as np

from corpus.arrays import element, numpy_dtype

Draw = Callable[[tuple[int, ...], np.random.Generator, float], np.ndarray]


def fresh_secret() -> int:
    """A 128-bit secret seed."""
    return secrets.randbits(128)


def rng(public: int, secret: int, *labels: object) -> np.random.Generator:
    """A generator for (public seed, secret seed, labels); equal arguments give equal streams on every machine."""
    words = [public & (2**64 - 1), secret & (2**128 - 1)]
    words += [zlib.crc32(str(label).encode()) for label in labels]
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(words)))


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """(rows, features) of a shape; a vector is one row."""
    features = shape[-1] if shape else 1
    return (math.prod(shape[:-1]) if len(shape) > 1 else 1), features


def _normal(shape: tuple[int, ...], g: np.random.Generator, limit: float) -> np.ndarray:
    return g.standard_normal(shape, dtype=np.float32)


def _uniform(shape: tuple[int, ...], g: np.random.Generator, limit: float) -> np.ndarray:
    return g.random(shape, dtype=np.float32) * np.float32(2) - np.float32(1)


def _small_int(shape: tuple[int, ...], g: np.random.Generator, limit: float) -> np.ndarray:
    """-3..3: products and short sums are exact in bf16, f16 and fp8, so any deviation is an indexing bug."""
    return g.integers(-3, 4, shape).astype(np.float32)


def _outlier(shape: tuple[int, ...], g: np.random.Generator, limit: float) -> np.ndarray:
    a = _normal(shape, g, limit)
    if a.size:
        a.reshape(-1)[g.integers(a.size)] = min(2.0**12, limit / 4)
    return a


def _log_uniform(shape: tuple[int, ...], g: np.random.Generator, limit: float) -> np.ndarray:
    """Magnitudes over 20 binades (fewer if the type has fewer), random signs."""
    top = min(10.0, math.log2(limit) - 2)
    return np.exp2(g.uniform(top - 20.0, top, shape)) * g.choice((-1.0, 1.0), shape)


def _zeros(shape: tuple[int, ...], g: np.random.Generator, limit: float) -> np.ndarray:
    """Zeros, every other one negative: the sign of zero must not matter."""
    a = np.zeros(shape, np.float32)
    a.reshape(-1)[1::2] = -0.0
    return a


def _ones(shape: tuple[int, ...], g: np.random.Generator, limit: float) -> np.ndarray:
    return np.ones(shape, np.float32)


def _constant_rows(shape: tuple[int, ...], g: np.random.Generator, limit: float) -> np.ndarray:
    rows, features = _rows(shape)
    return np.repeat(g.standard_normal((rows, 1)), features, axis=1).reshape(shape)


def _sorted(shape: tuple[int, ...], g: np.random.Generator, limit: float) -> np.ndarray:
    return np.sort(_normal(shape, g, limit).reshape(_rows(shape)), axis=-1).reshape(shape)


def _alternating(shape: tuple[int, ...], g: np.random.Generator, limit: float) -> np.ndarray:
    """+v, -v, +v, ...: sums cancel."""
    rows, features = _rows(shape)
    sign = np.where(np.arange(features) % 2 == 0, 1.0, -1.0)
    return (np.abs(g.standard_normal((rows, 1))) * sign).reshape(shape)


def _near_max(shape: tuple[int, ...], g: np.random.Generator, limit: float) -> np.ndarray:
    return g.uniform(0.5, 1.0, shape) * limit * g.choice((-1.0, 1.0), shape)


def _tiny(shape: tuple[int, ...], g: np.random.Generator, limit: float) -> np.ndarray:
    """Small factors that meet near-maximal ones, so that products stay finite."""
    return g.uniform(0.5, 1.0, shape) * limit**-0.75 * g.choice((-1.0, 1.0), shape)


def _duplicates(shape: tuple[int, ...], g: np.random.Generator, limit: float) -> np.ndarray:
    """About a third as many distinct rows as rows: ties."""
    rows, features = _rows(shape)
    distinct = g.standard_normal((max(1, rows // 3), features))
    return distinct[g.integers(len(distinct), size=rows)].reshape(shape)


def _permuted(shape: tuple[int, ...], g: np.random.Generator, limit: float) -> np.ndarray:
    """Row r is a permutation of one vector, rolled by r: wrong row or column order shows."""
    rows, features = _rows(shape)
    base = g.permutation(np.linspace(-2.0, 2.0, max(features, 1)))[:features]
    index = (np.arange(features)[None, :] + np.arange(rows)[:, None]) % max(features, 1)
    return base[index].reshape(shape)


def _one_hot(shape: tuple[int, ...], g: np.random.Generator, limit: float) -> np.ndarray:
    """One 1 per row, at a permuted place (an identity up to order): the result spells the other operand's layout."""
    rows, features = _rows(shape)
    a = np.zeros((rows, features), np.float32)
    if rows and features:
        place = np.concatenate([g.permutation(features) for _ in range(-(-rows // features))])[:rows]
        a[np.arange(rows), place] = 1.0
    return a.reshape(shape)


def _sprinkled(*values: float) -> Draw:
    """Normal values with one special one in every eighth row or so, at least one in all."""

    def draw(shape: tuple[int, ...], g: np.random.Generator, limit: float) -> np.ndarray:
        a = _normal(shape, g, limit)
        rows, features = _rows(shape)
        if a.size:
            chosen = np.unique(np.append(np.flatnonzero(g.random(rows) < 0.125), g.integers(rows)))
            a.reshape(rows, features)[chosen, g.integers(features, size=len(chosen))] = g.choice(values, len(chosen))
        return a

    return draw


def segments(name: str, count: int, total: int, g: np.random.Generator) -> np.ndarray:
    """Offsets (i32, count + 1, from 0 to `total`) of consecutive segments: `empty_segments` leaves every other one empty,
    the first and last too, `one_segment` gives everything to one; any other distribution cuts at random places."""
    share = np.ones(count)
    if name == "empty_segments":
        share[::2] = 0.0
        share[-1:] = 0.0
        share = share if share.any() else np.ones(count)
    elif name == "one_segment":
        share = np.zeros(count)
        share[g.integers(count) if count else 0 :][:1] = 1.0
    sizes = g.multinomial(total, share / share.sum()) if count else np.zeros(0, int)
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)


NONFINITE = {"nan_some": ("nan",), "inf_some": ("inf", "-inf")}
"""Distributions with special values, and which they hold."""

DRAWS: dict[str, Draw] = {
    "normal": _normal,
    "uniform": _uniform,
    "small_int": _small_int,
    "outlier": _outlier,
    "log_uniform": _log_uniform,
    "zeros": _zeros,
    "ones": _ones,
    "constant_rows": _constant_rows,
    "sorted": _sorted,
    "alternating": _alternating,
    "near_max": _near_max,
    "tiny": _tiny,
    "duplicates": _duplicates,
    "permuted": _permuted,
    "one_hot": _one_hot,
    "nan_some": _sprinkled(math.nan),
    "inf_some": _sprinkled(math.inf, -math.inf),
}

BATTERY: tuple[str, ...] = (
    "normal", "uniform", "small_int", "outlier", "log_uniform", "zeros", "ones", "constant_rows", "sorted",
    "alternating", "subnormal", "near_max", "duplicates", "permuted", "one_hot",
)  # fmt: skip
"""What a contract is judged on unless it says otherwise."""

PARTNER = {
    "near_max": "tiny", "subnormal": "ones", "zeros": "normal", "one_hot": "small_int", "permuted": "small_int",
    "outlier": "normal", "tiny": "near_max", "nan_some": "normal", "inf_some": "normal",
}  # fmt: skip
"""What the second and later operands get, so that the first one's distribution shows in the result."""


def partner(name: str) -> str:
    """The distribution of the operands that accompany one drawn from `name`."""
    return PARTNER.get(name, name)


def draw(
    name: str, shape: tuple[int, ...], dtype: str, g: np.random.Generator, limit: float | None = None
) -> np.ndarray:
    """An array of `shape` and element type `dtype`, at most `limit` in magnitude (default: the type's maximum).

    Raises KeyError for an unknown distribution.
    """
    e = element(dtype)
    if not e.is_float:
        return g.integers(-4, 5, shape).astype(numpy_dtype(dtype))
    top = min(e.max, limit or math.inf)
    if name == "subnormal":
        # below the least normal number of the type; f32 code that flushes them to zero is within `Element.tiny`
        normal = {"f16": 2.0**-14, "e4m3": 2.0**-6, "e5m2": 2.0**-14}.get(dtype, 2.0**-126)
        values = g.uniform(-1.0, 1.0, shape) * normal
    elif name in DRAWS:
        values = DRAWS[name](shape, g, top)
    else:
        raise KeyError(f"unknown distribution {name!r}; known: {', '.join(sorted({*DRAWS, 'subnormal'}))}")
    if name in ("near_max", "outlier", "log_uniform"):
        values = np.clip(values, -top, top)
    with np.errstate(over="ignore", under="ignore"):
        return values.astype(numpy_dtype(dtype))
