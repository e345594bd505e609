"""What the control skeleton produces: events with evaluated operands, per agent, and the data choices behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from cake_ir.bound import (
    Barrier,
    BoundKernel,
    Fragment,
    Let,
    Op,
    Region,
    Role,
    ScalarVar,
    SetScalar,
    VExpand,
    VFrag,
    View,
    VOp,
    While,
    sx_vars,
    walk,
)
from cake_ir.diagnostics import Span


class ViewAt(NamedTuple):
    """An evaluated view: cta of the memory, running use number (0 unstaged), slot, box [row0, row1) x [col0, col1)."""

    view: View
    cta: int
    use: int
    slot: int
    row0: int
    row1: int
    col0: int
    col1: int


class RegionAt(NamedTuple):
    """An evaluated region: per tensor dimension (start, stop) clipped at `stop` and extent, or None for gathered
    rows."""

    region: Region
    dims: tuple[tuple[int, int] | None, ...]


class BarAt(NamedTuple):
    """Completion number `use` of a barrier in CTA `cta`: slot and phase (use div stages)."""

    barrier: Barrier
    cta: int
    use: int
    slot: int
    phase: int


class Event:
    """One executed node. node: Op, Let or WarpsBlock (then `children` holds the four warps' events). vals: evaluated
    operands by name. thread: executed by one thread. path: values of the enclosing loops, outermost first."""

    __slots__ = ("children", "node", "path", "thread", "vals")

    def __init__(
        self, node: Any, vals: dict[str, Any], thread: bool, path: tuple[int, ...], children: Any = None
    ) -> None:
        self.node = node
        self.vals = vals
        self.thread = thread
        self.path = path
        self.children = children

    def __repr__(self) -> str:
        name = self.node.name if isinstance(self.node, Op) else type(self.node).__name__
        return f"<{name} {self.vals} @{self.path}>"


@dataclass(eq=False)
class AgentTrace:
    """The events of one role instance."""

    cta: int
    role: Role
    instance: int
    events: list[Event]

    @property
    def label(self) -> str:
        """How findings name the agent."""
        return (
            f"{self.role.name}[{self.instance}] of CTA {self.cta}"
            if self.role.count > 1
            else f"{self.role.name} of CTA {self.cta}"
        )


class SkeletonLimit(Exception):
    """The run was longer than its limit. span: the loop that ran the most rounds without coming to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.span: Span | None = None
        self.rounds = 0

    def inside(self, span: Span, rounds: int) -> None:
        """Called by every loop that the fault leaves; the one with the most rounds is the one to name."""
        if rounds > self.rounds:
            self.span, self.rounds = span, rounds


class Endless(SkeletonLimit):
    """A loop (at span) that never ends: a `while` whose rounds repeat, so that from here on nothing that it reads changes, or
    a `range` whose step is not positive."""

    def __init__(self, why: str = "its rounds come to repeat with the condition still true") -> None:
        super().__init__()
        self.why = why

    def inside(self, span: Span, rounds: int) -> None:
        """The innermost loop is the one that does not end."""
        self.span = self.span or span


def steps(start: int, stop: int, step: int, span: Span) -> range:
    """What a loop runs over. Raises Endless: the device adds the step until the stop is reached."""
    if step < 1 and start < stop:
        fault = Endless(f"its step is {step}")
        fault.inside(span, 0)
        raise fault
    return range(start, stop, max(1, step))


SETTLED = 16
"""Rounds of a `while` after which two equal ones in a row mean that it does not end."""


class AssumeViolated(Exception):
    """The oracle's data contradict an `assume`; the witness says nothing."""


@dataclass(frozen=True)
class DataOracle:
    """Loaded integers and data-dependent control.

    pattern: zero | const | step | ramp | even | odd; `top` is its largest value. even and odd: the tensors of even (odd) number
    in the signature hold `top`, the others 0, so that what must be equal is not by chance. rounds: how often a data-dependent `while` runs
    (0, 1,
    2); a data-dependent `if` is taken when rounds > 0. Equal elements give equal values.
    """

    pattern: str = "zero"
    top: int = 0
    rounds: int = 1

    def value(self, i: int, extent: int, number: int) -> int:
        """The integer at index i of the last dimension; extent: its size; number: of the tensor in the signature."""
        if self.pattern == "const":
            return self.top
        if self.pattern in ("even", "odd"):
            return self.top if number % 2 == (self.pattern == "odd") else 0
        if self.pattern == "step":
            return 0 if i == 0 else self.top
        if self.pattern == "ramp":
            return min(self.top, i * self.top // max(1, extent - 1))
        return 0


def fragments(x: Any) -> set[Fragment]:
    """Fragments that a value expression reads."""
    if isinstance(x, VFrag):
        return {x.frag}
    if isinstance(x, Fragment):
        return {x}
    if isinstance(x, VExpand):
        return fragments(x.x)
    if isinstance(x, VOp):
        return set().union(*(fragments(a) for a in x.args)) if x.args else set()
    return set()


def tracked_fragments(bound: BoundKernel) -> set[Fragment]:
    """Fragments with asynchronous or missing contents: accumulators and register operands of asynchronous products,
    results of deferred loads, fragments without fill."""
    found: set[Fragment] = set()
    for s in walk(bound.body):
        if isinstance(s, Let) and s.value is None:
            found.add(s.frag)
        elif isinstance(s, Op) and s.decl.completion.startswith("group:"):
            found.update(r for r in s.results if isinstance(r, Fragment))
            for value in s.operands.values():
                found |= fragments(value)
    return found


def tainted_scalars(bound: BoundKernel) -> set[ScalarVar]:
    """Scalars whose value the skeleton does not know: floats and flags from data, integers read back from chip memory,
    and what a `while` polls from memory that others write meanwhile."""
    tainted: set[ScalarVar] = set()
    sets = []
    polls = {o for w in walk(bound.body) if isinstance(w, While) for o in walk(w.prelude + w.body) if isinstance(o, Op)}
    for s in walk(bound.body):
        if isinstance(s, Op):
            for r in s.results:
                if isinstance(r, ScalarVar):
                    on_chip = s.name == "load_scalar" and isinstance(s.operands.get("src"), View)
                    src = s.operands.get("src")
                    polled = s in polls and isinstance(src, Region) and src.tensor.direction == "InOut"
                    if r.dtype not in ("i32", "u32", "i64", "u64") or on_chip or polled:
                        tainted.add(r)
        elif isinstance(s, SetScalar):
            sets.append(s)
    changed = True
    while changed:
        changed = False
        for s in sets:
            if s.var not in tainted and sx_vars(s.value) & tainted:
                tainted.add(s.var)
                changed = True
    return tainted
