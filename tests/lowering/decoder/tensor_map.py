"""What a tiled TMA copy does: which shared-memory byte receives which tensor byte.

Source: CUDA driver API, cuTensorMapEncodeTiled; CUDA programming guide, "Using TMA to transfer multi-dimensional
arrays" and "TMA swizzle"; PTX ISA, cp.async.bulk.tensor (tiled mode). Dimension 0 is the innermost. Elements outside
the tensor are filled on loads and skipped on stores. With a swizzle, a row of the box occupies one whole span.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.lowering.decoder import swizzle
from tests.lowering.decoder.swizzle import Addresses

ELEMENT_BYTES = {
    "u8": 1, "i8": 1, "e4m3": 1, "e5m2": 1, "bool": 1, "u16": 2, "i16": 2, "f16": 2, "bf16": 2,
    "u32": 4, "i32": 4, "f32": 4, "tf32": 4, "u64": 8, "i64": 8, "f64": 8,
}  # fmt: skip


class MapError(ValueError):
    """A map the driver would refuse, or a copy the hardware would fault on."""


@dataclass(frozen=True)
class Copy:
    """One box copy. `shared[i]` and `tensor[i]` are the byte addresses/offsets of box element i (dim 0 fastest).

    `inside[i]` is False where the element lies outside the tensor (filled on load, `tensor[i]` is then meaningless).
    `transaction_bytes` is what a load announces on its mbarrier: the full box, whatever lies outside.
    """

    shared: Addresses
    tensor: Addresses
    inside: npt.NDArray[np.bool_]
    indices: npt.NDArray[np.int64]
    transaction_bytes: int


def check(dtype: str, dims: list[int], strides: list[int], box: list[int], span: int) -> None:
    """Raise MapError unless the driver accepts the map (tiled, no interleave, unit element strides)."""
    size = ELEMENT_BYTES[dtype]
    rank = len(dims)
    if not 1 <= rank <= 5 or len(strides) != rank - 1 or len(box) != rank:
        raise MapError("rank 1..5, one stride fewer than dimensions, one box entry per dimension")
    if any(not 1 <= d <= 1 << 32 for d in dims):
        raise MapError("dimensions are 1..2^32")
    if any(s % 16 or not 0 <= s < 1 << 40 for s in strides):
        raise MapError("strides are multiples of 16 bytes below 2^40")
    if any(not 1 <= b <= 256 for b in box):
        raise MapError("box entries are 1..256")
    if box[0] * size % 16:
        raise MapError("the inner box is a multiple of 16 bytes")
    if span and box[0] * size > span:
        raise MapError("the inner box is at most the swizzle span")


def copy(
    dtype: str,
    dims: list[int],
    strides: list[int],
    box: list[int],
    span: int,
    start: list[int],
    shared_base: int,
    tensor_base: int = 0,
) -> Copy:
    """One tiled copy of the box whose first element has the coordinates `start` (dim 0 first; may be negative)."""
    check(dtype, dims, strides, box, span)
    if shared_base % 128:
        raise MapError("a tensor copy's shared address is a multiple of 128 bytes")
    if tensor_base % 16:
        raise MapError("a tensor's address is a multiple of 16 bytes")
    size = ELEMENT_BYTES[dtype]
    count = int(np.prod(box))
    flat = np.arange(count, dtype=np.int64)
    within: list[Addresses] = []
    for extent in box:
        within.append(flat % extent)
        flat = flat // extent
    pitch = span if span else box[0] * size
    row = np.zeros(count, dtype=np.int64)
    scale = 1
    for index, extent in zip(within[1:], box[1:], strict=True):
        row += index * scale
        scale *= extent
    linear = shared_base + row * pitch + within[0] * size
    indices = np.stack([w + s for w, s in zip(within, start, strict=True)], axis=1)
    inside = np.all((indices >= 0) & (indices < np.asarray(dims, dtype=np.int64)), axis=1)
    byte_strides = np.asarray([size, *strides], dtype=np.int64)
    return Copy(
        shared=swizzle.apply(linear, span),
        tensor=tensor_base + indices @ byte_strides,
        inside=inside,
        indices=indices,
        transaction_bytes=count * size,
    )


def load(copied: Copy, tensor: bytes, shared: bytearray, size: int, fill: bytes | None = None) -> None:
    """Carry out a load: move bytes of `tensor` to `shared` (both addressed from 0)."""
    blank = fill if fill is not None else bytes(size)
    for to, source, inside in zip(copied.shared, copied.tensor, copied.inside, strict=True):
        shared[to : to + size] = tensor[source : source + size] if inside else blank
