"""The 64-bit shared-memory matrix descriptor of wgmma (sm_90a) and tcgen05 (sm_100a).

Source: PTX ISA, "Asynchronous warpgroup level matrix shared memory layout", "Matrix-descriptor format", and for
tcgen05 "Shared memory descriptor" and "Canonical layouts". All offsets in the descriptor count 16 bytes.

With T elements per 16 bytes and a swizzle span of W bytes an operand element (mn, k) lies at this byte offset from the
start address, before the swizzle is applied to the absolute address:

    K-major, no swizzle     (mn % 8) * 16 + (mn // 8) * SBO + (k // T) * LBO + (k % T) * size
    K-major, swizzle W      (mn % 8) * W  + (mn // 8) * SBO + k * size                         (LBO unused)
    MN-major, no swizzle    (mn % T) * size + (mn // T) * SBO + (k % 8) * 16 + (k // 8) * LBO
    MN-major, swizzle W     (mn % w) * size + (mn // w) * LBO + (k % 8) * W + (k // 8) * SBO    with w = W / size

Not decoded: the 128-byte swizzle with 32-byte atoms, absolute leading dimensions, descriptors with a base offset (a
start whose swizzle pattern does not begin at a period boundary). Each raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tests.lowering.decoder import swizzle
from tests.lowering.decoder.swizzle import Addresses

Major = Literal["K", "MN"]

_SM90_SPAN = {0: 0, 1: 128, 2: 64, 3: 32}
_SM100_SPAN = {0: 0, 2: 128, 4: 64, 6: 32}


class DescriptorError(ValueError):
    """A descriptor the hardware would refuse, or read in a way this decoder does not model."""


@dataclass(frozen=True)
class MatrixDescriptor:
    """Decoded fields in bytes; `span` is the swizzle span."""

    start: int
    leading: int
    stride: int
    span: int

    def addresses(self, mn: int, k: int, size: int, major: Major) -> Addresses:
        """Byte address of the first byte of every element (mn, k): an array of shape [mn, k].

        `mn` rows (M of A, N of B) and `k` columns of elements of `size` bytes, as one instruction reads them.
        """
        rows = np.arange(mn, dtype=np.int64)[:, None]
        cols = np.arange(k, dtype=np.int64)[None, :]
        per_chunk = 16 // size
        if major == "K" and self.span == 0:
            offset = (rows % 8) * 16 + (rows // 8) * self.stride
            offset = offset + (cols // per_chunk) * self.leading + (cols % per_chunk) * size
        elif major == "K":
            if k * size > self.span:
                raise DescriptorError(f"one instruction reads {k * size} bytes of K, wider than {self.span}")
            offset = (rows % 8) * self.span + (rows // 8) * self.stride + cols * size
        elif self.span == 0:
            offset = (rows % per_chunk) * size + (rows // per_chunk) * self.stride
            offset = offset + (cols % 8) * 16 + (cols // 8) * self.leading
        else:
            width = self.span // size
            offset = (rows % width) * size + (rows // width) * self.leading
            offset = offset + (cols % 8) * self.span + (cols // 8) * self.stride
        return swizzle.apply(self.start + offset, self.span)


def decode_sm90(descriptor: int) -> MatrixDescriptor:
    """A wgmma descriptor: 0-13 start, 16-29 leading, 32-45 stride, 49-51 base offset, 62-63 swizzle; the rest zero."""
    _require_zero(descriptor, ((14, 16), (30, 32), (46, 49), (52, 62)))
    return _decode(descriptor, _SM90_SPAN[_bits(descriptor, 62, 64)])


def decode_sm100(descriptor: int) -> MatrixDescriptor:
    """A tcgen05 descriptor: as wgmma, but 46-48 hold the constant 1, 52 the leading mode, 61-63 the swizzle."""
    _require_zero(descriptor, ((14, 16), (30, 32), (53, 61)))
    if _bits(descriptor, 46, 49) != 1:
        raise DescriptorError("bits 46-48 must hold the constant 1")
    if _bits(descriptor, 52, 53):
        raise DescriptorError("absolute leading dimension addresses are not modelled")
    mode = _bits(descriptor, 61, 64)
    if mode not in _SM100_SPAN:
        raise DescriptorError(f"swizzle mode {mode} is reserved or not modelled")
    return _decode(descriptor, _SM100_SPAN[mode])


def _decode(descriptor: int, span: int) -> MatrixDescriptor:
    if _bits(descriptor, 49, 52):
        raise DescriptorError("a base offset is not modelled: start at a multiple of the swizzle period")
    start = _bits(descriptor, 0, 14) * 16
    if span and start % swizzle.PERIOD[span] >= 128:
        # Row bits of the address would start in mid-pattern, which is what the base offset is for.
        raise DescriptorError(f"start {start:#x} lies in the middle of the {swizzle.PERIOD[span]}-byte swizzle pattern")
    return MatrixDescriptor(start, _bits(descriptor, 16, 30) * 16, _bits(descriptor, 32, 46) * 16, span)


def _bits(value: int, low: int, high: int) -> int:
    return (value >> low) & ((1 << (high - low)) - 1)


def _require_zero(value: int, ranges: tuple[tuple[int, int], ...]) -> None:
    if not 0 <= value < 1 << 64:
        raise DescriptorError("a descriptor has 64 bits")
    for low, high in ranges:
        if _bits(value, low, high):
            raise DescriptorError(f"reserved bits {low}-{high - 1} are set")
