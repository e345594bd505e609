"""The order in which a compiler leaves statements that follow each other: loads ahead of their use."""

from __future__ import annotations

from collections.abc import Sequence

from analyses.cost.code import reads
from cake_ir import bound as B
from cake_ir.layouts import registers

AHEAD = 64
"""Registers of a thread that a compiler fills with loads ahead of their use."""


def movable(s: B.Stmt) -> bool:
    """Whether loads pass a statement, or it is one; whatever else there is, they stay on their side of."""
    return isinstance(s, B.Let) or (isinstance(s, B.Op) and s.name in ("load", "store"))


def order(run: Sequence[B.Stmt]) -> list[int]:
    """The places of movable statements in the order of execution: loads before what comes between them and their use, as far as
    registers last. No load passes a store to what it reads."""
    out: list[int] = []
    loads: list[int] = []
    rest: list[int] = []
    held, defined, stored = 0, set[int](), set[int]()
    for i, s in enumerate(run):
        if isinstance(s, B.Op) and s.name == "load":
            size = sum(registers(r.type) for r in s.results if isinstance(r, B.Fragment))
            if held + size > AHEAD or id(_memory(s)) in stored or any(id(f) in defined for f in reads(s)):
                out += loads + rest
                loads, rest = [], []
                held, defined, stored = 0, set(), set()
            held += size
            loads.append(i)
        else:
            if isinstance(s, B.Op):
                stored.add(id(_memory(s)))
            elif isinstance(s, B.Let):
                defined.add(id(s.frag))
            rest.append(i)
    return out + loads + rest


def _memory(op: B.Op) -> B.Tensor | B.Buffer | None:
    """The tensor or buffer that an op reads or writes."""
    for x in op.operands.values():
        if isinstance(x, B.Region):
            return x.tensor
        if isinstance(x, B.View):
            return x.buffer
    return None
