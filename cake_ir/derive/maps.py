"""Tensor maps, the copies a TMA op is made of, and the alignment guards that the chosen instructions need."""

from __future__ import annotations

import itertools

from cake_ir.bound import SX, BoundKernel, Buffer, Op, Region, SConst, SOp, Tensor, View, walk
from cake_ir.derive.model import BoxCopy, Guard, TensorMap

TMA_OPS = ("tma_load", "tma_store", "tma_reduce")
BULK_OPS = ("bulk_load", "bulk_store", "bulk_reduce")
BOX_LIMIT = 256


def box_of(view: View, region: Region) -> tuple[int, ...]:
    """The box in elements, innermost dimension first: a panel wide, at most 256 along every dimension, 1 for
    indices."""
    last = len(region.dims) - 1
    box = []
    for i, d in enumerate(region.dims):
        size = d.size if d.kind == "slice" else 1
        box.append(min(_inner(view.buffer, size) if i == last else size, BOX_LIMIT))
    return tuple(reversed(box))


def _inner(buffer: Buffer, size: int) -> int:
    return min(size, buffer.swizzle * 8 // buffer.dtype.bits) if buffer.swizzle else size


def copies_of(view: View, region: Region) -> tuple[BoxCopy, ...]:
    """The copy instructions of one op: panels, and blocks of 256 along long dimensions."""
    box = box_of(view, region)[::-1]
    buffer = view.buffer
    sizes = [d.size if d.kind == "slice" else 1 for d in region.dims]
    last = len(sizes) - 1
    row_weight = [1] * len(sizes)
    for i in range(last - 2, -1, -1):
        row_weight[i] = row_weight[i + 1] * sizes[i + 1]
    panel = buffer.swizzle * buffer.rows if buffer.swizzle else box[last] * buffer.dtype.bits // 8
    found = []
    for starts in itertools.product(*(range(0, size, b) for size, b in zip(sizes, box, strict=False))):
        rows = sum(s * w for s, w in zip(starts[:last], row_weight[:last], strict=False))
        offset = starts[last] // box[last] * panel + rows * buffer.pitch
        found.append(BoxCopy(offset, tuple(reversed(starts))))
    return tuple(found)


def tensor_maps(bound: BoundKernel) -> tuple[tuple[TensorMap, ...], dict[int, int], dict[int, tuple[BoxCopy, ...]]]:
    """(maps, map index by site, copies by site). One map per (tensor, box, swizzle), named after the tensor."""
    index: dict[tuple[Tensor, tuple[int, ...], int], int] = {}
    maps: list[TensorMap] = []
    op_maps: dict[int, int] = {}
    copies: dict[int, tuple[BoxCopy, ...]] = {}
    for s in walk(bound.body):
        if not isinstance(s, Op) or s.name not in TMA_OPS:
            continue
        view, region = s.operands["view"], s.operands["region"]
        key = (region.tensor, box_of(view, region), view.buffer.swizzle)
        if key not in index:
            index[key] = len(maps)
            same = sum(1 for m in maps if m.tensor is region.tensor)
            name = f"{region.tensor.name}_map{same}" if same else f"{region.tensor.name}_map"
            maps.append(TensorMap(name, region.tensor, region.tensor.dtype, key[1], key[2]))
        op_maps[s.site] = index[key]
        copies[s.site] = copies_of(view, region)
    return tuple(maps), op_maps, copies


def stride(tensor: Tensor, dim: int) -> SX:
    """Elements between neighbours along `dim`: declared, or the product of the extents inside."""
    declared = tensor.strides[dim]
    if declared is not None:
        return declared
    last = len(tensor.extents) - 1
    if dim == last:
        return SConst(1)
    inner = tensor.extents[dim + 1]
    return inner if dim + 1 == last else SOp("*", (inner, stride(tensor, dim + 1)))


def guards(bound: BoundKernel) -> tuple[Guard, ...]:
    """Base and stride alignments: 16 bytes for TMA, bulk and cp.async, the access width for vec loads and stores."""
    need: dict[Tensor, tuple[int, Op]] = {}
    for s in walk(bound.body):
        if not isinstance(s, Op):
            continue
        for value in s.operands.values():
            if isinstance(value, Region):
                width = _width(s, value)
                if width > value.tensor.dtype.bytes and width > need.get(value.tensor, (0, s))[0]:
                    need[value.tensor] = (width, s)
    found: list[Guard] = []
    for tensor, (width, op) in need.items():
        reason = f"{op.name} moves {width} bytes at a time"
        found.append(Guard("base", tensor, width, reason=reason, span=op.span))
        for dim in range(len(tensor.extents) - 1):
            value = stride(tensor, dim)
            if isinstance(value, SConst) and int(value.value) * tensor.dtype.bits // 8 % width == 0:
                continue
            found.append(Guard("stride", tensor, width, dim, value, reason, op.span))
    return tuple(found)


def _width(op: Op, region: Region) -> int:
    """Bytes of one access of the op to global memory, as far as the author chose them."""
    if op.name in TMA_OPS or op.name in BULK_OPS or op.name == "cp_async":
        return 16
    if op.name not in ("load", "store"):
        return 0
    tile = (
        getattr(op.results[0], "type", None)
        if op.name == "load" and op.results
        else getattr(op.operands.get("x"), "type", None)
    )
    if tile is None or tile.layout.name != "vec" or tile.axis == "rows" or region.dims[-1].kind != "slice":
        return 0
    return tile.layout.v * tile.dtype.bits // 8
