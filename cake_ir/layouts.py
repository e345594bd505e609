"""Register layouts: which thread holds which element of a tile. The closed set, one table.

Each layout is owned by an instruction form (PTX ISA: "Matrix Fragments for mma.m16n8k16", "Register Fragments for
wgmma.mma_async.m64nNk16", "tcgen05.ld 32x32b"). A register slot r of thread t holds element
(base_row(t) + row_off[r], base_col(t) + col_off[r]); `Placement` gives both parts, so lowering and the analyses
read one table. Lane l of a warp: g = l // 4, q = l % 4; w is the warp inside the unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cake_ir.dtypes import DType

# layout name -> (unit, owner, 8-bit legal)
UNITS = {
    "mma_d": "warp",
    "mma_a": "warp",
    "mma_b": "warp",
    "wgmma_d": "warpgroup",
    "wgmma_a": "warpgroup",
    "tmem_d": "warpgroup",
    "vec": "any",
}
THREADS = {"warp": 32, "warpgroup": 128}


@dataclass(frozen=True)
class Layout:
    """A named layout. `v`, `l` only for vec(V, L); l = 0 means "all threads of the unit"."""

    name: str
    v: int = 0
    l: int = 0  # noqa: E741 - the published parameter name

    def __str__(self) -> str:
        if self.name != "vec":
            return self.name
        return f"vec({self.v}, {self.l})" if self.l else f"vec({self.v})"


@dataclass(frozen=True)
class TileType:
    """A register tile [rows, cols] (axis None), or a vector: axis 'rows' (one value per row) or 'cols'.

    For vectors the other extent is 1. `threads` is the size of the unit that holds it (32 or 128).
    """

    dtype: DType
    layout: Layout
    rows: int
    cols: int
    axis: str | None
    threads: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape: (rows, cols) for tiles, (n,) for vectors."""
        if self.axis is None:
            return (self.rows, self.cols)
        return (self.rows if self.axis == "rows" else self.cols,)

    def with_dtype(self, dtype: DType) -> TileType:
        """The same tile with another element type."""
        return TileType(dtype, self.layout, self.rows, self.cols, self.axis, self.threads)

    def vector(self, axis: str) -> TileType:
        """The .rows / .cols vector that belongs to this tile."""
        rows, cols = (self.rows, 1) if axis == "rows" else (1, self.cols)
        return TileType(self.dtype, self.layout, rows, cols, axis, self.threads)

    def __str__(self) -> str:
        body = f"[{self.rows}, {self.cols}]" if self.axis is None else f".{self.axis}[{self.shape[0]}]"
        return f"{self.dtype} {self.layout}{body}"


@dataclass(frozen=True)
class Placement:
    """Where the slots of a tile live.

    offsets[r] = (row_off, col_off); base(t) = (row, col) of thread t; `partial` tells that some (thread, slot) pairs lie
    outside the tile and hold nothing (vec tiles narrower than the unit).
    """

    offsets: tuple[tuple[int, int], ...]
    partial: bool

    @property
    def slots(self) -> int:
        return len(self.offsets)


def base_of(layout: Layout, dtype: DType, axis: str | None, threads: int, t: int) -> tuple[int, int]:
    """Base (row, col) of thread t of the unit."""
    lane, warp = t % 32, t // 32
    g, q = lane // 4, lane % 4
    name = layout.name
    if name == "vec":
        lanes = layout.l or threads
        row, col = t // lanes, (t % lanes) * layout.v
    elif name in ("mma_d", "wgmma_d"):
        row, col = g + 16 * warp, 2 * q
    elif name in ("mma_a", "wgmma_a", "mma_b"):
        row, col = g + 16 * warp, q * (4 if dtype.bits == 8 else 2 if dtype.bits == 16 else 1)
    else:  # tmem_d
        row, col = t, 0
    return (0 if axis == "cols" else row), (0 if axis == "rows" else col)


