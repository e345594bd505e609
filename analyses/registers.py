"""Registers: the fragments that are alive at once in each role, exact from the types, against the role's budget.

Scalars, addresses and descriptors are not modelled one by one: `OVERHEAD` registers stand for them. Fragments that are
computed from coordinates and uniform scalars alone take none, and a widening cast takes those of its source: each element
is computed again where it is read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from analyses.context import fragments_of
from cake_ir.bound import (
    BoundKernel,
    ElectedBlock,
    For,
    Fragment,
    If,
    Let,
    Op,
    Role,
    RoleBlock,
    SConst,
    VCoord,
    VExpand,
    VFrag,
    VOp,
    WarpsBlock,
    While,
    walk,
)
from cake_ir.derive import Derived
from cake_ir.diagnostics import Span
from cake_ir.layouts import registers
from cake_ir.memo import memo

OVERHEAD = 32
"""Registers per thread for addresses, loop counters and uniform scalars. 128x208 f32 by one warpgroup spills at 232
registers and does not at 240 (CUTLASS pull request 2219), which bounds the constant between 25 and 32."""

LIMIT = 255


@dataclass(frozen=True)
class Peak:
    """The largest number of fragment registers alive at once in a role, where, and which fragments they are. packed: how many of them hold
    elements of 16 bits or fewer."""

    registers: int
    span: Span | None
    alive: tuple[tuple[str, int], ...]
    packed: int = 0


class _Liveness:
    """Backward pass over one role's projection of the body. State: the set of live fragments."""

    def __init__(self, role: Role, stand_ins: dict[Fragment, Fragment | None]) -> None:
        self.role = role
        self.stand_ins = stand_ins
        self.peak = 0
        self.at: Any = None
        self.alive: tuple[tuple[str, int], ...] = ()
        self.packed = 0
        self.sizes: dict[Fragment, int] = {}
        self.loops: dict[tuple[int, frozenset[Fragment]], set[Fragment]] = {}

    def size(self, f: Fragment) -> int:
        """Registers per thread of a fragment."""
        n = self.sizes.get(f)
        if n is None:
            n = self.sizes[f] = registers(f.type)
        return n

    def note(self, live: set[Fragment], stmt: Any) -> None:
        holders = {self.stand_ins.get(f, f) for f in live}
        total = sum(self.size(h) for h in holders if h is not None)
        if total > self.peak:
            self.peak, self.at = total, stmt
            self.packed = sum(self.size(h) for h in holders if h is not None and h.type.dtype.bits <= 16)
            # by what holds it, a fragment that the author named
            order = sorted(live, key=lambda f: f.name)
            held = {h: f for f in order if (h := self.stand_ins.get(f, f)) is not None}
            self.alive = tuple((f.name, self.size(h)) for h, f in held.items())

    def block(self, body: tuple[Any, ...], live: set[Fragment]) -> set[Fragment]:
        for stmt in reversed(body):
            live = self.statement(stmt, live)
        return live

    def statement(self, stmt: Any, live: set[Fragment]) -> set[Fragment]:
        if isinstance(stmt, RoleBlock):
            return self.block(stmt.body, live) if stmt.role is self.role else live
        if isinstance(stmt, (ElectedBlock, WarpsBlock)):
            return self.block(stmt.body, live)
        if isinstance(stmt, If):
            return self.block(stmt.then, set(live)) | self.block(stmt.orelse, set(live))
        if isinstance(stmt, For):
            return self.loop(stmt, stmt.body, live)
        if isinstance(stmt, While):
            return self.loop(stmt, (*stmt.prelude, *stmt.body), live)
        if isinstance(stmt, Let):
            if stmt.frag not in live:  # nobody reads it, as where only its coordinates are asked for: the compiler drops it
                return live
            return self.step(stmt, {stmt.frag}, fragments_of(stmt.value) if stmt.value is not None else set(), live)
        if isinstance(stmt, Op):
            return self.op(stmt, live)
        return live

    def loop(self, stmt: Any, body: tuple[Any, ...], live: set[Fragment]) -> set[Fragment]:
        key = id(stmt), frozenset(live)  # loops around this one come back with the same set: once is enough
        out = self.loops.get(key)
        if out is None:
            out = set(live)
            while True:
                again = out | self.block(body, set(out))
                if again == out:
                    break
                out = again
            self.loops[key] = out
        return set(out)

    def op(self, op: Op, live: set[Fragment]) -> set[Fragment]:
        defs = {r for r in op.results if isinstance(r, Fragment)}
        uses: set[Fragment] = set()
        for name, value in op.operands.items():
            uses |= fragments_of(value)
            if name == "acc" and isinstance(value, VFrag):
                init = op.operands.get("init")
                whole = value.type == value.frag.type
                if whole and isinstance(init, SConst) and init.value:
                    uses -= {value.frag}
                defs.add(value.frag)
        return self.step(op, defs, uses, live)

    def step(self, stmt: Any, defs: set[Fragment], uses: set[Fragment], live: set[Fragment]) -> set[Fragment]:
        before = (live - defs) | uses
        # results and operands overlap only element by element: the larger side is what must fit
        self.note(live | {d for d in defs if not (isinstance(stmt, Let) and stmt.value is None)}, stmt)
        self.note(before, stmt)
        return before


