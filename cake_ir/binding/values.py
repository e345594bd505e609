"""What a compile-time value is, and how it is called in messages."""

from __future__ import annotations

from typing import Any

from cake_ir import bound as B
from cake_ir.binding.scope import LayoutShape, OnChip, TileSpace
from cake_ir.dtypes import DType
from cake_ir.layouts import Layout

SXS = (B.SConst, B.SVar, B.SOp)
VXS = (B.VFrag, B.VSplat, B.VExpand, B.VCoord, B.VOp)


def is_sx(x: Any) -> bool:
    return isinstance(x, SXS)


def is_vx(x: Any) -> bool:
    return isinstance(x, VXS)


def describe(value: Any) -> str:
    """A value in the author's terms."""
    if is_sx(value):
        return f"a scalar {value.dtype}"
    if is_vx(value):
        return f"a register tile {value.type}"
    if isinstance(value, OnChip):
        return f"a view of {value.buffer.name}"
    return {
        B.Region: "a global region",
        B.Tensor: "a whole tensor",
        B.Buffer: "an on-chip tile",
        B.Barrier: "a barrier",
        B.BarUse: "a barrier use",
        Layout: "a layout",
        LayoutShape: "a layout",
        DType: "a dtype",
        B.Role: "a role",
        TileSpace: "a tile space",
        tuple: "a tuple",
    }.get(type(value), type(value).__name__)


def as_value(c: Any, value: Any) -> Any:
    """A resolved name as an operand."""
    if isinstance(value, B.ScalarVar):
        return B.SVar(value)
    if isinstance(value, B.Fragment):
        return B.VFrag(value, value.type)
    return value
