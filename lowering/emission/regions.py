"""Global regions and the register tiles that meet them: addresses, clipping, alignment, and runs of neighbouring slots."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cake_ir.bound import SX, Region, RegionDim, SConst, View
from cake_ir.dtypes import DType
from cake_ir.facts import row_alignment
from cake_ir.layouts import TileType, placement
from lowering.emission.context import Context
from lowering.emission.scalars import add, const, sop

POINTEE = {"f32": "float", "tf32": "float", "i32": "int", "u32": "cake::u32"}


def pointee(dtype: DType) -> str:
    """C element type of a tensor argument."""
    return POINTEE.get(dtype.name) or {8: "unsigned char", 16: "cake::u16", 64: "long long"}.get(
        dtype.bits, "unsigned char"
    )


# ---- regions ------------------------------------------------------------


def kept(region: Region) -> list[tuple[int, RegionDim]]:
    """(tensor dimension, region dimension) of the kept dimensions, in logical order."""
    found = [(i, d) for i, d in enumerate(region.dims) if d.kind != "index"]
    return found[::-1] if region.transposed else found


def global_address(c: Context, region: Region, index: tuple[SX, ...]) -> str:
    """Pointer text of the element at a logical index of the region. Offsets are formed in 64 bits."""
    at: dict[int, SX] = {}
    for (dim, d), i in zip(kept(region), index, strict=True):
        if d.kind == "gather":
            raise c.unsupported("a region with gathered rows in this op")
        at[dim] = add(d.start, i)
    places = [at.get(i, d.start) for i, d in enumerate(region.dims)]
    return f"{c.tensor(region.tensor)} + {offset_text(c, region, places)}"


def offset_text(c: Context, region: Region, places: list[SX]) -> str:
    """Element offset in 64 bits; row-major tensors by Horner's rule."""
    tensor = region.tensor
    if all(s is None for s in tensor.strides):
        text = ""
        for extent, place in zip(tensor.extents, places, strict=True):
            zero = isinstance(place, SConst) and place.value == 0
            if text:
                text = f"{text} * {c.sx(extent)}"
                if not zero:
                    text = f"({text} + {c.sx(place)})"
            elif not zero:
                text = f"static_cast<long long>({c.sx.top(place)})"
        return text or "0"
    terms = []
    for dim, place in enumerate(places):
        if isinstance(place, SConst) and place.value == 0:
            continue
        terms.append(f"static_cast<long long>({c.sx.top(place)}) * {stride_text(c, tensor, dim)}")
    return f"({' + '.join(terms)})" if terms else "0"


def stride_text(c: Context, tensor: object, dim: int) -> str:
    """Elements between neighbours along a dimension, as a 64-bit factor."""
    stride = tensor.strides[dim]  # type: ignore[attr-defined]
    if stride is not None:
        return c.sx(stride)
    later = tensor.extents[dim + 1 :]  # type: ignore[attr-defined]
    if not later:
        return "1"
    return "(" + " * ".join([f"static_cast<long long>({c.sx.top(later[0])})", *(c.sx(e) for e in later[1:])]) + ")"


def in_range(region: Region, dim: int, d: RegionDim) -> bool:
    """Whether the whole kept range surely lies inside the extent (and before the stop)."""
    extent = region.tensor.extents[dim]
    ends = [extent, *([] if d.stop is None else [d.stop])]
    if not isinstance(d.start, SConst):
        return False
    return all(isinstance(e, SConst) and int(d.start.value) + d.size <= int(e.value) for e in ends)


def clip_terms(c: Context, region: Region, index: tuple[SX, ...], elements: int = 1) -> tuple[list[str], SX | None]:
    """(conditions that the element exists, elements left when a piece of `elements` may straddle the end)."""
    terms: list[str] = []
    left: SX | None = None
    for (dim, d), i in zip(kept(region), index, strict=True):
        if in_range(region, dim, d):
            continue
        place = add(d.start, i)
        for end in (region.tensor.extents[dim], d.stop):
            if end is None:
                continue
            if dim == len(region.dims) - 1 and elements > 1 and c.facts.divisor(end) % elements:
                rest = sop("-", end, place)
                left = rest if left is None else sop("min", left, rest)
            else:
                terms.append(f"{c.sx(place)} < {c.sx(end)}")
    return terms, left


def alignment(c: Context, region: Region) -> int:
    """Elements to which every row's first kept element is aligned (the base pointer is guarded to 16 bytes)."""
    return row_alignment(c.facts, region)


# ---- runs of slots ------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """`width` consecutive slots that are neighbours in memory: first slot, row and column offset."""

    slot: int
    row: int
    col: int


