"""Element formats of the value reading: numpy dtypes, rounding casts, poison, exact tensor-core products.

Arrays are 2-D and logical: a tile is [rows, cols], a `.rows` vector [n, 1], a `.cols` vector [1, n]. Poison is an
all-ones bit pattern (a NaN in every float format) plus a boolean mask kept beside the array.
"""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np

from cake_ir.dtypes import DType

Mask = np.ndarray | None
"""True where undefined; None means everything is defined."""

_UINT = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}
_BF16 = np.dtype(ml_dtypes.bfloat16)
_SATFINITE = {"e4m3": 448.0, "e5m2": 57344.0}


@cache
def np_dtype(dtype: DType) -> np.dtype:
    """numpy / ml_dtypes dtype of an element type (tf32 is held in float32)."""
    if dtype.name != "bool" and hasattr(np, dtype.numpy):
        return np.dtype(getattr(np, dtype.numpy))
    return np.dtype(bool) if dtype.name == "bool" else np.dtype(getattr(ml_dtypes, dtype.numpy))


def uint_of(nbytes: int) -> np.dtype:
    """The unsigned type of `nbytes` bytes, for masks and bit patterns."""
    return _UINT[nbytes]


def poison(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """An array of poison bits; False for masks."""
    nd = np_dtype(dtype)
    if dtype.name == "bool":
        return np.zeros(shape, bool)
    return np.full(shape, -1, dtype=f"i{nd.itemsize}").view(nd)


def to_f32(a: np.ndarray) -> np.ndarray:
    """Exact widening to float32 (bf16 by shifting bits: several times faster than a generic cast)."""
    if a.dtype == np.float32:
        return a
    if a.dtype == _BF16:
        return (a.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return a.astype(np.float32)


def cast(a: np.ndarray, dtype: DType) -> np.ndarray:
    """cvt.rn: round to nearest even; e4m3/e5m2 saturate to the largest finite value (`.satfinite`), NaN stays NaN.

    float -> int truncates and saturates; NaN gives 0 (PTX ISA: cvt.rzi).
    """
    target = np_dtype(dtype)
    if a.dtype == target and dtype.name != "tf32":
        return a
    with np.errstate(all="ignore"):
        if dtype.name == "tf32":
            bits = to_f32(a).view(np.uint32)
            # round to 10 mantissa bits, nearest, ties away from zero (cvt.rna.tf32.f32)
            out = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
            return np.where(np.isfinite(to_f32(a)), out, to_f32(a))
        if dtype.name in _SATFINITE:
            limit = np.float32(_SATFINITE[dtype.name])
            return np.clip(to_f32(a), -limit, limit).astype(target)
        if dtype.kind in "iu" and is_float(a.dtype):
            info = np.iinfo(target)
            wide = np.trunc(a.astype(np.float64))
            return np.where(np.isnan(wide), 0, np.clip(wide, info.min, info.max)).astype(target)
        if a.dtype == _BF16 and target == np.float32:
            return to_f32(a)
        return a.astype(target)


def is_float(nd: np.dtype) -> bool:
    """Whether a numpy dtype is a float format (ml_dtypes included)."""
    return nd.kind == "f" or nd.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def round_scalar(value: float | int | bool, name: str) -> float | int | bool:
    """A Python scalar rounded to the format called `name`; floats stay Python floats."""
    if name == "f32":
        return _f32(value)
    if name == "bool":
        return bool(value)
    if name in ("bf16", "f16", "e4m3", "e5m2", "tf32"):
        from cake_ir.dtypes import DTYPES

        return float(cast(np.asarray([value], np.float32), DTYPES[name])[0])
    if isinstance(value, float):
        from cake_ir.dtypes import DTYPES

        return int(cast(np.asarray([value], np.float64), DTYPES[name])[0])
    return int(value)


def _f32(value: float | int | bool) -> float:
    with np.errstate(all="ignore"):
        return float(np.float32(value))


BLAS_ALONE = 262_144
"""M * N * K up to which OpenBLAS multiplies on the calling thread: waking its threads for tiles costs far more than
it saves on a shared machine."""


def k_step(dtype: DType) -> int:
    """K elements of one tensor-core instruction: 32 bytes."""
    return 256 // dtype.bits


def accumulate(acc: np.ndarray | None, a: np.ndarray, b: np.ndarray, step: int) -> np.ndarray:
    """acc + a @ b.T, float32 (or int32 for integer operands).

    Assumed numerics: the products of one instruction (K = `step`) and the incoming accumulator are summed exactly (in
    float64) and rounded once to f32, nearest even; instructions follow each other along K. Real tensor cores align
    addends to the largest exponent and truncate; for 8-bit operands they keep still fewer bits. Neither is
    documented by the PTX ISA, so contracts carry a tolerance for it.
    """
    if a.dtype.kind in "iu":
        total = a.astype(np.int64) @ b.astype(np.int64).T
        return (total if acc is None else total + acc).astype(np.int32)
    a64, b64 = to_f32(a).astype(np.float64), to_f32(b).astype(np.float64).T
    rows = max(1, BLAS_ALONE // (b64.shape[1] * step))
    out = np.empty((a.shape[0], b.shape[0]), np.float32)
    with np.errstate(all="ignore"):
        for r in range(0, a.shape[0], rows):
            part = None if acc is None else acc[r : r + rows]
            for k in range(0, a.shape[1], step):
                product = a64[r : r + rows, k : k + step] @ b64[k : k + step]
                part = (product if part is None else product + part).astype(np.float32)
            out[r : r + rows] = part
    return out


def product_mask(acc: Mask, a: Mask, b: Mask, shape: tuple[int, int]) -> Mask:
    """Which results of acc + a @ b.T are undefined: the row of an undefined a, the column of an undefined b."""
    out = acc
    for mask, rows in ((a, True), (b, False)):
        if mask is not None and mask.any():
            line = np.asarray(mask.any(axis=1))
            wide = np.broadcast_to(line[:, None] if rows else line[None, :], shape)
            out = wide.copy() if out is None else out | wide
    return out


def join(*masks: Mask) -> Mask:
    """Union of undefined masks (broadcasting)."""
    out: Mask = None
    for m in masks:
        if m is not None:
            out = m if out is None else out | m
    return out


def some(mask: Mask) -> Mask:
    """None when nothing is undefined, so that the fast path stays fast."""
    return mask if mask is not None and mask.any() else None
