"""Shared-memory swizzles as the hardware applies them: an XOR on absolute byte-address bits.

Source: CUDA programming guide, TMA swizzle; PTX ISA, "tensor swizzling modes". The 16-byte chunk number inside a span
is XORed with the row number inside the period; both are bit fields of the absolute shared-memory address.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Addresses = npt.NDArray[np.int64]

PERIOD = {0: 16, 32: 256, 64: 512, 128: 1024}
"""Bytes after which the pattern repeats."""

_CHUNK_BITS = {0: 0, 32: 1, 64: 2, 128: 3}


def apply(address: Addresses | int, span: int) -> Addresses:
    """Where a byte at un-swizzled absolute `address` lies with a swizzle of `span` bytes (0, 32, 64, 128)."""
    value = np.asarray(address, dtype=np.int64)
    mask = (1 << _CHUNK_BITS[span]) - 1
    return value ^ (((value >> 7) & mask) << 4)
