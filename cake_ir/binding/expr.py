"""Expressions: from syntax to scalars (SX), register tiles (VX) and the compile-time objects (views, regions, layouts)."""

from __future__ import annotations

from typing import Any

from cake_ir import bound as B
from cake_ir import syntax as S
from cake_ir.binding.context import Context
from cake_ir.binding.scalars import ZERO, const, sop
from cake_ir.binding.scope import Device, LayoutAxis, LayoutShape, OnChip, SilentError, Symbol, TileSpace
from cake_ir.dtypes import BOOL, DTYPES, F32, I32, DType
from cake_ir.layouts import UNITS, Layout, TileType, block, placement, shape_problem

SXS = (B.SConst, B.SVar, B.SOp)
VXS = (B.VFrag, B.VSplat, B.VExpand, B.VCoord, B.VOp)
COMPARE = {"<", "<=", ">", ">=", "==", "!="}
MATH = {"exp2", "rcp", "rsqrt", "log2", "sqrt", "tanh"}
ELEMENTWISE = MATH | {"max", "min", "abs", "select", "max3", "min3", "cast", "bitcast", "row_index", "col_index", "ceil_div", "lsb"}
SYMBOLS = {"evict_first", "evict_last", "no_allocate", "add", "cluster", "grid", "warp", "warpgroup", "thread", "shared"}


def is_sx(x: Any) -> bool:
    return isinstance(x, SXS)


def is_vx(x: Any) -> bool:
    return isinstance(x, VXS)


def expr(c: Context, node: Any) -> Any:
    """The meaning of an expression; ops inside are emitted as temporaries, in evaluation order."""
    return _DISPATCH[type(node)](c, node)


def scalar(c: Context, node: Any, what: str = "a scalar") -> Any:
    """An expression that must be a uniform scalar."""
    value = expr(c, node)
    if not is_sx(value):
        c.fail("language/type", f"expected {what}, got {describe(value)}", node.span)
    return value


def index(c: Context, node: Any, what: str = "an index") -> Any:
    """An expression that must be an exact integer."""
    value = scalar(c, node, what)
    if value.dtype != "i32":
        c.fail("language/type", f"expected {what} (i32), got {value.dtype}", node.span)
    return value


def static_int(c: Context, node: Any, what: str) -> int:
    """An expression known when the parameters are bound."""
    value = index(c, node, what)
    if not isinstance(value, B.SConst):
        c.fail("language/not-static", f"{what} must be known when the parameters are bound", node.span,
               contract="Shapes, stages, layouts, slices, unroll bounds, wait depths and swizzles are static.")
    return int(value.value)


def condition(c: Context, node: Any) -> Any:
    """A uniform bool. A lane-varying mask cannot branch."""
    value = expr(c, node)
    if is_vx(value):
        c.fail("language/lane-varying-condition", "a condition that differs between lanes cannot branch; use select or when=", node.span,
               contract="A lane-varying condition is a mask and cannot branch.")
    if not is_sx(value) or value.dtype not in ("bool", "i32"):
        c.fail("language/type", f"expected a condition, got {describe(value)}", node.span)
    return value if value.dtype == "bool" else sop("!=", value, ZERO)


def describe(value: Any) -> str:
    """A value in the author's terms."""
    if is_sx(value):
        return f"a scalar {value.dtype}"
    if is_vx(value):
        return f"a register tile {value.type}"
    if isinstance(value, OnChip):
        return f"a view of {value.buffer.name}"
    return {
        B.Region: "a global region", B.Tensor: "a whole tensor", B.Buffer: "an on-chip tile", B.Barrier: "a barrier", B.BarUse: "a barrier use",
        Layout: "a layout", LayoutShape: "a layout", DType: "a dtype", B.Role: "a role", TileSpace: "a tile space", tuple: "a tuple",
    }.get(type(value), type(value).__name__)


# ---- leaves ------------------------------------------------------------------------------------------------------------


def _name(c: Context, node: S.Name) -> Any:
    found = c.lookup(node.id)
    if found is not None:
        return as_value(c, c.resolve(node))
    if node.id in DTYPES:
        return DTYPES[node.id]
    if node.id in UNITS and node.id != "vec":
        return Layout(node.id)
    if node.id == "inf":
        return B.SConst(float("inf"), "f32")
    if node.id == "device":
        return Device()
    if node.id in SYMBOLS:
        return Symbol(node.id)
    return as_value(c, c.resolve(node))


