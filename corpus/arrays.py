"""Element types as numpy sees them, poison patterns, and one small float64 namespace over numpy and torch.

Oracles and comparators are written once against `Math` and run on the CPU (numpy) or, for large shapes, in float64 on
the device (torch). Nothing here imports torch before `TorchMath` is built.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any
"""A numpy array or a torch tensor."""


@dataclass(frozen=True)
class Element:
    """One element type. `unit` is the unit roundoff 2**-p, `tiny` the least positive number that must be kept.

    `tiny` of f32 and bf16 is the least *normal* number (GPUs may flush f32 subnormals, and bf16 results come from f32);
    that of f16 and fp8 is the least subnormal. Integers have unit and tiny 0.
    """

    name: str
    numpy: str
    bytes: int
    unit: float = 0.0
    tiny: float = 0.0
    max: float = 0.0

    @property
    def is_float(self) -> bool:
        """Whether the type holds floating-point numbers."""
        return self.unit > 0.0


ELEMENTS: dict[str, Element] = {
    e.name: e
    for e in (
        Element("f64", "float64", 8, 2.0**-53, 2.0**-1022, 1.7976931348623157e308),
        Element("f32", "float32", 4, 2.0**-24, 2.0**-126, 3.4028234663852886e38),
        Element("bf16", "bfloat16", 2, 2.0**-8, 2.0**-126, 3.3895313892515355e38),
        Element("f16", "float16", 2, 2.0**-11, 2.0**-24, 65504.0),
        Element("e4m3", "float8_e4m3fn", 1, 2.0**-4, 2.0**-9, 448.0),
        Element("e5m2", "float8_e5m2", 1, 2.0**-3, 2.0**-16, 57344.0),
        Element("i64", "int64", 8),
        Element("i32", "int32", 4),
        Element("u32", "uint32", 4),
        Element("i8", "int8", 1),
        Element("u8", "uint8", 1),
    )
}


def element(name: str) -> Element:
    """The element type called `name`; raises KeyError with the known names."""
    try:
        return ELEMENTS[name]
    except KeyError:
        raise KeyError(f"unknown element type {name!r}; known: {', '.join(ELEMENTS)}") from None


@functools.cache
def numpy_dtype(name: str) -> np.dtype:
    """The numpy (or ml_dtypes) dtype of an element type."""
    e = element(name)
    if name in ("bf16", "e4m3", "e5m2"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, e.numpy))
    return np.dtype(e.numpy)


def bits(a: np.ndarray) -> np.ndarray:
    """The same memory as unsigned integers, for bitwise comparison (NaN equals NaN of the same bits)."""
    return np.ascontiguousarray(a).view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[a.dtype.itemsize])


POISON_BYTES = (0xA5, 0xFF)
"""Two byte patterns written over outputs. 0xFF repeated is a NaN in every float type here and -1 in the signed
integers; 0xA5 repeated is a small negative float and a large negative integer. An element that still holds the
pattern after *both* runs was not written."""


def poison(shape: tuple[int, ...], dtype: str, run: int) -> np.ndarray:
    """An array whose bytes all are POISON_BYTES[run % 2]."""
    raw = np.full(math.prod(shape) * element(dtype).bytes, POISON_BYTES[run % 2], dtype=np.uint8)
    return raw.view(numpy_dtype(dtype)).reshape(shape)


class Math:
    """float64 arithmetic over numpy arrays. Names are numpy's; reductions take `axis` and `keepdims`."""

    name = "numpy"
    inf = math.inf

    def f64(self, a: Array) -> Array:
        """Convert to float64 (exact for every supported element type but i64)."""
        return np.asarray(a).astype(np.float64)

    def i64(self, a: Array) -> Array:
        """Convert to int64."""
        return np.asarray(a).astype(np.int64)

    def matmul(self, a: Array, b: Array) -> Array:
        """a @ b, batched over leading dimensions."""
        return np.matmul(a, b)

    def t(self, a: Array) -> Array:
        """Swap the last two dimensions."""
        return np.swapaxes(a, -1, -2)

    def sum(self, a: Array, axis: int = -1, keepdims: bool = False) -> Array:
        """Sum over one axis."""
        return np.sum(a, axis=axis, keepdims=keepdims)

    def mean(self, a: Array, axis: int = -1, keepdims: bool = False) -> Array:
        """Mean over one axis."""
        return np.mean(a, axis=axis, keepdims=keepdims)

    def max(self, a: Array, axis: int = -1, keepdims: bool = False) -> Array:
        """Maximum over one axis."""
        return np.max(a, axis=axis, keepdims=keepdims)

    def min(self, a: Array, axis: int = -1, keepdims: bool = False) -> Array:
        """Minimum over one axis."""
        return np.min(a, axis=axis, keepdims=keepdims)

    def argmin(self, a: Array, axis: int = -1) -> Array:
        """Index of the least element over one axis."""
        return np.argmin(a, axis=axis)

    def argmax(self, a: Array, axis: int = -1) -> Array:
        """Index of the greatest element over one axis."""
        return np.argmax(a, axis=axis)

    def take_along(self, a: Array, index: Array, axis: int = -1) -> Array:
        """a[..., index] along one axis, elementwise as numpy.take_along_axis."""
        return np.take_along_axis(a, index, axis=axis)

    def concatenate(self, parts: list[Array]) -> Array:
        """Arrays one after the other along the first axis."""
        return np.concatenate(parts)

    def sum_rows(self, a: Array, index: Array, count: int) -> Array:
        """[count, D]: row i is the sum of the rows r of `a` [N, D] with index[r] == i."""
        out = np.zeros((count, a.shape[1]))
        np.add.at(out, index, a)
        return out

    def maximum(self, a: Array, b: Array | float) -> Array:
        """Elementwise maximum."""
        return np.maximum(a, b)

    def minimum(self, a: Array, b: Array | float) -> Array:
        """Elementwise minimum."""
        return np.minimum(a, b)

    def where(self, cond: Array, a: Array | float, b: Array | float) -> Array:
        """Elementwise choice."""
        return np.where(cond, a, b)

    def abs(self, a: Array) -> Array:
        """Absolute value."""
        return np.abs(a)

    def exp(self, a: Array) -> Array:
        """e ** a."""
        return np.exp(a)

    def log(self, a: Array) -> Array:
        """Natural logarithm."""
        return np.log(a)

    def sqrt(self, a: Array) -> Array:
        """Square root."""
        return np.sqrt(a)

    def isnan(self, a: Array) -> Array:
        """NaN mask."""
        return np.isnan(a)

    def isinf(self, a: Array) -> Array:
        """Infinity mask."""
        return np.isinf(a)

    def rounded(self, a: Array, dtype: str) -> Array:
        """float64 values rounded to an element type and back."""
        return np.asarray(a).astype(numpy_dtype(dtype)).astype(np.float64)

    def scalar(self, a: Array) -> float:
        """A Python number out of a one-element array."""
        return np.asarray(a).item()

    def cpu(self, a: Array) -> np.ndarray:
        """A numpy array."""
        return np.asarray(a)

    def quiet(self) -> Any:
        """Context in which overflow and invalid operations raise no warning."""
        return np.errstate(all="ignore")


