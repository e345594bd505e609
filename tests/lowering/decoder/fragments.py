"""Which matrix element a thread's register holds, per instruction.

Source: PTX ISA, fragment figures of mma.sync m16n8k16 and m16n8k32, wgmma register fragments, ldmatrix. Every function
gives an array [threads, elements, 2] of (row, column).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Cells = npt.NDArray[np.int64]


def _lanes(count: int = 32) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    lane = np.arange(count, dtype=np.int64) % 32
    return (lane // 4)[:, None], (lane % 4)[:, None]


def mma_d(n: int = 8) -> Cells:
    """C and D of m16n8: four 32-bit values c0..c3 per 8 columns; c2, c3 are eight rows below c0, c1."""
    group, quad = _lanes()
    i = np.arange(n // 2, dtype=np.int64)[None, :]
    return np.stack(np.broadcast_arrays(group + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * quad + i % 2), axis=2)


def mma_a(size: int = 2) -> Cells:
    """A of m16n8k(32/size), row major: 4 registers of 4/size values; registers 1 and 3 are 8 rows below 0 and 2."""
    group, quad = _lanes()
    per = 4 // size
    i = np.arange(4 * per, dtype=np.int64)[None, :]
    register, inner = i // per, i % per
    return np.stack(
        np.broadcast_arrays(group + 8 * (register % 2), 4 * per * (register // 2) + per * quad + inner), axis=2
    )


def mma_b(size: int = 2) -> Cells:
    """B of m16n8k(32/size) as (k, n): 2 registers of 4/size values, the second half of K in register 1."""
    group, quad = _lanes()
    per = 4 // size
    i = np.arange(2 * per, dtype=np.int64)[None, :]
    return np.stack(np.broadcast_arrays(4 * per * (i // per) + per * quad + i % per, group), axis=2)


def wgmma_d(n: int) -> Cells:
    """D of wgmma m64nN, 128 threads, N/2 32-bit values each: warp w holds rows 16w..16w+15 as mma_d does."""
    one = mma_d(n)
    out = np.concatenate([one] * 4)
    out[:, :, 0] += 16 * (np.arange(128, dtype=np.int64) // 32)[:, None]
    return out


def wgmma_a(size: int = 2) -> Cells:
    """A of wgmma m64k(32/size) from registers: warp w holds rows 16w.. as mma_a does."""
    out = np.concatenate([mma_a(size)] * 4)
    out[:, :, 0] += 16 * (np.arange(128, dtype=np.int64) // 32)[:, None]
    return out


def ldmatrix(transposed: bool = False) -> Cells:
    """One 8x8 matrix of 16-bit values: thread t gets (t // 4, 2 (t % 4) + i), transposed: the mirrored element."""
    group, quad = _lanes()
    i = np.arange(2, dtype=np.int64)[None, :]
    row, col = np.broadcast_arrays(group, 2 * quad + i)
    return np.stack((col, row) if transposed else (row, col), axis=2)
