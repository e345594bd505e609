"""Elementwise functions of scalars and register tiles (docs/language.md, "Register expressions")."""

from __future__ import annotations

from typing import Any

from cake_ir import bound as B
from cake_ir import syntax as S
from cake_ir.binding import arithmetic as A
from cake_ir.binding.context import Context
from cake_ir.binding.scalars import sop
from cake_ir.binding.values import describe, is_sx, is_vx
from cake_ir.dtypes import BOOL, F32, I32, DType

_ARITY = {
    "max": 2,
    "min": 2,
    "max3": 3,
    "min3": 3,
    "abs": 1,
    "select": 3,
    "ceil_div": 2,
    "lsb": 1,
    "cast": 2,
    "bitcast": 2,
    "row_index": 1,
    "col_index": 1,
    "exp2": 1,
    "rcp": 1,
    "rsqrt": 1,
    "log2": 1,
    "sqrt": 1,
    "tanh": 1,
}
_CASTS = {"f32", "bf16", "f16", "e4m3", "e5m2", "i32", "tf32"}


def function(c: Context, name: str, node: S.Call) -> Any:
    """Evaluate one elementwise function call."""
    from cake_ir.binding import expr as E

    if node.keywords or len(node.args) != _ARITY[name]:
        c.fail("language/arguments", f"{name}() takes {_ARITY[name]} positional argument(s)", node.span)
    if name in ("cast", "bitcast"):
        return _cast(c, name, node)
    values = [E.expr(c, a) for a in node.args]
    for v, a in zip(values, node.args, strict=True):
        if not (is_sx(v) or is_vx(v)):
            c.fail("language/type", f"{name}() does not apply to {describe(v)}", a.span)
    if name in ("row_index", "col_index"):
        if not is_vx(values[0]) or (values[0].type.axis is not None and values[0].type.axis != name[:3] + "s"):
            c.fail("language/type", f"{name}() takes a register tile, or a vector along that axis", node.span)
        return B.VCoord(name[:3], values[0].type.with_dtype(I32))
    if all(is_sx(v) for v in values):
        return _scalar(c, name, values, node)
    if name in ("ceil_div", "lsb"):
        c.fail("language/type", f"{name}() is for index values", node.span)
    if name == "select":
        return _select(c, values, node)
    values_t, type_ = A.unify(c, tuple(values), node)
    A.arithmetic(c, values_t[0], node)
    if name in E.MATH and type_.dtype is not F32:
        c.fail("language/type", f"{name}() is an f32 function, got {type_.dtype}", node.span)
    if name in ("max3", "min3") and type_.dtype is not I32 and type_.dtype is not F32:
        c.fail("language/type", f"{name}() takes i32 or f32", node.span)
    return B.VOp(name, values_t, type_)


def _scalar(c: Context, name: str, values: list[Any], node: S.Call) -> Any:
    from cake_ir.binding import expr as E

    if name == "select":
        cond, a, b = values
        if cond.dtype != "bool":
            c.fail("language/type", f"select() needs a condition first, got {cond.dtype}", node.span)
        if a.dtype != b.dtype:
            a, b = A.to_f32(c, a, node), A.to_f32(c, b, node)
        return sop("select", cond, a, b, dtype=a.dtype)
    if name in ("max3", "min3"):
        return sop(name[:3], sop(name[:3], values[0], values[1]), values[2])
    if name in ("ceil_div", "lsb"):
        if any(v.dtype != "i32" for v in values):
            c.fail("language/type", f"{name}() needs integers", node.span)
        return sop(name, *values)
    if name in E.MATH:
        return sop(name, A.to_f32(c, values[0], node), dtype="f32")
    if {v.dtype for v in values} == {"f32", "i32"}:
        values = [A.to_f32(c, v, node) for v in values]
    if any(v.dtype not in ("f32", "i32") for v in values):
        c.fail("language/type", f"{name}() of {values[0].dtype}; cast first", node.span)
    return sop(name, *values)


