"""Memory operands and register tiles: views, regions, layouts with shapes, static slices."""

from __future__ import annotations

from typing import Any

from cake_ir import bound as B
from cake_ir import syntax as S
from cake_ir.binding import expr as E
from cake_ir.binding.context import Context
from cake_ir.binding.scalars import ZERO, const, sop
from cake_ir.binding.scope import LayoutAxis, LayoutShape, OnChip
from cake_ir.binding.values import describe, is_sx, is_vx
from cake_ir.dtypes import I32, DType
from cake_ir.layouts import UNITS, TileType, block, placement, shape_problem


def on_chip(c: Context, buffer: B.Buffer, node: Any) -> OnChip:
    """A whole unstaged tile as a view."""
    if buffer.staged:
        c.fail(
            "language/stage-missing",
            f"'{buffer.name}' is staged; index it by a use number: {buffer.name}[n]",
            node.span,
        )
    return OnChip(buffer, None, ZERO, buffer.rows, ZERO, buffer.cols, buffer.dims, False, None, node.span)


def one_index(c: Context, node: S.Index) -> Any:
    if len(node.items) != 1 or isinstance(node.items[0], (S.Slice, S.NewAxis)):
        c.fail("language/index", "one use number is expected here", node.span)
    return E.index(c, node.items[0], "a use number")


def index_view(c: Context, view: OnChip, node: S.Index) -> OnChip:
    for item in node.items:
        if isinstance(item, (S.Slice, S.NewAxis)):
            c.fail(
                "language/index",
                "an on-chip view is sliced with .rows(start, count) and .cols(start, count)",
                item.span,
            )
        if not view.dims or view.transposed:
            c.fail("language/rank", "too many indices for this view", node.span)
        i = E.index(c, item)
        in_bounds(c, i, 1, view.dims[0], f"index of {view.buffer.name}", item.span)
        rest = view.dims[1:]
        if rest:
            height = 1
            for d in rest[:-1]:
                height *= d
            row0 = sop("+", view.row0, sop("*", i, const(height)))
            view = OnChip(view.buffer, view.use, row0, height, view.col0, view.cols, rest, False, view.rank, node.span)
        else:
            view = OnChip(
                view.buffer, view.use, view.row0, 1, sop("+", view.col0, i), 1, (), False, view.rank, node.span
            )
    return view


def in_bounds(c: Context, start: Any, count: int, extent: int, what: str, span: Any) -> None:
    from cake_ir.binding.scalars import interval

    low, high = interval(start, c.ranges, c.definitions)
    if low > extent - count or high < 0 or (isinstance(start, B.SConst) and not 0 <= start.value <= extent - count):
        value = int(low) if low == high else f"{low} .. {high}"
        c.fail(
            "data/view-out-of-bounds",
            f"{what}: start {value} with {count} element(s) lies outside 0 .. {extent}",
            span,
            contract="An on-chip view has exact extents and lies inside its tile.",
        )
    if high > extent - count and high != float("inf") and low >= 0:
        c.fail(
            "data/view-out-of-bounds",
            f"{what}: start reaches {int(high)}, {count} element(s) end at {int(high) + count} of {extent}",
            span,
            contract="An on-chip view has exact extents and lies inside its tile.",
        )


def region(c: Context, tensor: B.Tensor, node: S.Index) -> B.Region:
    if len(node.items) != len(tensor.extents):
        c.fail(
            "language/rank",
            f"'{tensor.name}' has {len(tensor.extents)} dimensions, {len(node.items)} indices given; every dimension is written: an index "
            f"drops it, `:` keeps it, as in {tensor.name}[{', '.join(['i'] * (len(tensor.extents) - 1) + [':'])}]",
            node.span,
        )
    dims = []
    for item in node.items:
        if isinstance(item, S.NewAxis):
            c.fail("language/index", "None is not an index of a tensor", item.span)
        if isinstance(item, S.Slice):
            start = E.index(c, item.start) if item.start is not None else ZERO
            stop = E.index(c, item.stop) if item.stop is not None else None
            if isinstance(start, B.SConst) and start.value < 0:
                c.fail(
                    "data/region-start-negative",
                    f"a region starts at {start.value}",
                    item.span,
                    contract="The start of a region is >= 0.",
                )
            dims.append(B.RegionDim("slice", start, stop, 0))
            continue
        value = E.expr(c, item)
        if is_vx(value):
            if value.type.dtype is not I32 or value.type.axis is None:
                c.fail("language/index", f"a gather index is an i32 vector, got {value.type}", item.span)
            dims.append(B.RegionDim("gather", ZERO, None, value.type.shape[0], value))
        elif is_sx(value) and value.dtype == "i32":
            dims.append(B.RegionDim("index", value))
        else:
            c.fail("language/index", f"expected an index, got {describe(value)}", item.span)
    return B.Region(tensor, tuple(dims), False, node.span)


def layout_shape(c: Context, base: Any, node: S.Index) -> LayoutShape:
    sizes = []
    for item in node.items:
        if isinstance(item, (S.Slice, S.NewAxis)):
            c.fail("language/index", "a layout shape is static numbers", item.span)
        sizes.append(E.static_int(c, item, "a layout shape"))
    if isinstance(base, LayoutAxis):
        if len(sizes) != 1:
            c.fail("language/rank", f"{base.layout}.{base.axis}[n] takes one number", node.span)
        rows, cols = (sizes[0], 1) if base.axis == "rows" else (1, sizes[0])
        return LayoutShape(base.layout, rows, cols, base.axis)
    if len(sizes) != 2:
        c.fail(
            "language/rank", f"a tile is {base}[rows, cols]; a vector is {base}.rows[n] or {base}.cols[n]", node.span
        )
    return LayoutShape(base, sizes[0], sizes[1], None)