def longest(offsets: tuple[tuple[int, int], ...], limit: int) -> int:
    """The largest power of two w <= limit such that slots group into runs of w neighbouring columns."""
    width = limit
    while width > 1:
        if len(offsets) % width == 0 and all(
            offsets[i + j] == (offsets[i][0], offsets[i][1] + j)
            for i in range(0, len(offsets), width)
            for j in range(width)
        ):
            return width
        width //= 2
    return 1


def inner_axis(region: Region) -> str:
    """Which logical axis is contiguous in memory: col | row | none."""
    pairs = kept(region)
    last = len(region.dims) - 1
    stride = region.tensor.strides[last]
    if (stride is not None and not (isinstance(stride, SConst) and stride.value == 1)) or pairs[-1][0] != last:
        return "row" if len(pairs) == 2 and pairs[0][0] == last and stride is None else "none"
    return "col"


def region_width(c: Context, region: Region, tile: TileType) -> int:
    """Elements per access."""
    if tile.axis != "rows" and inner_axis(region) != "col":
        return 1
    if tile.axis == "rows" or region.dims[-1].kind == "gather":
        return 1
    offsets = placement(tile).offsets
    width = longest(offsets, max(1, 128 // tile.dtype.bits))
    col = c.base(tile)[1]
    align = math.gcd(alignment(c, region), c.facts.divisor(col))
    dim, d = kept(region)[-1]
    if not in_range(region, dim, d):
        align = math.gcd(align, c.facts.divisor(region.tensor.extents[dim]))
        if d.stop is not None:
            align = math.gcd(align, c.facts.divisor(d.stop))
    while width > 1 and (align % width or any(offsets[i][1] % width for i in range(0, len(offsets), width))):
        width //= 2
    return width


def view_width(c: Context, view: View, tile: TileType) -> int:
    if view.transposed or tile.axis == "rows":
        return 1
    offsets = placement(tile).offsets
    width = longest(offsets, max(1, 128 // tile.dtype.bits))
    align = math.gcd(c.facts.divisor(view.col0), c.facts.divisor(c.base(tile)[1]))
    if view.rows > 1 or not (isinstance(view.row0, SConst) and view.row0.value == 0):
        align = math.gcd(align, view.buffer.pitch * 8 // view.buffer.dtype.bits)
    while width > 1 and (align % width or any(offsets[i][1] % width for i in range(0, len(offsets), width))):
        width //= 2
    return width


def runs_of(tile: TileType, width: int) -> list[Run]:
    offsets = placement(tile).offsets
    return [Run(i, *offsets[i]) for i in range(0, len(offsets), width)]


def logical(tile: TileType, row: SX, col: SX) -> tuple[SX, ...]:
    return (row,) if tile.axis == "rows" else (col,) if tile.axis == "cols" else (row, col)


def tile_terms(c: Context, tile: TileType, run: Run) -> list[str]:
    """Conditions for slots of a vec tile that is narrower than its unit."""
    if not placement(tile).partial:
        return []
    row, col = c.base(tile)
    terms = []
    if tile.axis != "rows" and (tile.cols % _lanes_span(tile) and run.col + _lanes_span(tile) > tile.cols):
        terms.append(f"{c.sx(add(col, run.col))} < {tile.cols}")
    rows_held = tile.threads // (tile.layout.l or tile.threads)
    if tile.axis != "cols" and tile.rows % rows_held and run.row + rows_held > tile.rows:
        terms.append(f"{c.sx(add(row, run.row))} < {tile.rows}")
    return terms


def _lanes_span(tile: TileType) -> int:
    return (tile.layout.l or tile.threads) * tile.layout.v


def single_holder(c: Context, tile: TileType) -> list[str]:
    """Conditions that pick one of the threads which all hold the same vector element."""
    if tile.axis is None:
        return []
    lane, name = c.thread("lane"), tile.layout.name
    if name == "tmem_d":
        return [] if tile.axis == "rows" else [f"{c.sx(c.thread('wtid'))} == 0"]
    if name == "vec":
        lanes = tile.layout.l or tile.threads
        t = c.thread("wtid") if tile.threads == 128 else lane
        if tile.axis == "rows":
            return [f"{c.sx(sop('%', t, const(lanes)))} == 0"] if lanes > 1 else []
        return [f"{c.sx(t)} < {lanes}"] if lanes < tile.threads else []
    if tile.axis == "rows":
        return [f"{c.sx(sop('%', lane, const(4)))} == 0"]
    return [f"{c.sx(lane)} < 4", *([f"{c.sx(c.thread('wwarp'))} == 0"] if tile.threads == 128 else [])]
