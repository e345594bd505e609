"""Expressions: from syntax to scalars (SX), register tiles (VX) and the compile-time objects (views, regions, layouts)."""

from __future__ import annotations

from typing import Any

from cake_ir import bound as B
from cake_ir import syntax as S
from cake_ir.binding.arithmetic import arithmetic, combine, to_f32, unify
from cake_ir.binding.context import Context
from cake_ir.binding.operands import (
    expand,
    index_view,
    layout_shape,
    materialize,
    on_chip,
    on_rank,
    one_index,
    region,
    slice_fragment,
    slice_view,
    tile_type,
)
from cake_ir.binding.scalars import ZERO, const, sop
from cake_ir.binding.scope import Device, LayoutAxis, OnChip, SilentError, Symbol, TileSpace
from cake_ir.binding.values import as_value, describe, is_sx, is_vx
from cake_ir.dtypes import DTYPES, F32
from cake_ir.layouts import UNITS, Layout

MATH = {"exp2", "rcp", "rsqrt", "log2", "sqrt", "tanh"}
ELEMENTWISE = MATH | {
    "max",
    "min",
    "abs",
    "select",
    "max3",
    "min3",
    "cast",
    "bitcast",
    "row_index",
    "col_index",
    "ceil_div",
    "lsb",
}
SYMBOLS = {
    "evict_first",
    "evict_last",
    "no_allocate",
    "add",
    "cluster",
    "grid",
    "warp",
    "warpgroup",
    "thread",
    "shared",
}


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
        c.fail(
            "language/not-static",
            f"{what} must be known when the parameters are bound",
            node.span,
            contract="Shapes, stages, layouts, slices, unroll bounds, wait depths and swizzles are static.",
        )
    return int(value.value)


def condition(c: Context, node: Any) -> Any:
    """A uniform bool. A lane-varying mask cannot branch."""
    value = expr(c, node)
    if is_vx(value):
        c.fail(
            "language/lane-varying-condition",
            "a condition that differs between lanes cannot branch; use select or when=",
            node.span,
            contract="A lane-varying condition is a mask and cannot branch.",
        )
    if not is_sx(value) or value.dtype not in ("bool", "i32"):
        c.fail("language/type", f"expected a condition, got {describe(value)}", node.span)
    return value if value.dtype == "bool" else sop("!=", value, ZERO)


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


def _binary(c: Context, node: S.Binary) -> Any:
    """Arithmetic. Contraction is syntactic: a product directly under + or - is one fma (of two products, the left one)."""
    if node.op in ("+", "-"):
        for side, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(side, S.Binary) and side.op == "*":
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
        return combine(
            c, node.op, *((combine(c, "*", a, b, product), z) if left else (z, combine(c, "*", a, b, product))), node
        )
    (a, b, z), type_ = unify(c, (a, b, z), node)
    if type_.dtype is not F32:
        arithmetic(c, a, node)
        ab = B.VOp("*", (a, b), type_)
        return B.VOp(node.op, (ab, z) if left else (z, ab), type_)
    op = "fma" if node.op == "+" else "fms" if left else "fnma"
    return B.VOp(op, (a, b, z), type_)


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
            return OnChip(
                base.buffer,
                base.use,
                base.row0,
                base.rows,
                base.col0,
                base.cols,
                base.dims,
                not base.transposed,
                base.rank,
                node.span,
            )
        if isinstance(base, B.Region):
            return B.Region(base.tensor, base.dims, not base.transposed, node.span)
    c.fail("language/unknown-attribute", f"{describe(base)} has no attribute '{node.name}'", node.span)


def _index(c: Context, node: S.Index) -> Any:
    base = expr(c, node.value)
    if isinstance(base, B.Tensor):
        return region(c, base, node)
    if isinstance(base, B.Buffer):
        if base.staged:
            use = one_index(c, node)
            return OnChip(base, use, ZERO, base.rows, ZERO, base.cols, base.dims, False, None, node.span)
        base = on_chip(c, base, node)
    if isinstance(base, OnChip):
        return index_view(c, base, node)
    if isinstance(base, B.Barrier):
        return B.BarUse(base, one_index(c, node), None, node.span)
    if isinstance(base, (Layout, LayoutAxis)):
        return layout_shape(c, base, node)
    if is_vx(base):
        return expand(c, base, node)
    c.fail("language/type", f"{describe(base)} cannot be indexed", node.span)


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
    assert isinstance(attr, S.Attribute)
    base = expr(c, attr.value)
    name = attr.name
    if node.keywords:
        c.fail("language/arguments", f".{name}() takes no keywords", node.span)
    if isinstance(base, B.Buffer) and name in ("rows", "cols", "on"):
        base = on_chip(c, base, node)
    if name == "on" and len(node.args) == 1:
        return on_rank(c, base, node)
    if name in ("rows", "cols"):
        if len(node.args) != 2:
            c.fail("language/arguments", f".{name}(start, count)", node.span)
        count = static_int(c, node.args[1], "a slice length")
        if count < 1:
            c.fail("language/arguments", "a slice length is positive", node.args[1].span)
        if isinstance(base, OnChip):
            return slice_view(c, base, name, index(c, node.args[0]), count, node)
        if is_vx(base):
            return slice_fragment(c, base, name, static_int(c, node.args[0], "a fragment slice start"), count, node)
    if isinstance(base, TileSpace) and name == "at" and len(node.args) == 1:
        from cake_ir.binding.tiles import coordinates

        return coordinates(c, base, index(c, node.args[0]), node.span)
    if isinstance(base, TileSpace) and name == "persistent":
        c.fail("language/call", ".persistent() is a loop: for ... in SPACE.persistent():", node.span)
    c.fail("language/unknown-attribute", f"{describe(base)} has no method '{name}'", node.span)


_DISPATCH: dict[type, Any] = {
    S.Name: _name,
    S.Num: _num,
    S.Bool: _bool,
    S.Tuple: _tuple,
    S.Unary: _unary,
    S.Binary: _binary,
    S.Compare: _compare,
    S.Logic: _logic,
    S.Attribute: _attribute,
    S.Index: _index,
    S.Call: _call,
}
__all__ = [
    "SilentError",
    "condition",
    "describe",
    "expr",
    "index",
    "is_sx",
    "is_vx",
    "materialize",
    "scalar",
    "static_int",
    "tile_type",
]