def _stand_ins(bound: BoundKernel) -> dict[Fragment, Fragment | None]:
    """What holds a fragment's value in registers, where that is not the fragment itself.

    Only fragments that are assigned once count, and no op's result or accumulator. Computed from coordinates and uniform
    scalars: nothing. A cast of a whole narrower fragment, itself assigned once: that fragment.
    """
    assigned: Counter[Fragment] = Counter()
    lets: dict[Fragment, Any] = {}
    for stmt in walk(bound.body):
        if isinstance(stmt, Let):
            assigned[stmt.frag] += 1
            lets[stmt.frag] = stmt.value
        elif isinstance(stmt, Op):
            assigned.update(r for r in stmt.results if isinstance(r, Fragment))
            acc = stmt.operands.get("acc")
            assigned.update([acc.frag] if isinstance(acc, VFrag) else [])
    found: dict[Fragment, Fragment | None] = {}
    for frag, value in lets.items():
        if assigned[frag] != 1 or value is None:
            continue
        if _has_coordinate(value) and not fragments_of(value):
            found[frag] = None
        elif isinstance(value, VOp) and value.op == "cast" and isinstance(value.args[0], VFrag):
            source = value.args[0]
            whole = source.type == source.frag.type
            if whole and assigned[source.frag] == 1 and registers(source.type) < registers(frag.type):
                found[frag] = source.frag
    return found


def _has_coordinate(x: Any) -> bool:
    """Whether a row or column index is read; without one the value may be meant as an initial fill."""
    if isinstance(x, VOp):
        return any(_has_coordinate(a) for a in x.args)
    return isinstance(x, VCoord) or (isinstance(x, VExpand) and _has_coordinate(x.x))


def peak(bound: BoundKernel, role: Role) -> Peak:
    """Peak fragment registers of a role's threads (computed once per bound object)."""
    found: dict[Role, Peak] = memo(bound, "register peaks", dict)
    if role not in found:
        found[role] = _peak(bound, role)
    return found[role]


def _peak(bound: BoundKernel, role: Role) -> Peak:
    liveness = _Liveness(role, memo(bound, "register stand-ins", lambda: _stand_ins(bound)))
    liveness.block(bound.body, set())
    alive = tuple(sorted(liveness.alive, key=lambda x: (-x[1], x[0])))
    return Peak(liveness.peak, getattr(liveness.at, "span", None), alive, liveness.packed)


def budget(bound: BoundKernel, derived: Derived) -> tuple[dict[str, Any], ...]:
    """One row per role: registers per thread that it may use, that its fragments need at the peak, and what is left."""
    rows = []
    for role in bound.roles:
        top = peak(bound, role)
        change = derived.launch.setmaxnreg.get(role.name)
        limit = min(LIMIT, change.registers if change else derived.launch.r0)
        rows.append(
            {
                "role": role.name,
                "threads": 32 * role.warps,
                "budget": limit,
                "source": f"setmaxnreg.{change.kind}" if change else "launch bounds",
                "fragments": top.registers,
                "overhead": OVERHEAD,
                "estimate": top.registers + OVERHEAD,
                "left": limit - top.registers - OVERHEAD,
                "line": top.span.line if top.span else None,
                "alive": [{"name": n, "registers": r} for n, r in top.alive],
            }
        )
    return tuple(rows)


def render(rows: tuple[dict[str, Any], ...]) -> str:
    """The register table as text."""
    lines = [f"{'role':<12} {'threads':>7} {'budget':>6} {'fragments':>9} {'estimate':>8}  at the peak"]
    for r in rows:
        alive = ", ".join(f"{a['name']} {a['registers']}" for a in r["alive"]) or "no fragments"
        where = f" (line {r['line']})" if r["line"] else ""
        lines.append(
            f"{r['role']:<12} {r['threads']:>7} {r['budget']:>6} {r['fragments']:>9} {r['estimate']:>8}  {alive}{where}"
        )
    return "\n".join(lines)