def as_value(c: Context, value: Any) -> Any:
    """A resolved name as an operand."""
    if isinstance(value, B.ScalarVar):
        return B.SVar(value)
    if isinstance(value, B.Fragment):
        return B.VFrag(value, value.type)
    return value


def _num(c: Context, node: S.Num) -> Any:
    return const(node.value)


def _bool(c: Context, node: S.Bool) -> Any:
    return const(node.value)


def _tuple(c: Context, node: S.Tuple) -> Any:
    return tuple(expr(c, item) for item in node.items)


# ---- operators ---------------------------------------------------------------------------------------------------------


def _unary(c: Context, node: S.Unary) -> Any:
    x = expr(c, node.operand)
    if is_sx(x):
        if node.op == "not":
            return sop("not", x, dtype="bool")
        return sop("neg" if node.op == "-" else "~", x)
    if is_vx(x):
        if node.op == "not":
            c.fail("language/type", "`not` needs a uniform condition; a mask is inverted with `~`", node.span)
        if node.op == "-":
            arithmetic(c, x, node)
        return B.VOp("neg" if node.op == "-" else "~", (x,), x.type)
    c.fail("language/type", f"'{node.op}' does not apply to {describe(x)}", node.span)


def _is_product(node: Any) -> bool:
    return isinstance(node, S.Binary) and node.op == "*"


def _binary(c: Context, node: S.Binary) -> Any:
    """Arithmetic. Contraction is syntactic: a product directly under + or - is one fma (of two products, the left one)."""
    if node.op in ("+", "-"):
        for side, other in ((node.left, node.right), (node.right, node.left)):
            if _is_product(side):
                contracted = _contract(c, node, side, other, side is node.left)
                if contracted is not None:
                    return contracted
                break
    return combine(c, node.op, expr(c, node.left), expr(c, node.right), node)


def _contract(c: Context, node: S.Binary, product: S.Binary, other: Any, left: bool) -> Any:
    # evaluation order stays left to right, because ops inside emit temporaries
    if left:
        a, b = expr(c, product.left), expr(c, product.right)
        z = expr(c, other)
    else:
        z = expr(c, other)
        a, b = expr(c, product.left), expr(c, product.right)
    if is_sx(a) and is_sx(b) and is_sx(z):
        if "f32" not in (a.dtype, b.dtype, z.dtype) or all(isinstance(v, B.SConst) for v in (a, b)):
            ab = combine(c, "*", a, b, product)
            return combine(c, node.op, ab, z, node) if left else combine(c, node.op, z, ab, node)
        a, b, z = (to_f32(c, v, node) for v in (a, b, z))
        if node.op == "-" and left:
            z = sop("neg", z)
        if node.op == "-" and not left:
            a = sop("neg", a)
        return sop("fma", a, b, z, dtype="f32")
    for v in (a, b, z):
        if not (is_sx(v) or is_vx(v)):
            c.fail("language/type", f"'{node.op}' does not apply to {describe(v)}", node.span)
    if is_sx(a) and is_sx(b):
        # a uniform product is computed once; the sum is a plain sum with it
        return combine(c, node.op, *((combine(c, "*", a, b, product), z) if left else (z, combine(c, "*", a, b, product))), node)
    (a, b, z), type_ = unify(c, (a, b, z), node)
    if type_.dtype is not F32:
        arithmetic(c, a, node)
        ab = B.VOp("*", (a, b), type_)
        return B.VOp(node.op, (ab, z) if left else (z, ab), type_)
    op = "fma" if node.op == "+" else "fms" if left else "fnma"
    return B.VOp(op, (a, b, z), type_)


def combine(c: Context, op: str, a: Any, b: Any, node: Any) -> Any:
    """A binary operator on two scalars, two tiles, or a tile and a scalar."""
    if is_sx(a) and is_sx(b):
        return _combine_scalars(c, op, a, b, node)
    if not ((is_sx(a) or is_vx(a)) and (is_sx(b) or is_vx(b))):
        bad = b if is_sx(a) or is_vx(a) else a
        c.fail("language/type", f"'{op}' does not apply to {describe(bad)}", node.span)
    (a, b), type_ = unify(c, (a, b), node)
    if op in COMPARE:
        arithmetic(c, a, node)
        return B.VOp(op, (a, b), type_.with_dtype(BOOL))
    if op in ("&", "|", "^"):
        if type_.dtype not in (BOOL, I32, DTYPES["u32"]):
            c.fail("language/type", f"'{op}' needs masks or i32 tiles, got {type_.dtype}", node.span)
        return B.VOp(op, (a, b), type_)
    if op in ("<<", ">>") and type_.dtype not in (I32, DTYPES["u32"]):
        c.fail("language/type", f"'{op}' needs i32 tiles, got {type_.dtype}; use bitcast", node.span)
    if op in ("//", "%", "/"):
        c.fail("language/type", f"'{op}' is not an operator of register tiles; multiply by rcp(x)", node.span)
    arithmetic(c, a, node)
    return B.VOp(op, (a, b), type_)


