"""Global indices and 32-bit index arithmetic for every shape that `where` admits.

The body is walked once with symbolic values (`analyses.symbolic`): locals hold polynomials, loops forget what they change, and
conditions, `where` and `assume` are facts. Each access gives goals: an index lies inside its extent, a slice starts at 0 or later,
and what a bulk copy moves ends inside. Each i32 operation gives the goal that its result fits 32 bits. Lowering computes index
expressions in `int` and forms element offsets in 64 bits, so only the written expressions can overflow; what the extents alone
decide (tile counts, loop bounds) the launcher evaluates exactly and refuses, see `lowering.emission.manifest`.

A goal is proved, refuted by a shape with values for its index variables that keep every fact, or open.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

from analyses import symbolic as S
from analyses.indexvalues import Values
from analyses.regions import UNCLIPPED
from analyses.symbolic import Poly, TooLarge, const
from cake_ir.arithmetic import compile_sx
from cake_ir.bound import (
    Assume,
    BoundKernel,
    ElectedBlock,
    For,
    Fragment,
    If,
    Let,
    Op,
    Region,
    RoleBlock,
    ScalarVar,
    SConst,
    SetScalar,
    SOp,
    SVar,
    VFrag,
    View,
    WarpsBlock,
    While,
    walk,
)
from cake_ir.diagnostics import Span
from cake_ir.facts import EXTENT_MAX, INT_MAX, facts_of
from cake_ir.memo import memo

TRIES = 120
"""Assignments tried for one goal that is not proved."""
SMALL = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 32, 33, 64, 65, 100, 128, 129, 256, 257)
LARGE = (*(1 << k for k in range(8, 31)), 3 << 20, EXTENT_MAX)
MEMORY = 1 << 40
"""Bytes that the tensors of a witness of an overflow may have together; no GPU has more memory."""


@dataclass(frozen=True)
class Goal:
    """Something that must hold. kind: low | high | end (of a region) | view | overflow. need: what must not be negative, under the facts.
    dim: dimension of the region. loose: a condition above could not be expressed, so that a witness may not reach the place.
    value, limit: the index (or result) and the extent (or what 32 bits hold). distinct: what is not zero."""

    kind: str
    span: Span
    need: Poly
    facts: tuple[Poly, ...]
    op: Op | None = None
    region: Region | None = None
    view: View | None = None
    dim: int = 0
    role: str | None = None
    gathered: bool = False
    masked: bool = False
    loose: bool = False
    value: Poly = field(default_factory=dict)
    limit: Poly = field(default_factory=dict)
    distinct: tuple[Poly, ...] = ()


@dataclass(frozen=True)
class Witnessed:
    """A shape and values of the index variables by name, the value reached and its limit."""

    shape: dict[str, int]
    variables: dict[str, int]
    value: int
    limit: int


@dataclass
class Decided:
    """Goals by outcome."""

    proved: int = 0
    open: list[Goal] = field(default_factory=list)
    refuted: list[tuple[Goal, Witnessed]] = field(default_factory=list)


def decide(bound: BoundKernel) -> Decided:
    """All goals of a kernel, decided once."""
    return memo(bound, "bounds", lambda: _Walk(bound).decide())


class _Walk(Values):
    def __init__(self, bound: BoundKernel) -> None:
        super().__init__(facts_of(bound).nonnegative)
        self.bound = bound
        self.goals: list[Goal] = []
        self.role: str | None = None
        self.checked: set[tuple[Any, ...]] = set()
        self.filled: dict[int, int] = {}
        """Loaded elements that may be the fill of their load."""
        self.extents: list[list[Poly]] = []
        self.sizes: list[Poly] = []
        self.declare(bound.dims.values(), bound.args, bound.builtins.get("sms"), bound.where)
        self.values_of_dims = {n: self.values[v] for n, v in bound.dims.items()}
        self._launch()

    def decide(self) -> Decided:
        self.block(self.bound.body)
        out = Decided()
        for g in self.goals:
            if self.algebra.proves(g.need, g.facts):
                out.proved += 1
                continue
            values = self.refute(g, max(24, TRIES // (1 + len(out.open))))
            if values is not None:
                out.refuted.append((g, values))
            else:
                out.open.append(g)
        return out

    # ---- what the launch fixes

    def _launch(self) -> None:
        b, a = self.bound, self.algebra
        for t in b.tensors:
            self.extents.append([self.scalar(e) for e in t.extents])
            self.sizes += self.extents[-1]
            for e, p in zip(t.extents, self.extents[-1], strict=True):
                if not isinstance(e, (SConst, SVar)):
                    self.facts.append(S.add(const(EXTENT_MAX), p, -1))
                self.facts += [p] if not self.algebra.proves(p) else []
        ctas = self.scalar(b.launch.ctas)
        self.facts += self.factors(ctas)
        cluster = b.launch.cluster
        clusters = a.floor_div(ctas, const(cluster))
        for name, low, high in (
            ("cta", {}, S.add(ctas, const(-1))),
            ("cluster_rank", {}, const(cluster - 1)),
            ("cluster_id", {}, S.add(clusters, const(-1))),
        ):
            if name in b.builtins:
                self.values[b.builtins[name]] = a.atom(name, [low], [high, const(INT_MAX - 1)])
        if "cta_count" in b.builtins:
            self.values[b.builtins["cta_count"]] = ctas
            self.facts.append(S.add(ctas, const(-1)))
        if "cluster_count" in b.builtins:
            self.values[b.builtins["cluster_count"]] = clusters
            self.facts.append(S.add(clusters, const(-1)))

    def factors(self, count: Poly) -> list[Poly]:
        """What follows from a count being at least 1: so is each factor of a product."""
        found = [S.add(count, const(-1))]
        if len(count) == 1:
            ((m, c),) = count.items()
            if c > 0 and all(self.algebra.proves({(v,): 1}, self.facts) for v in m):
                found += [S.add({(v,): 1}, const(-1)) for v in set(m)]
        return found

    # ---- statements

    def block(self, body: tuple[Any, ...]) -> None:
        """A sequence; what `assume` says there holds to its end."""
        have, apart, loose = len(self.facts), len(self.distinct), self.loose
        for s in body:
            try:
                self.statement(s)
            except TooLarge:
                self.forget(_changed((s,)))
        del self.facts[have:]
        del self.distinct[apart:]
        self.loose = loose

    def under(self, facts: list[Poly], body: tuple[Any, ...], loose: int) -> None:
        """A block where facts hold. loose: the count before they were read off their condition."""
        have = len(self.facts)
        self.facts += facts
        self.distinct += self.apart
        apart, self.apart = len(self.apart), []
        self.block(body)
        del self.facts[have:]
        del self.distinct[len(self.distinct) - apart :]
        self.loose = loose

    def statement(self, s: Any) -> None:
        if isinstance(s, Op):
            self.op(s)
        elif isinstance(s, SetScalar):
            if s.var.dtype == "i32":
                self.fits(s.value, s.span)
                self.values[s.var] = self.scalar(s.value)
        elif isinstance(s, Let):
            self.forget({s.frag})
            value = self.element(s.value) if s.value is not None and s.frag.type.dtype.name == "i32" else None
            if value is not None:
                self.frags[s.frag, 0, 0] = value
        elif isinstance(s, For):
            for x in (s.start, s.stop):
                self.fits(x, s.span)
            start, stop = self.scalar(s.start), self.scalar(s.stop)
            step = s.step.value if isinstance(s.step, SConst) else None
            if step is None:
                stride = self.scalar(s.step)
                made: dict[str, Any] = {"role": self.role, "loose": self.loose > 0, "value": stride, "limit": const(1)}
                self.goals.append(Goal("step", s.span, S.add(stride, const(-1)), tuple(self.facts), **made))
            self.forget(_changed(s.body))
            lower, upper = [start], [S.add(stop, const(-1))]
            if isinstance(step, int) and step > 1:
                rounds = self.algebra.floor_div(S.add(S.add(stop, start, -1), const(step - 1)), const(step))
                upper.append(S.add(start, S.add(rounds, const(-1)), step))
            down = isinstance(step, int) and step < 0
            self.values[s.var] = self.algebra.atom(s.var.name, [] if down else lower, [start] if down else upper)
            if not down and self.algebra.proves(start, self.facts):
                self.algebra.plain.add(len(self.algebra.atoms) - 1)
            inside = [] if down else [S.add(S.add(stop, start, -1), const(-1))]
            if inside and self.algebra.proves(start, self.facts):
                inside += self.factors(stop)
            self.under(inside, s.body, self.loose)
            self.forget(_changed(s.body))
        elif isinstance(s, While):
            shrinking = {v: self.values[v] for v in _shrinking(s) if v in self.values}
            self.forget(_changed(s.prelude + s.body))
            for v, before in shrinking.items():  # x = x & y never grows
                if self.algebra.proves(before, self.facts):
                    self.values[v] = self.algebra.atom(v.name, [{}], [before])
                    self.data.add(len(self.algebra.atoms) - 1)
                    self.filled[len(self.algebra.atoms) - 1] = 0
            self.block(s.prelude)
            loose = self.loose
            self.under(self.conditions(s.cond), s.body, loose)
            self.forget(_changed(s.prelude + s.body))
        elif isinstance(s, If):
            before, frags, loose = dict(self.values), dict(self.frags), self.loose
            self.under(self.conditions(s.cond), s.then, loose)
            self.values, self.frags = before, frags
            if s.orelse:
                self.under(self.negations(s.cond), s.orelse, loose)
            self.forget(_changed(s.then + s.orelse))
        elif isinstance(s, RoleBlock):
            outer, self.role = self.role, s.role.name
            if s.instance is not None:
                self.values[s.instance] = self.algebra.atom(s.instance.name, [{}], [const(s.role.count - 1)])
            self.block(s.body)
            self.role = outer
        elif isinstance(s, WarpsBlock):
            if s.warp is not None:
                self.values[s.warp] = self.algebra.atom(s.warp.name, [{}], [const(3)])
            self.block(s.body)
        elif isinstance(s, ElectedBlock):
            self.block(s.body)
        elif isinstance(s, Assume):
            self.facts += self.conditions(s.cond)
            self.distinct += self.apart
            self.apart = []

    def forget(self, changed: set[Any]) -> None:
        """Variables and fragments take values that are not known."""
        for v in changed:
            if isinstance(v, ScalarVar):
                self.values.pop(v, None)
        for key in [k for k in self.frags if k[0] in changed]:
            del self.frags[key]

    def op(self, op: Op) -> None:
        for value in op.operands.values():
            if isinstance(value, Region):
                self.region(op, value)
            elif isinstance(value, View):
                self.view(op, value)
        self.forget(set(op.results))
        if op.name == "row_bits" and op.results and isinstance(op.results[0], ScalarVar):  # one bit for each of 16 rows
            self.values[op.results[0]] = self.algebra.atom(op.results[0].name, [{}], [const(0xFFFF)])
            self.data.add(len(self.algebra.atoms) - 1)
            self.filled[len(self.algebra.atoms) - 1] = 0
        source, tile = op.operands.get("src"), op.results[0] if op.results else None
        if (
            op.name == "load"
            and isinstance(source, Region)
            and isinstance(tile, Fragment)
            and tile.type.dtype.name == "i32"
        ):
            fill = op.operands.get("fill", SConst(0))
            value = self.element(VFrag(tile, tile.type))
            if value is not None and isinstance(fill, SConst) and self.clips(source):
                self.filled[next(iter(value))[0]] = int(fill.value)

    def clips(self, r: Region) -> bool:
        """Whether part of a region may lie outside, where a load gives its fill."""
        for d, extent in zip(r.dims, r.tensor.extents, strict=True):
            if d.kind != "slice":
                continue
            room = S.add(S.add(self.scalar(extent), self.scalar(d.start), -1), const(-d.size))
            if d.stop is not None or not self.algebra.proves(room, self.facts):
                return True
        return False

    # ---- goals

    def region(self, op: Op, r: Region) -> None:
        facts = list(self.facts)
        when = op.operands.get("when")
        before = self.loose
        if when is not None:
            facts += self.conditions(when)
            self.apart = []
        loose, self.loose = self.loose > 0, before
        held = tuple(facts)
        for i, (d, extent) in enumerate(zip(r.dims, r.tensor.extents, strict=True)):
            size = self.scalar(extent)
            if d.kind == "gather":
                start = self.element(d.rows)
                if start is None:
                    continue
            else:
                self.fits(d.start, r.span, held)
                start = self.scalar(d.start)
            made: dict[str, Any] = {
                "op": op, "region": r, "dim": i, "role": self.role, "gathered": d.kind == "gather",
                "masked": when is not None, "loose": loose,
                "value": start, "limit": size, "distinct": tuple(self.distinct),
            }  # fmt: skip
            self.goals.append(Goal("low", op.span, start, held, **made))
            if d.kind in ("index", "gather"):
                self.goals.append(Goal("high", op.span, S.add(S.add(size, start, -1), const(-1)), held, **made))
            elif op.name in UNCLIPPED:
                self.goals.append(Goal("end", op.span, S.add(S.add(size, start, -1), const(-d.size)), held, **made))

    def view(self, op: Op, v: View) -> None:
        """Goals that an on-chip view lies inside its tile. What a row or column starts at is a constant most of the time."""
        held = tuple(self.facts)
        for axis, start, count, extent in (
            (0, v.row0, v.rows, v.buffer.rows),
            (1, v.col0, v.cols, v.buffer.cols),
        ):
            if isinstance(start, SConst) and 0 <= start.value <= extent - count:
                continue
            first = self.scalar(start)
            made: dict[str, Any] = {
                "op": op, "view": v, "dim": axis, "role": self.role, "loose": self.loose > 0, "value": first,
                "limit": const(extent), "distinct": tuple(self.distinct),
            }  # fmt: skip
            self.goals.append(Goal("view", op.span, first, held, **made))
            self.goals.append(Goal("view", op.span, S.add(const(extent - count), first, -1), held, **made))

    def fits(self, x: Any, span: Span, facts: tuple[Poly, ...] | None = None) -> None:
        """Goals that every operation of an index expression fits 32 bits. What the launcher knows it checks itself."""
        if not isinstance(x, SOp) or x.dtype != "i32":
            return
        for y in x.args:
            self.fits(y, span, facts)
        if x.op not in ("+", "-", "*", "<<", "neg"):
            return
        p = self.scalar(x)
        atoms = set(self.algebra.closure([p]))
        if all(v in self.launch_wide or self.algebra.atoms[v].made for v in atoms):
            self.facts.append(S.add(const(INT_MAX), p, -1))
            return
        if atoms & self.data and not (facts is not None and any(len(m) > 1 for m in p)):
            return  # a counter, or a number that data add up; in an address it counts
        held = tuple(self.facts) if facts is None else facts
        key = (S.freeze(p), held.__len__())
        if key not in self.checked:
            self.checked.add(key)
            most = const(INT_MAX)
            made: dict[str, Any] = {"role": self.role, "loose": self.loose > 0, "value": p, "limit": most}
            made["distinct"] = tuple(self.distinct)
            self.goals.append(Goal("overflow", span, S.add(most, p, -1), held, **made))

    # ---- witnesses

    def refute(self, g: Goal, tries: int) -> Witnessed | None:
        """A shape, with values of the index variables by name, that keeps every fact and breaks the goal.

        Values that only data decide count where the text bounds them on the side that breaks: an index that `assume` or a mask keeps
        within 0 .. M is known to reach M, one that nothing bounds is open. The fill of a load behind the end is a value as well."""
        if g.loose:
            return None
        a = self.algebra
        data = {v for m in g.need for v in m if v in self.data}
        if not data <= self.filled.keys() and not any(
            a.proves(S.add(g.need, const(k)), g.facts) for k in (1, 2, 8, 64, 1024)
        ):
            return None
        atoms = a.closure([g.need, g.value, g.limit, *g.facts, *g.distinct, *self.sizes])
        dims = [v for v in atoms if v in self.launch_wide]
        chance = random.Random(len(atoms))
        for k in range(tries):
            values = self.assign(g, atoms, dims, chance, k)
            if values is not None and S.evaluate(g.need, values) < 0 and self.keeps(g, values) and self.admits(values):
                if g.kind == "overflow" and self.memory(values) > MEMORY:
                    continue
                return self.witnessed(g, values)
        return None

    @staticmethod
    def keeps(g: Goal, values: dict[int, int]) -> bool:
        """Whether an assignment keeps all facts of a goal."""
        return all(S.evaluate(f, values) >= 0 for f in g.facts) and all(S.evaluate(p, values) for p in g.distinct)

    def admits(self, values: dict[int, int]) -> bool:
        """Whether `where` holds for the extents of an assignment."""
        env: list[Any] = [1] * (len(self.bound.scalars) + 1)
        for v in (*self.bound.dims.values(), *self.bound.args, *self.bound.builtins.values()):
            p = self.values.get(v)
            if p is not None and all(x in values for m in p for x in m):
                env[v.slot] = S.evaluate(p, values)
        try:
            return all(compile_sx(w.cond)(env) for w in self.bound.where)
        except ZeroDivisionError:
            return False

    def assign(
        self, g: Goal, atoms: list[int], dims: list[int], chance: random.Random, k: int
    ) -> dict[int, int] | None:
        """Values of all atoms, the oldest first: extents by chance, index variables at their ends."""
        values: dict[int, int] = {}
        large = g.kind == "overflow"
        corner = k % 3
        for v in atoms:
            at = self.algebra.atoms[v]
            try:
                low = max((S.evaluate(p, values) for p in at.lower), default=None)
                high = min((S.evaluate(p, values) for p in at.upper), default=None)
                if at.made is not None:
                    op, x, y = at.made
                    values[v] = S.operate(op, S.evaluate(x, values), S.evaluate(y, values))
                    continue
                if at.cases:
                    values[v] = S.evaluate(at.cases[chance.randrange(2)], values)
                    continue
            except (ZeroDivisionError, KeyError):
                return None
            if v in dims:
                sizes = LARGE if large and chance.randrange(4) else SMALL
                values[v] = min(max(chance.choice(sizes), low or 0), high if high is not None else INT_MAX)
                continue
            for f in g.facts:
                parts = S.split(f, v)
                rate = S.constant(parts[0]) if parts is not None else None
                if parts is None or rate not in (1, -1):
                    continue
                try:
                    rest = S.evaluate(parts[1], values)
                except KeyError:
                    continue
                if rate == 1:
                    low = -rest if low is None else max(low, -rest)
                else:
                    high = rest if high is None else min(high, rest)
            if low is not None and high is not None and low > high:
                return None
            low = low if low is not None else min(0, high if high is not None else 0)
            high = high if high is not None else max(low, 0)
            if v in self.filled and k % 2:
                values[v] = self.filled[v]
                continue
            values[v] = high if corner == 0 else low if corner == 1 else chance.choice((low, high))
        return values

    def memory(self, values: dict[int, int]) -> int:
        """Bytes of all tensors."""
        return sum(
            t.dtype.bits * math.prod(max(0, S.evaluate(p, values)) for p in extents) // 8
            for t, extents in zip(self.bound.tensors, self.extents, strict=True)
        )

    def witnessed(self, g: Goal, values: dict[int, int]) -> Witnessed:
        """The assignment by name; variables are those that the goal is made of."""
        a = self.algebra
        base = [v for v in a.closure([g.need]) if a.atoms[v].made is None and v not in self.launch_wide]
        shape = {
            n: S.evaluate(p, values) for n, p in self.values_of_dims.items() if all(v in values for m in p for v in m)
        }
        return Witnessed(
            shape, {a.atoms[v].name: values[v] for v in base}, S.evaluate(g.value, values), S.evaluate(g.limit, values)
        )


def _changed(body: tuple[Any, ...]) -> set[Any]:
    """Scalars and fragments that a block may set."""
    found: set[Any] = set()
    for s in body:
        if isinstance(s, SetScalar):
            found.add(s.var)
        elif isinstance(s, Let):
            found.add(s.frag)
        elif isinstance(s, Op):
            found |= set(s.results)
            acc = s.operands.get("acc")
            if isinstance(acc, Fragment):
                found.add(acc)
        elif isinstance(s, For):
            found.add(s.var)
        for part in ("prelude", "body", "then", "orelse"):
            inner = getattr(s, part, None)
            if inner:
                found |= _changed(inner)
    return found


def _shrinking(s: While) -> set[ScalarVar]:
    """Scalars that a loop changes by `x = x & y` alone."""
    found: dict[ScalarVar, bool] = {}
    for x in walk(s.prelude + s.body):
        if isinstance(x, SetScalar):
            masked = (
                isinstance(x.value, SOp)
                and x.value.op == "&"
                and any(isinstance(y, SVar) and y.var is x.var for y in x.value.args)
            )
            found[x.var] = found.get(x.var, True) and masked
        elif isinstance(x, Op):
            found.update((r, False) for r in x.results if isinstance(r, ScalarVar))
    return {v for v, only in found.items() if only}
