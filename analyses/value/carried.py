"""What decides whether a `while` goes on, and whether a round can still change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cake_ir.bound import (
    For,
    Fragment,
    Let,
    Op,
    Region,
    ScalarVar,
    SConst,
    SetScalar,
    SOp,
    SVar,
    VExpand,
    VFrag,
    View,
    VOp,
    VSplat,
    While,
    sx_vars,
)

MAX_ROUNDS = 1_000_000
"""Rounds of one `while` after which it counts as stuck."""
Name = ScalarVar | Fragment
_SX = (SConst, SVar, SOp)


@dataclass(frozen=True)
class Carried:
    """names: what the condition of a loop follows from, through the loop's own statements. memory: some of it is loaded from
    memory that may change meanwhile. fixed: no round changes any of it."""

    names: tuple[Name, ...]
    memory: bool
    fixed: bool


def carried(s: While) -> Carried:
    """What decides whether a loop goes on."""
    before, inside = _statements(s.prelude), _statements(s.body)
    names: set[Name] = set(sx_vars(s.cond))
    memory, size = False, -1
    while size != len(names):
        size = len(names)
        for written, read, loads in before + inside:
            if written & names:
                names |= read
                memory = memory or loads
    again: set[Name] = set().union(*(w for w, _, _ in before), set())
    fixed = not memory and not any(w & names for w, _, _ in inside)
    for written, read, _ in before:  # each prelude computes the same again if it reads only what it has computed before
        if written & names and read & again:
            fixed = False
        again -= written
    order = sorted(names, key=lambda v: (isinstance(v, Fragment), v.name, str(v.span)))
    return Carried(tuple(order), memory, fixed)


def _statements(body: tuple[Any, ...], above: frozenset[Name] = frozenset()) -> list[tuple[set[Name], set[Name], bool]]:
    """(written, read, whether changing memory is read) of every statement; what stands under a condition also reads that."""
    found: list[tuple[set[Name], set[Name], bool]] = []
    for s in body:
        if isinstance(s, SetScalar):
            found.append(({s.var}, set(sx_vars(s.value)) | above, False))
        elif isinstance(s, Let):
            found.append(({s.frag}, reads(s.value) | above, False))
        elif isinstance(s, Op):
            values = list(s.operands.values())
            written: set[Name] = {r for r in s.results if isinstance(r, (ScalarVar, Fragment))}
            acc = s.operands.get("acc")
            written |= {f for f in reads(acc) if isinstance(f, Fragment)}
            read = set().union(*(reads(v) for v in values), set())
            changing = s.decl.completion.startswith("group:") or any(
                isinstance(v, View) or (isinstance(v, Region) and v.tensor.direction in ("InOut", "Out"))
                for v in values
            )
            found.append((written, read | above, changing))
        else:
            under = set(above)
            for part in ("start", "stop", "step", "cond"):
                x = getattr(s, part, None)
                under |= sx_vars(x) if isinstance(x, _SX) else set()
            if isinstance(s, For):
                found.append(({s.var}, set(under), False))
            for part in ("prelude", "then", "orelse", "body"):
                found += _statements(getattr(s, part, None) or (), frozenset(under))
    return found


def reads(x: Any) -> set[Name]:
    """Scalars and fragments that an operand or a value reads."""
    if isinstance(x, _SX):
        return set(sx_vars(x))
    if isinstance(x, Fragment):
        return {x}
    if isinstance(x, VFrag):
        return {x.frag}
    if isinstance(x, (VSplat, VExpand)):
        return reads(x.x)
    if isinstance(x, VOp):
        return set().union(*(reads(y) for y in x.args), set())
    if isinstance(x, View):
        return set().union(*(reads(y) for y in (x.use, x.row0, x.col0, x.rank) if y is not None), set())
    if isinstance(x, Region):
        return set().union(*(reads(y) for d in x.dims for y in (d.start, d.stop, d.rows) if y is not None), set())
    if isinstance(x, tuple):
        return set().union(*(reads(y) for y in x), set())
    return set()