def _combine_scalars(c: Context, op: str, a: Any, b: Any, node: Any) -> Any:
    if op == "/":
        if isinstance(a, B.SConst) and isinstance(b, B.SConst) and b.value != 0:
            return const(float(a.value) / float(b.value))
        c.fail("language/type", "'/' exists for static values only; use // or rcp", node.span)
    if op in ("//", "%") and isinstance(b, B.SConst) and b.value == 0:
        c.fail("language/division-by-zero", f"'{op}' by zero", node.span)
    kinds = {a.dtype, b.dtype}
    if kinds <= {"i32"} or (kinds <= {"bool"} and op in ("&", "|", "==", "!=")):
        return sop({"&": "and", "|": "or"}.get(op, op) if kinds == {"bool"} else op, a, b)
    if kinds <= {"f32", "i32"}:
        if op in ("//", "%", "<<", ">>", "&", "|", "^"):
            c.fail("language/type", f"'{op}' needs integers", node.span)
        return sop(op, to_f32(c, a, node), to_f32(c, b, node))
    c.fail("language/type", f"'{op}' on {a.dtype} and {b.dtype}; 16-bit and 8-bit values must be cast before arithmetic", node.span)


def to_f32(c: Context, x: Any, node: Any) -> Any:
    """A scalar as f32: a static integer converts, a runtime index must be cast."""
    if x.dtype == "f32":
        return x
    if isinstance(x, B.SConst) and not isinstance(x.value, bool):
        return B.SConst(float(x.value), "f32")
    c.fail("language/type", f"no implicit conversion from {x.dtype} to f32; use cast(x, f32)", node.span)


def arithmetic(c: Context, x: Any, node: Any) -> None:
    """16-bit and 8-bit tiles must be cast before arithmetic; masks do not add."""
    if x.type.dtype not in (F32, I32, DTYPES["u32"]):
        c.fail("language/type", f"arithmetic on {x.type.dtype}; cast to f32 or i32 first", node.span,
               contract="Arithmetic is f32 and i32 only; 16-bit and 8-bit values must be cast.")


def unify(c: Context, values: tuple[Any, ...], node: Any) -> tuple[tuple[Any, ...], TileType]:
    """Bring scalars and tiles to one type: equal layouts and shapes, a scalar takes the tile's dtype."""
    tiles = [v for v in values if is_vx(v)]
    type_ = tiles[0].type
    for t in tiles[1:]:
        a, b = type_, t.type
        if (a.layout, a.rows, a.cols, a.axis, a.threads) != (b.layout, b.rows, b.cols, b.axis, b.threads):
            # an expanded vector adapts to the tile's extent along its broadcast axis
            continue
        if a.dtype is not b.dtype:
            c.fail("language/type", f"dtypes differ: {a} and {b}; use cast", node.span)
    full = _tile_shape(c, tiles, node)
    out = []
    for v in values:
        if is_sx(v):
            out.append(splat(c, v, full, node))
        else:
            out.append(_widen(v, full))
    return tuple(out), full


def _widen(v: Any, full: TileType) -> Any:
    """Give an expanded vector (or arithmetic on one) the full tile type it is used at."""
    if (v.type.rows, v.type.cols) == (full.rows, full.cols):
        return v
    type_ = full.with_dtype(v.type.dtype)
    if isinstance(v, B.VExpand):
        return B.VExpand(v.x, type_)
    if isinstance(v, B.VSplat):
        return B.VSplat(v.x, type_)
    if isinstance(v, B.VOp):
        return B.VOp(v.op, tuple(_widen(a, full) for a in v.args), type_)
    return v


