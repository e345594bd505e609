"""Tensor-memory addresses and who may touch them.

Source: PTX ISA, "Tensor memory addressing", "tcgen05.ld/st access restrictions", "tcgen05.alloc". An address holds the
lane in bits 16-31 and the column in bits 0-15; there are 128 lanes and 512 columns of 32 bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LANES = 128
COLUMNS = 512


class TensorMemoryError(ValueError):
    """An address, allocation or access outside the rules."""


def decode(address: int) -> tuple[int, int]:
    """(lane, column)."""
    if not 0 <= address < 1 << 32:
        raise TensorMemoryError("an address has 32 bits")
    lane, column = address >> 16, address & 0xFFFF
    if lane >= LANES or column >= COLUMNS:
        raise TensorMemoryError(f"lane {lane}, column {column} does not exist")
    return lane, column


def check_alloc(columns: int) -> None:
    """Raise unless tcgen05.alloc takes that many columns."""
    if columns not in (32, 64, 128, 256, 512):
        raise TensorMemoryError(f"{columns} columns: an allocation is a power of two, 32..512")


def load_32x32b(address: int, count: int, warp: int) -> npt.NDArray[np.int64]:
    """Cells that `tcgen05.ld/st.32x32b.x{count}` of warp number `warp` in its CTA touches.

    Result [32 threads, count registers, 2] of (lane, column): thread t register j holds lane base+t, column base+j.
    """
    lane, column = decode(address)
    window = 32 * (warp % 4)
    if lane != window:
        raise TensorMemoryError(f"warp {warp} reaches lanes {window}..{window + 31}; the address names lane {lane}")
    if count not in (1, 2, 4, 8, 16, 32, 64, 128) or column + count > COLUMNS:
        raise TensorMemoryError(f"x{count} at column {column}")
    cells = np.empty((32, count, 2), dtype=np.int64)
    cells[:, :, 0] = lane + np.arange(32)[:, None]
    cells[:, :, 1] = column + np.arange(count)[None, :]
    return cells


def accumulator_cell(address: int, m: int, row: int, col: int) -> tuple[int, int]:
    """(lane, column) of D element (row, col), 32-bit accumulators, cta_group 1; M = 128 uses lane = row.

    M = 64 spreads rows over the lower 16 lanes of each quarter (PTX ISA, data path layout F).
    """
    lane, column = decode(address)
    if lane:
        raise TensorMemoryError("an accumulator starts at lane 0")
    if m == 128:
        return row, column + col
    if m == 64:
        return 32 * (row // 16) + row % 16, column + col
    raise TensorMemoryError(f"M = {m} is not a cta_group 1 shape")
