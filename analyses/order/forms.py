"""The form of a program that the premises of the cutoff argument speak of: its loops, counters and rings, read off the text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cake_ir.bound import SX, Buffer, For, If, ScalarVar, SConst, SetScalar, SOp, SVar, WarpsBlock, While, sx_vars
from cake_ir.diagnostics import Span

SAME_IN_ALL_CTAS = frozenset({"dim", "scalar", "sms", "cta_count", "cluster_count"})


class Broken(Exception):
    """A premise does not hold. The text names the premise and what breaks it."""

    def __init__(self, text: str, span: Span | None = None) -> None:
        super().__init__(text if span is None else f"{text} (line {span.line})")


@dataclass(frozen=True)
class Counter:
    """How a number grows: `step` per round of the symbolic loop at `level` (1 outermost, 0: it never does)."""

    level: int
    step: int


@dataclass(eq=False)
class Ring:
    """The uses of one staged buffer or barrier ring. low .. high: offsets from its counter over all places."""

    name: str
    stages: int
    span: Span
    counter: Counter = Counter(0, 0)
    late: Span | None = None
    """Where a fixed number is used inside or after the loops."""
    low: float = math.inf
    high: float = -math.inf
    places: set[tuple[int, int, frozenset[int]]] = field(default_factory=set)
    """(level of the counter, symbolic loops around, levels of the guards around) of every use."""

    @property
    def outside(self) -> bool:
        """Used outside the loop that advances it, or only in some of its rounds."""
        level = self.counter.level
        return any(not own or depth < level or any(g <= level for g in guards) for own, depth, guards in self.places)

    @property
    def window(self) -> int:
        """Rounds between which two ops on the ring can be neighbours: the slot repeats after stages / gcd(stages, step)
        rounds, offsets add their distance, and a number read before or after its increment differs by a round."""
        c = self.counter
        if not c.level:
            return 1
        spread = math.ceil((self.high - self.low) / c.step)
        return max(self.stages // math.gcd(self.stages, c.step), math.ceil(self.stages / c.step)) + spread + 1


@dataclass
class Shape:
    """What the premises give: the symbolic loops (outermost first), how deep their first and last rounds differ, after how
    many rounds conditions on remainders repeat, the least number of rounds, the rings."""

    loops: list[For] = field(default_factory=list)
    cycle: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    least: list[int] = field(default_factory=list)
    rings: dict[Any, Ring] = field(default_factory=dict)
    overlaid: list[Buffer] = field(default_factory=list)
    marks: dict[For, ScalarVar] = field(default_factory=dict)
    values: dict[Any, SX] = field(default_factory=dict)
    """Conditions (by If) and assigned values (by SetScalar) with the end of a loop replaced by its number of rounds."""
    steady: bool = True
    """No ring of the inner loop is used outside of it or in some of its rounds only."""


@dataclass(frozen=True)
class Place:
    """Where a statement stands: symbolic loops around it, rounds of constant loops around it, the levels of loops in some
    rounds of which alone guards let it run, whether there is a branch at all around it."""

    loops: tuple[For, ...] = ()
    times: int = 1
    partial: frozenset[int] = frozenset()
    guarded: bool = False


def parts_of(
    s: Any, at: Place, loops: dict[ScalarVar, For], guarded: bool = False
) -> Iterator[tuple[tuple[Any, ...], Place]]:
    """The statement lists inside a statement with their places. guarded: branches count as guards."""
    if isinstance(s, For):
        if s.var in loops:
            yield s.body, Place((*at.loops, s), at.times, at.partial, at.guarded)
        else:
            fixed = all(isinstance(x, SConst) for x in (s.start, s.stop, s.step))
            times = len(range(s.start.value, s.stop.value, s.step.value)) if fixed else 0  # type: ignore[union-attr,arg-type]
            yield s.body, Place(at.loops, at.times * times, at.partial, at.guarded or not fixed)
    elif isinstance(s, If):
        place = Place(at.loops, at.times, at.partial, at.guarded or guarded)
        yield s.then, place
        yield s.orelse, place
    elif isinstance(s, While):
        yield s.prelude + s.body, Place(at.loops, at.times, at.partial, True)
    elif isinstance(s, WarpsBlock):
        yield s.body, Place(at.loops, at.times, at.partial, at.guarded or guarded)
    elif getattr(s, "body", None):
        yield s.body, at


def increment(s: SetScalar) -> int | None:
    """The constant by which an assignment lets its variable grow, or None."""
    x = s.value
    if isinstance(x, SOp) and x.op == "+" and isinstance(x.args[0], SVar) and x.args[0].var is s.var:
        return int(x.args[1].value) if isinstance(x.args[1], SConst) else 0
    return 0 if s.var in sx_vars(x) else None


def is_one(x: SX) -> bool:
    return isinstance(x, SConst) and x.value == 1


def deep_vars(x: SX, definitions: Any, depth: int = 0) -> set[ScalarVar]:
    """The variables of x and of what their definitions read."""
    found: set[ScalarVar] = set()
    for v in sx_vars(x):
        found.add(v)
        if v in definitions and depth < 16:
            found |= deep_vars(definitions[v], definitions, depth + 1)
    return found


def same(a: SX, b: SX) -> bool:
    """Structural equality."""
    if isinstance(a, SConst) and isinstance(b, SConst):
        return a.value == b.value
    if isinstance(a, SVar) and isinstance(b, SVar):
        return a.var is b.var
    return (
        isinstance(a, SOp)
        and isinstance(b, SOp)
        and a.op == b.op
        and len(a.args) == len(b.args)
        and all(same(x, y) for x, y in zip(a.args, b.args, strict=True))
    )


def alike(a: For, b: For, definitions: Mapping[ScalarVar, SX]) -> bool:
    """Whether two loops run over the same numbers, by their text and nothing that loops or roles change."""

    def plain(x: SX, depth: int = 0) -> SX:
        if isinstance(x, SVar):
            made = definitions.get(x.var)
            return x if made is None or depth > 16 else plain(made, depth + 1)
        return SOp(x.op, tuple(plain(y, depth) for y in x.args), x.dtype) if isinstance(x, SOp) else x

    pairs = [(plain(x), plain(y)) for x, y in ((a.start, b.start), (a.stop, b.stop), (a.step, b.step))]
    shared = SAME_IN_ALL_CTAS | {"cluster_id", "cta", "cluster_rank", "loop"}
    return all(same(x, y) for x, y in pairs) and all(v.kind in shared for x, _ in pairs for v in sx_vars(x))