def _tile_shape(c: Context, tiles: list[Any], node: Any) -> TileType:
    """The common tile type; two expanded vectors of one layout make an outer product."""
    solid = [t for t in tiles if not _expanded(t)]
    base = solid[0].type if solid else tiles[0].type
    rows, cols = base.rows, base.cols
    if not solid:
        rows = max(t.type.rows for t in tiles)
        cols = max(t.type.cols for t in tiles)
    want = TileType(base.dtype, base.layout, rows, cols, base.axis, base.threads)
    for t in tiles:
        a = t.type
        same = (a.layout, a.axis, a.threads) == (want.layout, want.axis, want.threads)
        if _expanded(t):
            fits = _expanded_fits(t, want)
        else:
            fits = (a.rows, a.cols) == (rows, cols)
        if not same or not fits:
            c.fail("language/layout-mismatch", f"elementwise operands differ: {want} and {a}", node.span,
                   contract="Elementwise ops need equal layouts and shapes; a conversion is an explicit op.")
        if a.dtype is not want.dtype:
            c.fail("language/type", f"dtypes differ: {want.dtype} and {a.dtype}; use cast", node.span)
    return want


def _expanded(v: Any) -> bool:
    """True for a value that still varies along one axis only (extent 1 on the other)."""
    if isinstance(v, B.VExpand):
        return v.type.rows == 1 or v.type.cols == 1
    if isinstance(v, B.VOp):
        return all(_expanded(a) or isinstance(a, B.VSplat) for a in v.args) and (v.type.rows == 1 or v.type.cols == 1) and v.type.axis is None
    return False


def _expanded_fits(v: Any, want: TileType) -> bool:
    return v.type.rows in (1, want.rows) and v.type.cols in (1, want.cols)


def splat(c: Context, x: Any, type_: TileType, node: Any) -> Any:
    """A uniform scalar as a tile; it takes the tile's dtype when that loses nothing."""
    want = type_.dtype.name
    if x.dtype == want or (want == "u32" and x.dtype == "i32"):
        return B.VSplat(x, type_)
    if isinstance(x, B.SConst):
        if type_.dtype.kind == "f" and not isinstance(x.value, bool):
            return B.VSplat(B.SConst(float(x.value), want), type_)
        if want == "bool" and isinstance(x.value, bool):
            return B.VSplat(x, type_)
    c.fail("language/type", f"a scalar {x.dtype} does not fit a tile of {type_.dtype}; use cast", node.span)


def _compare(c: Context, node: S.Compare) -> Any:
    parts = []
    left = expr(c, node.first)
    for op, right_node in zip(node.ops, node.rest, strict=True):
        right = expr(c, right_node)
        parts.append(combine(c, op, left, right, node))
        left = right
    if len(parts) == 1:
        return parts[0]
    if all(is_sx(p) for p in parts):
        return sop("and", *parts)
    result = parts[0]
    for p in parts[1:]:
        result = combine(c, "&", result, p, node)
    return result


def _logic(c: Context, node: S.Logic) -> Any:
    values = [expr(c, v) for v in node.operands]
    for v, operand in zip(values, node.operands, strict=True):
        if is_vx(v):
            c.fail("language/type", f"`{node.op}` needs uniform conditions; masks combine with & and |", operand.span)
        if not is_sx(v):
            c.fail("language/type", f"`{node.op}` does not apply to {describe(v)}", operand.span)
    return sop(node.op, *[v if v.dtype == "bool" else sop("!=", v, ZERO) for v in values])


# ---- attributes and indexing ---------------------------------------------------------------------------------------------


def _attribute(c: Context, node: S.Attribute) -> Any:
    base = expr(c, node.value)
    if isinstance(base, Device) and node.name == "sms":
        return B.SVar(c.builtins["sms"])
    if isinstance(base, TileSpace) and node.name == "count":
        return base.count
    if isinstance(base, Layout) and node.name in ("rows", "cols"):
        return LayoutAxis(base, node.name)
    if node.name == "T":
        if isinstance(base, B.Buffer):
            base = on_chip(c, base, node)
        if isinstance(base, OnChip):
            if len(base.dims) < 2:
                c.fail("language/type", ".T needs two dimensions", node.span)
            return OnChip(base.buffer, base.use, base.row0, base.rows, base.col0, base.cols, base.dims, not base.transposed, base.rank, node.span)
        if isinstance(base, B.Region):
            return B.Region(base.tensor, base.dims, not base.transposed, node.span)
    c.fail("language/unknown-attribute", f"{describe(base)} has no attribute '{node.name}'", node.span)