@lru_cache(maxsize=4096)
def placement(tile: TileType) -> Placement:
    """The register slots of a tile, in register order."""
    rows = _row_offsets(tile)
    cols = _col_offsets(tile)
    name = tile.layout.name
    partial = False
    if tile.axis == "rows":
        offs = [(r, 0) for r in rows]
    elif tile.axis == "cols":
        offs = [(0, c) for c in cols]
    elif name in ("mma_d", "wgmma_d"):
        # register order of the instruction: 16/64-row block, 8-column block, row half, column pair
        offs = [
            (rows[2 * i + h], cols[2 * j + p])
            for i in range(len(rows) // 2)
            for j in range(len(cols) // 2)
            for h in (0, 1)
            for p in (0, 1)
        ]
    elif name in ("mma_a", "wgmma_a"):
        k = len(cols) // _a_span(tile.dtype)
        half = _a_span(tile.dtype) // 2
        offs = [
            (rows[2 * i + h], cols[(2 * m + s) * half + p])
            for i in range(len(rows) // 2)
            for m in range(k)
            for s in (0, 1)
            for h in (0, 1)
            for p in range(half)
        ]
    else:
        offs = [(r, c) for r in rows for c in cols]
    if name == "vec":
        lanes = tile.layout.l or tile.threads
        partial = (tile.axis != "rows" and tile.cols % (lanes * tile.layout.v) != 0) or (
            tile.axis != "cols" and tile.rows % (tile.threads // lanes) != 0
        )
    return Placement(tuple(offs), partial)


def _a_span(dtype: DType) -> int:
    """Elements of one k step held by a thread of mma_a / mma_b."""
    return 8 if dtype.bits == 8 else 4 if dtype.bits == 16 else 2


def _row_offsets(tile: TileType) -> list[int]:
    name = tile.layout.name
    if tile.axis == "cols":
        return [0]
    if name == "vec":
        step = tile.threads // (tile.layout.l or tile.threads)
        return list(range(0, tile.rows, step))
    if name in ("mma_d", "mma_a"):
        return [16 * i + 8 * h for i in range(tile.rows // 16) for h in (0, 1)]
    if name in ("wgmma_d", "wgmma_a"):
        return [64 * i + 8 * h for i in range(tile.rows // 64) for h in (0, 1)]
    if name == "mma_b":
        return [8 * j for j in range(tile.rows // 8)]
    return [0]


def _col_offsets(tile: TileType) -> list[int]:
    name = tile.layout.name
    if tile.axis == "rows":
        return [0]
    if name == "vec":
        step = (tile.layout.l or tile.threads) * tile.layout.v
        return [j + v for j in range(0, tile.cols, step) for v in range(tile.layout.v)]
    if name in ("mma_d", "wgmma_d"):
        return [8 * j + p for j in range(tile.cols // 8) for p in (0, 1)]
    if name in ("mma_a", "wgmma_a", "mma_b"):
        bits = tile.dtype.bits
        k, per = (32, 4) if bits == 8 else (16, 2) if bits == 16 else (8, 1)
        return [k * m + (k // 2) * s + p for m in range(tile.cols // k) for s in (0, 1) for p in range(per)]
    return list(range(tile.cols))


def shape_problem(tile: TileType) -> str | None:
    """Why this shape is not legal for the layout, or None."""
    name, rows, cols = tile.layout.name, tile.rows, tile.cols
    k = {8: 32, 16: 16, 32: 8}.get(tile.dtype.bits, 16)
    row_rule = {"mma_d": 16, "mma_a": 16, "mma_b": 8, "wgmma_d": 64, "wgmma_a": 64, "tmem_d": 128}.get(name, 1)
    col_rule = {"mma_d": 8, "wgmma_d": 8, "mma_a": k, "mma_b": k, "wgmma_a": k}.get(name, 1)
    if tile.axis != "cols" and (rows < 1 or rows % row_rule):
        return f"{name} needs a multiple of {row_rule} rows, got {rows}"
    if tile.axis != "rows" and (cols < 1 or cols % col_rule):
        return f"{name} needs a multiple of {col_rule} columns, got {cols}"
    if name == "tmem_d" and ((tile.axis != "cols" and rows != 128) or cols > 128):
        return f"tmem_d is [128, N] with N <= 128, got [{rows}, {cols}]"
    if name == "vec":
        lanes = tile.layout.l or tile.threads
        if lanes > tile.threads or tile.threads % lanes:
            return f"vec({tile.layout.v}, {lanes}): {lanes} lanes do not divide the {tile.threads} threads of the unit"
        if tile.layout.v < 1 or tile.layout.v * tile.dtype.bits > 128:
            return f"vec({tile.layout.v}) of {tile.dtype} is {tile.layout.v * tile.dtype.bits} bits; at most 128 (16 bytes)"
        if tile.axis != "rows" and tile.cols % tile.layout.v:
            return f"vec({tile.layout.v}) needs a multiple of {tile.layout.v} columns, got {cols}"
    return None


def same_slots(a: TileType, b: TileType) -> bool:
    """Whether slot by slot every thread holds the same elements of both (dtypes may differ)."""
    return (a.axis, a.shape, a.threads) == (b.axis, b.shape, b.threads) and (
        placement(a).offsets == placement(b).offsets
        and all(
            base_of(a.layout, a.dtype, a.axis, a.threads, t) == base_of(b.layout, b.dtype, b.axis, b.threads, t)
            for t in range(a.threads)
        )
    )


def same_place(vector: TileType, tile: TileType, axis: str) -> bool:
    """Whether each thread holds in an `axis` vector, slot by slot, the entries of just the rows (columns) it has of the tile."""
    at, offsets = (0, _row_offsets) if axis == "rows" else (1, _col_offsets)
    return (
        vector.axis == axis
        and tile.axis in (None, axis)
        and vector.threads == tile.threads
        and offsets(vector) == offsets(tile)
        and all(
            base_of(vector.layout, vector.dtype, axis, vector.threads, t)[at]
            == base_of(tile.layout, tile.dtype, axis, tile.threads, t)[at]
            for t in range(tile.threads)
        )
    )


def registers(tile: TileType) -> int:
    """32-bit registers per thread (exact from the type)."""
    slots = placement(tile).slots
    bits = tile.dtype.bits
    if bits == 1:
        return max(1, -(-slots // 32))
    if bits >= 32:
        return slots * bits // 32
    per = 32 // bits
    packed = tile.layout.name != "vec" or (tile.layout.v * bits) % 32 == 0
    return -(-slots // per) if packed else slots


def block(layout: Layout, dtype: DType, threads: int) -> tuple[int, int]:
    """(rows, cols) granularity at which .rows / .cols slices of a fragment are legal."""
    k = {8: 32, 16: 16, 32: 8}.get(dtype.bits, 16)
    return {
        "mma_d": (16, 8),
        "mma_a": (16, k),
        "mma_b": (8, k),
        "wgmma_d": (64, 8),
        "wgmma_a": (64, k),
        "tmem_d": (128, 1),
    }.get(layout.name) or (threads // (layout.l or threads), (layout.l or threads) * layout.v)
