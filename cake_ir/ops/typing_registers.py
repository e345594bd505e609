"""Typing of cross-lane register ops and free conversions."""

from __future__ import annotations

from typing import Any

from cake_ir import bound as B
from cake_ir.dtypes import BOOL, F32, I32
from cake_ir.layouts import Layout, TileType, placement
from cake_ir.ops.typing import Call, check


def _own(call: Call, x: Any, at: str = "x") -> TileType:
    if x.type.threads != call.c.threads:
        call.fail("language/layout-unit", "a warpgroup's fragment is reached inside warps() by warp_part only", at)
    return x.type


def _crosses_warps(t: TileType, axis: str) -> bool:
    """Would a reduction along `axis` combine values of several warps?"""
    if t.layout.name == "vec":
        lanes = t.layout.l or t.threads
        return (lanes > 32) if axis == "row" else t.threads > 32
    return axis == "col" and t.threads > 32


def _reduced(call: Call, axis: str, dtype: Any, i: int = 0) -> Any:
    """The result of reducing along `axis`: a vector of a tile, a scalar of the crossing vector."""
    t = _own(call, call.args["x"])
    along, kept = ("cols", "rows") if axis == "row" else ("rows", "cols")
    if t.axis == kept:
        call.fail("language/rank", f"{call.decl.name} of a .{kept} vector has nothing to reduce", "x")
    if _crosses_warps(t, axis):
        call.fail(
            "hardware/reduction-crosses-warps",
            f"{call.decl.name} of {t} would cross warps",
            "x",
            "Reductions across warps do not exist: partial results go through shared memory and a sync.",
        )
    if t.axis == along:
        return call.scalar(dtype.name, "instance", i)
    return call.result(t.vector(kept).with_dtype(dtype), i)


@check("row_sum", "row_max", "row_min", "col_sum", "col_max", "col_min")
def _reduce(call: Call) -> list[Any]:
    x = call.args["x"]
    if x.type.dtype not in (F32, I32):
        call.fail("language/type", f"{call.decl.name} of {x.type.dtype}; cast first", "x")
    call.keep("x")
    return [_reduced(call, call.decl.name[:3], x.type.dtype)]


@check("row_any", "row_all")
def _votes(call: Call) -> list[Any]:
    if call.args["x"].type.dtype is not BOOL:
        call.fail("language/type", f"{call.decl.name} needs a mask", "x")
    call.keep("x")
    return [_reduced(call, "row", BOOL)]


@check("row_argmin", "row_argmax")
def _arg(call: Call) -> list[Any]:
    x, payload = call.args["x"], call.args["payload"]
    if x.type.dtype not in (F32, I32) or payload.type.dtype is not I32:
        call.fail("language/type", f"{call.decl.name} takes f32 or i32 values and an i32 payload", "payload")
    if payload.type.with_dtype(x.type.dtype) != x.type:
        call.fail("language/layout-mismatch", f"value {x.type} and payload {payload.type} differ", "payload")
    call.keep("x", "payload")
    return [_reduced(call, "row", x.type.dtype, 0), _reduced(call, "row", I32, 1)]


@check("col_cumsum", "row_cumsum")
def _cumsum(call: Call) -> list[Any]:
    t = _own(call, call.args["x"])
    if t.dtype not in (F32, I32) or _crosses_warps(t, call.decl.name[:3]):
        call.fail(
            "hardware/reduction-crosses-warps",
            f"{call.decl.name} of {t} is not offered (f32 or i32, inside a warp)",
            "x",
        )
    call.keep("x")
    return [call.result(t)]


def _cols_vector(call: Call) -> TileType:
    t = _own(call, call.args["x"])
    if t.layout.name != "vec" or t.axis != "cols" or (t.layout.l or t.threads) != 32:
        call.fail("language/type", f"{call.decl.name} takes a .cols vector of vec over one warp, got {t}", "x")
    return t


@check("pick")
def _pick(call: Call) -> list[Any]:
    t = _cols_vector(call)
    if call.args["i"].dtype != "i32":
        call.fail("language/type", "pick(v, i) needs an index", "i")
    call.keep("x", "i")
    return [call.scalar(t.dtype.name, "instance")]


@check("shift")
def _shift(call: Call) -> list[Any]:
    t, fill = _cols_vector(call), call.args["fill"]
    if isinstance(fill, B.SConst) and t.dtype is F32:
        fill = B.SConst(float(fill.value), "f32")
    if fill.dtype != t.dtype.name:
        call.fail("language/type", f"fill is {fill.dtype}, the vector {t.dtype}", "fill")
    call.operands.update(x=call.args["x"], fill=fill)
    return [call.result(t)]


@check("row_bits")
def _row_bits(call: Call) -> list[Any]:
    t = _own(call, call.args["x"])
    if t.dtype is not BOOL or t.layout.name != "mma_d" or t.axis != "rows" or t.rows != 16:
        call.fail("language/type", f"row_bits takes a bool mma_d.rows[16], got {t}", "x")
    call.keep("x")
    return [call.scalar("i32", "instance")]


@check("operand_a", "operand_b")
def _operand(call: Call) -> list[Any]:
    t = _own(call, call.args["x"])
    table = {"operand_a": {"mma_d": "mma_a", "wgmma_d": "wgmma_a"}, "operand_b": {"mma_d": "mma_b"}}[call.decl.name]
    if t.layout.name not in table or t.dtype.bits != 16 or t.axis is not None or t.cols % 16:
        call.fail(
            "language/type",
            f"{call.decl.name} renames 16-bit {' / '.join(table)} tiles with columns in steps of 16, got {t}",
            "x",
            "8-bit operands need shared memory: the f32 and 8-bit patterns differ.",
        )
    call.keep("x")
    return [call.result(TileType(t.dtype, Layout(table[t.layout.name]), t.rows, t.cols, None, t.threads))]


@check("transpose")
def _transpose(call: Call) -> list[Any]:
    t = _own(call, call.args["x"])
    if t.layout.name != "mma_d" or t.dtype.bits != 16 or t.axis is not None or t.cols % 16:
        call.fail("language/type", f"transpose takes a 16-bit mma_d tile with columns in steps of 16, got {t}", "x")
    call.keep("x")
    return [call.result(TileType(t.dtype, t.layout, t.cols, t.rows, None, t.threads))]


@check("warp_part")
def _warp_part(call: Call) -> list[Any]:
    t = call.args["x"].type
    if t.threads != 128 or t.layout.name != "wgmma_d":
        call.fail("language/type", f"warp_part takes a wgmma_d fragment of the warpgroup, got {t}", "x")
    rows = t.rows // 4 if t.axis != "cols" else 1
    if t.axis != "cols" and t.rows != 64:
        call.fail("language/type", "warp_part takes 64 rows (16 per warp)", "x")
    call.keep("x")
    result = TileType(t.dtype, Layout("mma_d"), rows, t.cols, t.axis, 32)
    assert placement(result).slots == placement(t).slots
    return [call.result(result)]