def on_chip(c: Context, buffer: B.Buffer, node: Any) -> OnChip:
    """A whole unstaged tile as a view."""
    if buffer.staged:
        c.fail("language/stage-missing", f"'{buffer.name}' is staged; index it by a use number: {buffer.name}[n]", node.span)
    return OnChip(buffer, None, ZERO, buffer.rows, ZERO, buffer.cols, buffer.dims, False, None, node.span)


def _index(c: Context, node: S.Index) -> Any:
    base = expr(c, node.value)
    if isinstance(base, B.Tensor):
        return _region(c, base, node)
    if isinstance(base, B.Buffer):
        if base.staged:
            use = _one_index(c, node)
            return OnChip(base, use, ZERO, base.rows, ZERO, base.cols, base.dims, False, None, node.span)
        base = on_chip(c, base, node)
    if isinstance(base, OnChip):
        return _index_view(c, base, node)
    if isinstance(base, B.Barrier):
        return B.BarUse(base, _one_index(c, node), None, node.span)
    if isinstance(base, (Layout, LayoutAxis)):
        return _layout_shape(c, base, node)
    if is_vx(base):
        return _expand(c, base, node)
    c.fail("language/type", f"{describe(base)} cannot be indexed", node.span)


def _one_index(c: Context, node: S.Index) -> Any:
    if len(node.items) != 1 or isinstance(node.items[0], (S.Slice, S.NewAxis)):
        c.fail("language/index", "one use number is expected here", node.span)
    return index(c, node.items[0], "a use number")


def _index_view(c: Context, view: OnChip, node: S.Index) -> OnChip:
    for item in node.items:
        if isinstance(item, (S.Slice, S.NewAxis)):
            c.fail("language/index", "an on-chip view is sliced with .rows(start, count) and .cols(start, count)", item.span)
        if not view.dims or view.transposed:
            c.fail("language/rank", "too many indices for this view", node.span)
        i = index(c, item)
        _in_bounds(c, i, 1, view.dims[0], f"index of {view.buffer.name}", item.span)
        rest = view.dims[1:]
        if rest:
            height = 1
            for d in rest[:-1]:
                height *= d
            row0 = sop("+", view.row0, sop("*", i, const(height)))
            view = OnChip(view.buffer, view.use, row0, height, view.col0, view.cols, rest, False, view.rank, node.span)
        else:
            view = OnChip(view.buffer, view.use, view.row0, 1, sop("+", view.col0, i), 1, (), False, view.rank, node.span)
    return view


def _in_bounds(c: Context, start: Any, count: int, extent: int, what: str, span: Any) -> None:
    from cake_ir.binding.scalars import interval

    low, high = interval(start, c.ranges, c.definitions)
    if low > extent - count or high < 0 or (isinstance(start, B.SConst) and not 0 <= start.value <= extent - count):
        value = int(low) if low == high else f"{low} .. {high}"
        c.fail("data/view-out-of-bounds", f"{what}: start {value} with {count} element(s) lies outside 0 .. {extent}", span,
               contract="An on-chip view has exact extents and lies inside its tile.")
    if high > extent - count and high != float("inf") and low >= 0:
        c.fail("data/view-out-of-bounds", f"{what}: start reaches {int(high)}, {count} element(s) end at {int(high) + count} of {extent}", span,
               contract="An on-chip view has exact extents and lies inside its tile.")


def _region(c: Context, tensor: B.Tensor, node: S.Index) -> B.Region:
    if len(node.items) != len(tensor.extents):
        c.fail("language/rank", f"'{tensor.name}' has {len(tensor.extents)} dimensions, {len(node.items)} indices given", node.span)
    dims = []
    for item in node.items:
        if isinstance(item, S.NewAxis):
            c.fail("language/index", "None is not an index of a tensor", item.span)
        if isinstance(item, S.Slice):
            start = index(c, item.start) if item.start is not None else ZERO
            stop = index(c, item.stop) if item.stop is not None else None
            if isinstance(start, B.SConst) and start.value < 0:
                c.fail("data/region-start-negative", f"a region starts at {start.value}", item.span, contract="The start of a region is >= 0.")
            dims.append(B.RegionDim("slice", start, stop, 0))
            continue
        value = expr(c, item)
        if is_vx(value):
            if value.type.dtype is not I32 or value.type.axis is None:
                c.fail("language/index", f"a gather index is an i32 vector, got {value.type}", item.span)
            dims.append(B.RegionDim("gather", ZERO, None, value.type.shape[0], value))
        elif is_sx(value) and value.dtype == "i32":
            dims.append(B.RegionDim("index", value))
        else:
            c.fail("language/index", f"expected an index, got {describe(value)}", item.span)
    return B.Region(tensor, tuple(dims), False, node.span)