def _select(c: Context, values: list[Any], node: S.Call) -> Any:
    """select(mask, x, y): the mask and the values share one layout."""

    mask, x, y = values
    if is_vx(mask):
        if mask.type.dtype is not BOOL:
            c.fail("language/type", f"select() needs a mask first, got {mask.type}", node.span)
        if is_sx(x) and is_sx(y):
            if x.dtype != y.dtype:
                x, y = A.to_f32(c, x, node), A.to_f32(c, y, node)
            dtype = F32 if x.dtype == "f32" else I32
            type_ = mask.type.with_dtype(dtype)
            return B.VOp("select", (mask, A.splat(c, x, type_, node), A.splat(c, y, type_, node)), type_)
    if is_sx(mask):
        (x, y), type_ = A.unify(c, (x, y), node)
        if mask.dtype != "bool":
            c.fail("language/type", f"select() needs a condition first, got {mask.dtype}", node.span)
        return B.VOp("select", (B.VSplat(mask, type_.with_dtype(BOOL)), x, y), type_)
    # unify shapes of mask and values at once, the mask through a neutral dtype: a value may be one per row or column
    dtype = next(v.type.dtype for v in (x, y) if is_vx(v))
    probe = B.VOp("~", (mask,), mask.type.with_dtype(dtype))
    (_, x, y), type_ = A.unify(c, (probe, x, y), node)
    return B.VOp("select", (A.widen(mask, type_), x, y), type_)


def _cast(c: Context, name: str, node: S.Call) -> Any:
    from cake_ir.binding import expr as E

    x, dtype = E.expr(c, node.args[0]), E.expr(c, node.args[1])
    if not isinstance(dtype, DType):
        c.fail("language/type", f"{name}() needs a dtype second", node.args[1].span)
    if dtype.name not in _CASTS | {"u32"}:
        c.fail("language/type", f"{name}() to {dtype} is not offered", node.args[1].span)
    if name == "bitcast":
        if not is_vx(x) or x.type.dtype.bits != dtype.bits:
            c.fail("language/type", "bitcast() keeps the width: a register tile and a dtype of equal bits", node.span)
        return B.VOp("bitcast", (x,), x.type.with_dtype(dtype))
    source = x.type.dtype.name if is_vx(x) else getattr(x, "dtype", "")
    # e5m2 is the upper byte of an f16, so widening it needs no cvt
    if source != dtype.name and (dtype.name in ("e4m3", "e5m2") or source == "e4m3") and not c.target.has("cvt_fp8"):
        c.fail(
            "hardware/feature-missing",
            f"a conversion {source} -> {dtype} (cvt with e4m3x2 or e5m2x2) does not exist on {c.target.name}",
            node.span,
            contract="PTX ISA, cvt: 8-bit floats need sm_89.",
        )
    if is_sx(x):
        return x if x.dtype == dtype.name else sop("cast", x, dtype=dtype.name)
    if not is_vx(x):
        c.fail("language/type", f"cast() does not apply to {describe(x)}", node.span)
    if x.type.dtype is BOOL:
        c.fail("language/type", "a mask is not cast; use select(mask, x, y)", node.span)
    if x.type.dtype is dtype:
        return x
    narrow = x.type.dtype.bits < 32 and dtype.bits < 32
    integer = x.type.dtype.kind in "iu" and dtype.kind == "f" and x.type.dtype.bits == 64
    if narrow or integer:
        by = "i32" if integer else "f32"
        c.fail("language/type", f"no conversion {x.type.dtype} -> {dtype}; go through {by}", node.span)
    if x.type.layout.name in ("mma_a", "mma_b", "wgmma_a") and x.type.dtype.bits != dtype.bits:
        c.fail(
            "language/type",
            f"an operand layout is tied to its width: cast before operand_a/operand_b ({x.type})",
            node.span,
        )
    return B.VOp("cast", (x,), x.type.with_dtype(dtype))
