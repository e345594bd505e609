"""Operators on scalars and register tiles: dtype rules, equal layouts, broadcasting of vectors and scalars."""

from __future__ import annotations

from typing import Any

from cake_ir import bound as B
from cake_ir.binding.context import Context
from cake_ir.binding.scalars import const, sop
from cake_ir.binding.values import describe, is_sx, is_vx
from cake_ir.dtypes import BOOL, DTYPES, F32, I32
from cake_ir.layouts import TileType

COMPARE = {"<", "<=", ">", ">=", "==", "!="}


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
    c.fail(
        "language/type",
        f"'{op}' on {a.dtype} and {b.dtype}; 16-bit and 8-bit values must be cast before arithmetic",
        node.span,
    )


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
        c.fail(
            "language/type",
            f"arithmetic on {x.type.dtype}; cast to f32 or i32 first",
            node.span,
            contract="Arithmetic is f32 and i32 only; 16-bit and 8-bit values must be cast.",
        )


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
            out.append(widen(v, full))
    return tuple(out), full


def widen(v: Any, full: TileType) -> Any:
    """Give an expanded vector (or arithmetic on one) the full tile type it is used at."""
    if (v.type.rows, v.type.cols) == (full.rows, full.cols):
        return v
    type_ = full.with_dtype(v.type.dtype)
    if isinstance(v, B.VExpand):
        return B.VExpand(v.x, type_)
    if isinstance(v, B.VSplat):
        return B.VSplat(v.x, type_)
    if isinstance(v, B.VOp):
        return B.VOp(v.op, tuple(widen(a, full) for a in v.args), type_)
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
            c.fail(
                "language/layout-mismatch",
                f"elementwise operands differ: {want} and {a}",
                node.span,
                contract="Elementwise ops need equal layouts and shapes; a conversion is an explicit op.",
            )
        if a.dtype is not want.dtype:
            c.fail("language/type", f"dtypes differ: {want.dtype} and {a.dtype}; use cast", node.span)
    return want


def _expanded(v: Any) -> bool:
    """True for a value that still varies along one axis only (extent 1 on the other)."""
    if isinstance(v, B.VExpand):
        return v.type.rows == 1 or v.type.cols == 1
    if isinstance(v, B.VOp):
        return (
            all(_expanded(a) or isinstance(a, B.VSplat) for a in v.args)
            and (v.type.rows == 1 or v.type.cols == 1)
            and v.type.axis is None
        )
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