def tile_type(c: Context, dtype: DType, shape: LayoutShape, span: Any) -> TileType:
    """A register type of the current unit, checked against its layout's shape rule."""
    unit = UNITS[shape.layout.name]
    if c.unit not in ("W", "G") or (unit == "warp" and c.unit != "W") or (unit == "warpgroup" and c.unit != "G"):
        have = {"K": "kernel level", "T": "one thread", "W": "a warp", "G": "a warpgroup"}[c.unit]
        c.fail(
            "language/layout-unit",
            f"{shape.layout} belongs to {'a ' + unit if unit != 'any' else 'a warp or warpgroup'}; here the unit is {have}",
            span,
            contract="A fragment belongs to the unit that made it.",
        )
    type_ = TileType(dtype, shape.layout, shape.rows, shape.cols, shape.axis, c.threads)
    problem = shape_problem(type_)
    if problem:
        c.fail("language/layout-shape", problem, span)
    if placement(type_).slots > 1024:
        c.fail(
            "hardware/register-pressure",
            f"{type_} needs {placement(type_).slots} elements per thread",
            span,
            contract="A thread has at most 255 registers.",
        )
    return type_


def expand(c: Context, base: Any, node: S.Index) -> Any:
    t = base.type
    pattern = [
        "new"
        if isinstance(i, S.NewAxis)
        else "all"
        if isinstance(i, S.Slice) and i.start is None and i.stop is None
        else "?"
        for i in node.items
    ]
    want = {"rows": ["all", "new"], "cols": ["new", "all"]}.get(t.axis or "")
    if want is None or pattern != want:
        if t.axis is None:
            c.fail(
                "language/index",
                "a register tile is sliced with .rows(start, count) and .cols(start, count)",
                node.span,
            )
        c.fail(
            "language/index",
            f"a .{t.axis} vector is expanded as [{':, None' if t.axis == 'rows' else 'None, :'}]",
            node.span,
        )
    rows, cols = (t.rows, 1) if t.axis == "rows" else (1, t.cols)
    return B.VExpand(base, TileType(t.dtype, t.layout, rows, cols, None, t.threads))


def on_rank(c: Context, base: Any, node: S.Call) -> Any:
    rank = E.index(c, node.args[0], "a cluster rank")
    cluster = c.launch.cluster if c.launch else 1
    if isinstance(rank, B.SConst) and not 0 <= rank.value < cluster:
        c.fail("hardware/cluster-rank", f"rank {rank.value} in a cluster of {cluster}", node.span)
    # with cluster=1 this is the plain local form
    keep = rank if cluster > 1 else None
    if isinstance(base, B.BarUse):
        return B.BarUse(base.barrier, base.use, keep, node.span)
    if isinstance(base, OnChip):
        return OnChip(
            base.buffer,
            base.use,
            base.row0,
            base.rows,
            base.col0,
            base.cols,
            base.dims,
            base.transposed,
            keep,
            node.span,
        )
    c.fail("language/type", f".on(rank) does not apply to {describe(base)}", node.span)


def slice_view(c: Context, v: OnChip, axis: str, start: Any, count: int, node: Any) -> OnChip:
    if not v.dims or (len(v.dims) == 1 and axis == "rows"):
        c.fail("language/rank", f".{axis} does not apply to a view of shape {list(v.dims)}", node.span)
    real = axis if not v.transposed else ("cols" if axis == "rows" else "rows")
    extent = v.rows if real == "rows" else v.cols
    in_bounds(c, start, count, extent, f".{axis} of {v.buffer.name}", node.span)
    if real == "rows":
        return OnChip(
            v.buffer,
            v.use,
            sop("+", v.row0, start),
            count,
            v.col0,
            v.cols,
            (count, v.cols),
            v.transposed,
            v.rank,
            node.span,
        )
    dims = (count,) if len(v.dims) == 1 else (v.rows, count)
    return OnChip(
        v.buffer, v.use, v.row0, v.rows, sop("+", v.col0, start), count, dims, v.transposed, v.rank, node.span
    )


def slice_fragment(c: Context, x: Any, axis: str, start: int, count: int, node: Any) -> Any:
    if isinstance(x, B.VOp):
        x = materialize(c, x, node.span)
    if not isinstance(x, B.VFrag):
        c.fail("language/type", "only a named fragment can be sliced", node.span)
    t = x.type
    if t.axis is not None and t.axis != axis:
        c.fail("language/rank", f".{axis} does not apply to {t}", node.span)
    grain = block(t.layout, t.dtype, t.threads)[0 if axis == "rows" else 1]
    extent = t.rows if axis == "rows" else t.cols
    if start % grain or count % grain or start < 0 or start + count > extent:
        c.fail(
            "language/fragment-slice",
            f".{axis}({start}, {count}) of {t}: start and count are multiples of {grain} inside {extent}",
            node.span,
            contract="Fragments are sliced statically, at multiples of the layout's block.",
        )
    rows, cols = (count, t.cols) if axis == "rows" else (t.rows, count)
    row0, col0 = (x.row0 + start, x.col0) if axis == "rows" else (x.row0, x.col0 + start)
    return B.VFrag(x.frag, TileType(t.dtype, t.layout, rows, cols, t.axis, t.threads), row0, col0)


def materialize(c: Context, x: Any, span: Any, name: str = "") -> B.VFrag:
    """An elementwise value in registers of its own."""
    if isinstance(x, B.VFrag):
        return x
    frag = c.fragment(name or f"t{len(c.out)}_{c.statements}", x.type, span)
    c.emit(B.Let(frag, x, span, fresh=True))
    return B.VFrag(frag, frag.type)