def torch_dtype(torch: Any, name: str) -> Any:
    """The torch dtype of an element type."""
    names = {
        "f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16", "e4m3": "float8_e4m3fn",
        "e5m2": "float8_e5m2", "i64": "int64", "i32": "int32", "u32": "uint32", "i8": "int8", "u8": "uint8",
    }  # fmt: skip
    return getattr(torch, names[name])


class TorchMath(Math):
    """The same over torch tensors on one device."""

    name = "torch"

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def f64(self, a: Array) -> Array:
        return a.to(self.torch.float64)

    def i64(self, a: Array) -> Array:
        return a.to(self.torch.int64)

    def matmul(self, a: Array, b: Array) -> Array:
        return self.torch.matmul(a, b)

    def t(self, a: Array) -> Array:
        return a.transpose(-1, -2)

    def sum(self, a: Array, axis: int = -1, keepdims: bool = False) -> Array:
        return a.sum(dim=axis, keepdim=keepdims)

    def mean(self, a: Array, axis: int = -1, keepdims: bool = False) -> Array:
        return a.mean(dim=axis, keepdim=keepdims)

    def max(self, a: Array, axis: int = -1, keepdims: bool = False) -> Array:
        return a.amax(dim=axis, keepdim=keepdims)

    def min(self, a: Array, axis: int = -1, keepdims: bool = False) -> Array:
        return a.amin(dim=axis, keepdim=keepdims)

    def argmin(self, a: Array, axis: int = -1) -> Array:
        return a.argmin(dim=axis)

    def argmax(self, a: Array, axis: int = -1) -> Array:
        return a.argmax(dim=axis)

    def take_along(self, a: Array, index: Array, axis: int = -1) -> Array:
        return a.gather(axis, index)

    def concatenate(self, parts: list[Array]) -> Array:
        return self.torch.cat(parts)

    def sum_rows(self, a: Array, index: Array, count: int) -> Array:
        return self.torch.zeros((count, a.shape[1]), dtype=self.torch.float64, device=a.device).index_add_(0, index, a)

    def maximum(self, a: Array, b: Array | float) -> Array:
        return a.clamp(min=b) if isinstance(b, (int, float)) else self.torch.maximum(a, b)

    def minimum(self, a: Array, b: Array | float) -> Array:
        return a.clamp(max=b) if isinstance(b, (int, float)) else self.torch.minimum(a, b)

    def where(self, cond: Array, a: Array | float, b: Array | float) -> Array:
        return self.torch.where(cond, a, b)

    def abs(self, a: Array) -> Array:
        return a.abs()

    def exp(self, a: Array) -> Array:
        return a.exp()

    def log(self, a: Array) -> Array:
        return a.log()

    def sqrt(self, a: Array) -> Array:
        return a.sqrt()

    def isnan(self, a: Array) -> Array:
        return a.isnan()

    def isinf(self, a: Array) -> Array:
        return a.isinf()

    def rounded(self, a: Array, dtype: str) -> Array:
        return a.to(torch_dtype(self.torch, dtype)).to(self.torch.float64)

    def scalar(self, a: Array) -> float:
        return a.item()

    def cpu(self, a: Array) -> np.ndarray:
        return a.detach().cpu().numpy()

    def quiet(self) -> Any:
        return np.errstate(all="ignore")