def _layout_shape(c: Context, base: Any, node: S.Index) -> LayoutShape:
    sizes = []
    for item in node.items:
        if isinstance(item, (S.Slice, S.NewAxis)):
            c.fail("language/index", "a layout shape is static numbers", item.span)
        sizes.append(static_int(c, item, "a layout shape"))
    if isinstance(base, LayoutAxis):
        if len(sizes) != 1:
            c.fail("language/rank", f"{base.layout}.{base.axis}[n] takes one number", node.span)
        rows, cols = (sizes[0], 1) if base.axis == "rows" else (1, sizes[0])
        return LayoutShape(base.layout, rows, cols, base.axis)
    if len(sizes) != 2:
        c.fail("language/rank", f"a tile is {base}[rows, cols]; a vector is {base}.rows[n] or {base}.cols[n]", node.span)
    return LayoutShape(base, sizes[0], sizes[1], None)


def tile_type(c: Context, dtype: DType, shape: LayoutShape, span: Any) -> TileType:
    """A register type of the current unit, checked against its layout's shape rule."""
    unit = UNITS[shape.layout.name]
    if c.unit not in ("W", "G") or (unit == "warp" and c.unit != "W") or (unit == "warpgroup" and c.unit != "G"):
        have = {"K": "kernel level", "T": "one thread", "W": "a warp", "G": "a warpgroup"}[c.unit]
        c.fail("language/layout-unit", f"{shape.layout} belongs to {'a ' + unit if unit != 'any' else 'a warp or warpgroup'}; here the unit is {have}", span,
               contract="A fragment belongs to the unit that made it.")
    type_ = TileType(dtype, shape.layout, shape.rows, shape.cols, shape.axis, c.threads)
    problem = shape_problem(type_)
    if problem:
        c.fail("language/layout-shape", problem, span)
    if placement(type_).slots > 1024:
        c.fail("hardware/register-pressure", f"{type_} needs {placement(type_).slots} elements per thread", span, contract="A thread has at most 255 registers.")
    return type_


def _expand(c: Context, base: Any, node: S.Index) -> Any:
    t = base.type
    pattern = ["new" if isinstance(i, S.NewAxis) else "all" if isinstance(i, S.Slice) and i.start is None and i.stop is None else "?" for i in node.items]
    want = {"rows": ["all", "new"], "cols": ["new", "all"]}.get(t.axis or "")
    if want is None or pattern != want:
        if t.axis is None:
            c.fail("language/index", "a register tile is sliced with .rows(start, count) and .cols(start, count)", node.span)
        c.fail("language/index", f"a .{t.axis} vector is expanded as [{':, None' if t.axis == 'rows' else 'None, :'}]", node.span)
    rows, cols = (t.rows, 1) if t.axis == "rows" else (1, t.cols)
    return B.VExpand(base, TileType(t.dtype, t.layout, rows, cols, None, t.threads))


# ---- calls -------------------------------------------------------------------------------------------------------------


def _call(c: Context, node: S.Call) -> Any:
    if isinstance(node.func, S.Attribute):
        return _method(c, node)
    if not isinstance(node.func, S.Name):
        c.fail("language/call", "only ops and functions can be called", node.span)
    name = node.func.id
    if name == "vec":
        return _vec(c, node)
    if name in ELEMENTWISE:
        from cake_ir.binding.functions import function

        return function(c, name, node)
    if name == "fragment":
        from cake_ir.binding.stmts import fragment

        frag, value = fragment(c, node, f"fragment_{c.statements}")
        c.emit(B.Let(frag, value, node.span, fresh=True))
        return B.VFrag(frag, frag.type)
    from cake_ir.binding.opcall import call_op

    results = call_op(c, node)
    if not results:
        c.fail("language/no-value", f"{name}() gives no value", node.span)
    values = tuple(as_value(c, r) for r in results)
    return values[0] if len(values) == 1 else values


