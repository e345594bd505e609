"""Derived facts: memory map, arrival counts, expected bytes, named barrier ids, tensor maps, launch, guards."""

from __future__ import annotations

from cake_ir.derive.core import derive
from cake_ir.derive.model import (
    BoxCopy,
    Derived,
    Guard,
    LaunchFacts,
    NamedKey,
    RegisterChange,
    TensorMap,
)

__all__ = ["BoxCopy", "Derived", "Guard", "LaunchFacts", "NamedKey", "RegisterChange", "TensorMap", "derive"]