def _vec(c: Context, node: S.Call) -> Layout:
    if node.keywords or not 1 <= len(node.args) <= 2:
        c.fail("language/arguments", "vec(V) or vec(V, L)", node.span)
    numbers = [static_int(c, a, "a vec parameter") for a in node.args]
    if min(numbers) < 1:
        c.fail("language/layout-shape", "vec parameters are positive", node.span)
    return Layout("vec", *numbers)


def _method(c: Context, node: S.Call) -> Any:
    attr = node.func
    base = expr(c, attr.value)
    name = attr.name
    if node.keywords:
        c.fail("language/arguments", f".{name}() takes no keywords", node.span)
    if isinstance(base, B.Buffer) and name in ("rows", "cols", "on"):
        base = on_chip(c, base, node)
    if name == "on" and len(node.args) == 1:
        return _on(c, base, node)
    if name in ("rows", "cols"):
        if len(node.args) != 2:
            c.fail("language/arguments", f".{name}(start, count)", node.span)
        count = static_int(c, node.args[1], "a slice length")
        if count < 1:
            c.fail("language/arguments", "a slice length is positive", node.args[1].span)
        if isinstance(base, OnChip):
            return _slice_view(c, base, name, index(c, node.args[0]), count, node)
        if is_vx(base):
            return _slice_fragment(c, base, name, static_int(c, node.args[0], "a fragment slice start"), count, node)
    if isinstance(base, TileSpace) and name == "at" and len(node.args) == 1:
        from cake_ir.binding.tiles import coordinates

        return coordinates(c, base, index(c, node.args[0]), node.span)
    if isinstance(base, TileSpace) and name == "persistent":
        c.fail("language/call", ".persistent() is a loop: for ... in SPACE.persistent():", node.span)
    c.fail("language/unknown-attribute", f"{describe(base)} has no method '{name}'", node.span)


def _on(c: Context, base: Any, node: S.Call) -> Any:
    rank = index(c, node.args[0], "a cluster rank")
    cluster = c.launch.cluster if c.launch else 1
    if isinstance(rank, B.SConst) and not 0 <= rank.value < cluster:
        c.fail("hardware/cluster-rank", f"rank {rank.value} in a cluster of {cluster}", node.span)
    # with cluster=1 this is the plain local form
    keep = rank if cluster > 1 else None
    if isinstance(base, B.BarUse):
        return B.BarUse(base.barrier, base.use, keep, node.span)
    if isinstance(base, OnChip):
        return OnChip(base.buffer, base.use, base.row0, base.rows, base.col0, base.cols, base.dims, base.transposed, keep, node.span)
    c.fail("language/type", f".on(rank) does not apply to {describe(base)}", node.span)


def _slice_view(c: Context, v: OnChip, axis: str, start: Any, count: int, node: Any) -> OnChip:
    if not v.dims or (len(v.dims) == 1 and axis == "rows"):
        c.fail("language/rank", f".{axis} does not apply to a view of shape {list(v.dims)}", node.span)
    real = axis if not v.transposed else ("cols" if axis == "rows" else "rows")
    extent = v.rows if real == "rows" else v.cols
    _in_bounds(c, start, count, extent, f".{axis} of {v.buffer.name}", node.span)
    if real == "rows":
        return OnChip(v.buffer, v.use, sop("+", v.row0, start), count, v.col0, v.cols, (count, v.cols), v.transposed, v.rank, node.span)
    dims = (count,) if len(v.dims) == 1 else (v.rows, count)
    return OnChip(v.buffer, v.use, v.row0, v.rows, sop("+", v.col0, start), count, dims, v.transposed, v.rank, node.span)


def _slice_fragment(c: Context, x: Any, axis: str, start: int, count: int, node: Any) -> Any:
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
        c.fail("language/fragment-slice", f".{axis}({start}, {count}) of {t}: start and count are multiples of {grain} inside {extent}", node.span,
               contract="Fragments are sliced statically, at multiples of the layout's block.")
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


_DISPATCH: dict[type, Any] = {
    S.Name: _name, S.Num: _num, S.Bool: _bool, S.Tuple: _tuple, S.Unary: _unary, S.Binary: _binary, S.Compare: _compare, S.Logic: _logic,
    S.Attribute: _attribute, S.Index: _index, S.Call: _call,
}
__all__ = ["SilentError", "condition", "describe", "expr", "index", "is_sx", "is_vx", "materialize", "scalar", "static_int", "tile_type"]
