"""What the text must look like for a finite set of runs to decide all shapes: the premises of the cutoff argument.

docs/order-reading.md, "Cutoff: when a check is a proof", says why these premises suffice. Everything here reads the bound
kernel only; a premise that does not hold raises `Broken` with the op or loop that breaks it.
"""

from __future__ import annotations

import math
from collections import Counter as Counting
from collections.abc import Iterable
from typing import Any

from analyses.order.forms import (
    SAME_IN_ALL_CTAS,
    Broken,
    Counter,
    Place,
    Ring,
    Shape,
    deep_vars,
    increment,
    is_one,
    parts_of,
    same,
)
from cake_ir.binding.scalars import interval
from cake_ir.bound import (
    SX,
    BarUse,
    BoundKernel,
    Buffer,
    For,
    If,
    Let,
    Op,
    ScalarVar,
    SConst,
    SetScalar,
    SOp,
    SVar,
    View,
    WarpsBlock,
    While,
    sx_vars,
    walk,
)
from cake_ir.controls import FLIPPED
from cake_ir.diagnostics import Span
from cake_ir.skeleton import compile_skeleton, fragments, tracked_fragments

GLOBAL_ONLY = frozenset({"load", "load_scalar", "store", "store_scalar", "prefetch"})


def premises(bound: BoundKernel) -> Shape:
    """Checks the premises. Raises Broken."""
    return _Reader(bound).read()


class _Reader:
    def __init__(self, bound: BoundKernel) -> None:
        self.bound = bound
        self.tracked = tracked_fragments(bound)
        self.skeleton = compile_skeleton(bound)
        self.shape = Shape()
        self.loops: dict[ScalarVar, For] = {}
        self.fixed: set[ScalarVar] = set()
        self.sets: dict[ScalarVar, list[tuple[SetScalar, Place]]] = {}
        self.ranges: dict[ScalarVar, tuple[float, float]] = dict(bound.notes.get("ranges", {}))
        self.marks: dict[For, ScalarVar] = {}
        self.after = False
        self.ends: list[tuple[SX, ScalarVar]] = []
        self.known: dict[int, bool] = {}
        self.constants: dict[ScalarVar, SX] | None = None
        self.made = Counting(s.var for s in walk(bound.body) if isinstance(s, SetScalar))
        self.loaded = {r for s in walk(bound.body) if isinstance(s, Op) for r in s.results if isinstance(r, ScalarVar)}
        self._facts()

    def read(self) -> Shape:
        self._loops(self.bound.body, ())
        self.shape.first = [1] * len(self.shape.loops)
        self.shape.last = [0] * len(self.shape.loops)
        self.shape.cycle = [1] * len(self.shape.loops)
        self._sets(self.bound.body, Place())
        self._body(self.bound.body, Place())
        self._rings()
        self.shape.marks = self.marks
        for s in walk(self.bound.body):
            if isinstance(s, (If, SetScalar)):
                x = s.cond if isinstance(s, If) else s.value
                if (marked := self.mark(x)) is not x:
                    self.shape.values[s] = marked
        return self.shape

    # ---- relevance

    def relevant(self, s: Any) -> bool:
        """Whether the order reading looks at a statement (registers and global memory alone never wait for anybody)."""
        found = self.known.get(id(s))
        if found is None:
            found = self.known[id(s)] = self._relevant(s)
        return found

    def _relevant(self, s: Any) -> bool:
        if isinstance(s, Let):
            return s.frag in self.tracked or bool(fragments(s.value) & self.tracked)
        if not isinstance(s, Op):
            return False
        if any(isinstance(v, (View, BarUse)) for v in s.operands.values()):
            return True
        touched = set(s.results) & self.tracked
        for v in s.operands.values():
            touched |= fragments(v) & self.tracked
        return bool(touched) or not (
            s.name in GLOBAL_ONLY or s.name.startswith("atomic_") or s.decl.family == "registers"
        )

    def any_relevant(self, body: Iterable[Any]) -> Any:
        return next((s for s in walk(tuple(body)) if self.relevant(s)), None)

    # ---- loops

    def _facts(self) -> None:
        """Lower bounds of extents that `where` states; without one an extent may be zero."""
        for v in self.bound.dims.values():
            self.ranges[v] = (0, math.inf)
        parts = [w.cond for w in self.bound.where]
        while parts:
            c = parts.pop()
            if isinstance(c, SOp) and c.op == "and":
                parts += c.args
            elif isinstance(c, SOp) and c.op in (">", ">=") and isinstance(c.args[0], SVar):
                low = c.args[1]
                if isinstance(low, SConst) and low.value + (c.op == ">") >= 1:
                    self.ranges[c.args[0].var] = (1, math.inf)

    def low(self, x: SX) -> float:
        """A lower bound of x over every shape that `where` admits."""
        definitions = self.bound.notes.get("definitions", {})
        if isinstance(x, SConst):
            return x.value
        if isinstance(x, SVar):
            if x.var in definitions and self.made[x.var] == 1:
                return self.low(definitions[x.var])
            return self.ranges.get(x.var, (-math.inf, 0))[0]
        lows = [self.low(a) for a in x.args]
        if x.op == "+":
            return sum(lows)
        if x.op == "-" and isinstance(x.args[1], SConst):
            return lows[0] - x.args[1].value
        if x.op in ("min", "max"):
            return min(lows) if x.op == "min" else max(lows)
        if x.op in ("*", "ceil_div", "//") and min(lows) >= 0:
            return math.prod(lows) if x.op == "*" else int(x.op == "ceil_div" and lows[0] > 0)
        return -math.inf

    def _loops(self, body: Iterable[Any], around: tuple[For, ...], within: Any = None) -> None:
        for s in body:
            if isinstance(s, While) and (at := self.any_relevant(s.prelude + s.body)):
                raise Broken(f"a while decides how often {_name(at)} runs", s.span)
            inner, inside = around, s if isinstance(s, WarpsBlock) else within
            if isinstance(s, For) and self.any_relevant(s.body):
                if all(isinstance(x, SConst) for x in (s.start, s.stop, s.step)):
                    self.fixed.add(s.var)
                    rounds = range(s.start.value, s.stop.value, s.step.value)  # type: ignore[union-attr,arg-type]
                    self.ranges[s.var] = (min(rounds, default=0), max(rounds, default=0))
                    inside = s
                else:
                    if within is not None:
                        what = "warps()" if isinstance(within, WarpsBlock) else "a loop of constant length"
                        raise Broken(f"a loop of unknown length inside {what}", s.span)
                    self._symbolic(s, around)
                    inner = (*around, s)
            for part in ("prelude", "body", "then", "orelse"):
                if getattr(s, part, None):
                    self._loops(getattr(s, part), inner, inside)

    def _symbolic(self, s: For, around: tuple[For, ...]) -> None:
        found = self.shape.loops
        if len(around) != len(found):
            raise Broken(f"two loops follow one another, lines {found[len(around)].span.line} and {s.span.line}")
        if len(found) == 2:
            raise Broken("more than two loops of unknown length are nested", s.span)
        found.append(s)
        self.loops[s.var] = s
        definitions = self.bound.notes.get("definitions", {})
        whole = self.bound.launch.cluster == 1
        for x in (s.start, s.stop, s.step):
            for v in sorted(deep_vars(x, definitions), key=lambda v: v.slot):
                same = v.kind in SAME_IN_ALL_CTAS or v.kind == "cluster_id" or (v.kind == "cta" and whole)
                if v in self.loaded or v in self.skeleton.tainted:
                    raise Broken(f"the length of the loop depends on loaded data ({v.name})", s.span)
                if v in self.loops or not (same or v.kind == "local"):
                    raise Broken(f"the length of the loop changes with {v.name}", s.span)
                if v.kind == "local" and (v not in definitions or self.made[v] != 1):
                    raise Broken(f"the length of the loop changes with {v.name}", s.span)
        at_least = int(isinstance(s.start, SConst) and self.low(s.stop) > s.start.value)
        if isinstance(s.step, SConst) and s.step.value <= 0:
            raise Broken("the loop counts down", s.span)
        self.shape.least.append(at_least)
        self.marks[s] = ScalarVar(f"rounds{len(found)}", "dim", "i32", len(self.bound.scalars) + len(found) - 1, "grid")

    # ---- assignments

    def _sets(self, body: Iterable[Any], at: Place) -> None:
        for s in body:
            if isinstance(s, SetScalar):
                self.sets.setdefault(s.var, []).append((s, at))
            for inner, place in parts_of(s, at, self.loops, guarded=True):
                self._sets(inner, place)

    def constant(self, x: SX) -> bool:
        """Whether x is the same in all rounds and shapes: constants, instance, warp, rank, variables of constant loops."""
        return all(
            v.kind in ("instance", "cluster_rank") or v in self.fixed or self._constant_local(v) for v in sx_vars(x)
        )

    def _constant_local(self, v: ScalarVar) -> bool:
        sets = self.sets.get(v, [])
        return (
            v.kind in ("local", "instance")
            and len(sets) == 1
            and v not in self.loaded
            and v not in sx_vars(sets[0][0].value)
            and self.constant(sets[0][0].value)
        )

    def counter_of(self, v: ScalarVar, span: Span) -> Counter:
        """How a loop variable or a running count grows. Raises Broken for anything else."""
        loop = self.loops.get(v)
        if loop is not None:
            if not (isinstance(loop.start, SConst) and isinstance(loop.step, SConst)):
                raise Broken(f"{v.name} does not count from a constant in constant steps", span)
            level = self.shape.loops.index(loop) + 1
            if level > 1:
                raise Broken(f"use numbers restart with {v.name} in every round of the loop around it", span)
            return Counter(level, int(loop.step.value))
        if v in self.loaded or v in self.skeleton.tainted:
            raise Broken(f"{v.name} is loaded data", span)
        if v.kind not in ("local", "instance") or v not in self.sets:
            raise Broken(f"{v.name} depends on the shape", span)
        level, step, begins = 0, 0, 0
        for s, at in self.sets[v]:
            grow = increment(s)
            if grow is None:
                if at.loops or not self.constant(s.value):
                    raise Broken(f"{v.name} is set anew to what is not a running count", s.span)
                begins += 1
                continue
            if grow <= 0 or at.guarded:
                raise Broken(f"{v.name} does not grow by the same amount in every round", s.span)
            if not at.loops or (level and level != len(at.loops)):
                raise Broken(f"{v.name} grows in two loops", s.span)
            level, step = len(at.loops), step + grow * at.times
        if begins != 1:
            raise Broken(f"{v.name} begins {begins} times", span)
        return Counter(level, step)

    def linear(self, x: SX, at: Place, span: Span) -> tuple[Counter, float, float]:
        """(counter, lowest offset, highest offset) of a use number. Raises Broken."""
        terms, rest = self._terms(x, 1, at, span)
        low, high = rest
        if not terms:
            return Counter(0, 0), low, high
        if len(terms) > 1:
            raise Broken(f"a use number adds {' and '.join(v.name for v in terms)}", span)
        ((v, times),) = terms.items()
        if times <= 0:
            raise Broken(f"a use number falls as {v.name} grows", span)
        c = self.counter_of(v, span)
        begin = next((s.value for s, _ in self.sets.get(v, []) if increment(s) is None), SConst(0))
        if v in self.loops:
            begin = self.loops[v].start
        first = self._interval(begin)
        low, high = low + times * first[0], high + times * first[1]
        # inside one round the count may stand anywhere between the old and the new value
        return Counter(c.level, c.step * times), low, high + (c.step - 1) * times

    def _interval(self, x: SX) -> tuple[float, float]:
        if isinstance(x, SConst):
            return x.value, x.value
        if self.constants is None:
            self.constants = {v: s[0][0].value for v, s in self.sets.items() if self._constant_local(v)}
        low, high = interval(x, self.ranges, self.constants)
        if math.isinf(low) or math.isinf(high):
            raise Broken("an offset of a use number is not bounded by the text")
        return low, high

    def _terms(
        self,
        x: SX,
        times: int,
        at: Place,
        span: Span,
        why: str = "a use number is not a running count plus a constant",
    ) -> tuple[dict[ScalarVar, int], tuple[float, float]]:
        if self.constant(x):
            low, high = self._interval(x)
            return {}, (min(low * times, high * times), max(low * times, high * times))
        if isinstance(x, SVar):
            sets = self.sets.get(x.var, [])
            if x.var not in self.loops and len(sets) == 1 and increment(sets[0][0]) is None:
                made, where = sets[0]
                if where.loops != at.loops or where.guarded:
                    raise Broken(f"{x.var.name} keeps a count of another round", span)
                return self._terms(made.value, times, at, span, why)
            return {x.var: times}, (0, 0)
        if isinstance(x, SOp) and x.op in ("+", "-"):
            left, a = self._terms(x.args[0], times, at, span, why)
            right, b = self._terms(x.args[1], times if x.op == "+" else -times, at, span, why)
            for v, n in right.items():
                left[v] = left.get(v, 0) + n
            return {v: n for v, n in left.items() if n}, (a[0] + b[0], a[1] + b[1])
        if isinstance(x, SOp) and x.op == "*":
            for k, y in ((x.args[0], x.args[1]), (x.args[1], x.args[0])):
                if isinstance(k, SConst):
                    return self._terms(y, times * int(k.value), at, span, why)
        self._blame(x, span)
        raise Broken(why, span)

    def _blame(self, x: SX, span: Span) -> None:
        known = {v: s[0][0].value for v, s in self.sets.items() if len(s) == 1}
        for v in sorted(deep_vars(x, known), key=lambda v: v.slot):  # a set has another order in each process
            if v in self.loaded or v in self.skeleton.tainted:
                raise Broken(f"a number depends on loaded data ({v.name})", span)
            if v.kind in SAME_IN_ALL_CTAS or v.kind in ("cta", "cluster_id"):
                raise Broken(f"a number depends on the shape ({v.name})", span)

    # ---- guards

    def guard(self, x: SX, at: Place, span: Span) -> frozenset[int]:
        """Checks a condition; the levels of the loops whose rounds it tells apart. Raises Broken."""
        if self.constant(x):
            return frozenset()
        if isinstance(x, SOp) and x.op in ("and", "or", "not"):
            return frozenset[int]().union(*(self.guard(a, at, span) for a in x.args))
        if isinstance(x, SVar) and len(self.sets.get(x.var, [])) == 1:
            made, where = self.sets[x.var][0]
            if where.loops == at.loops:
                return self.guard(made.value, where, span)
        if not (isinstance(x, SOp) and x.op in FLIPPED):
            self._blame(x, span)
            raise Broken("a condition is not a comparison of a running count with a constant", span)
        if (level := self._remainder(x, at, span)) is not None:
            return level
        sides = [self._side(a, at, span) for a in x.args]
        (left, a), (right, b) = sides
        left = dict(left)
        for v, n in right.items():
            left[v] = left.get(v, 0) - n
        left = {v: n for v, n in left.items() if n}
        far = max(abs(p - q) for p in a for q in b)
        ends = [v for v in left if v in self.marks.values()]
        if ends:
            loop = next(s for s, m in self.marks.items() if m is ends[0])
            want = {loop.var: 1, ends[0]: -1}
            unit = isinstance(loop.start, SConst) and loop.start.value == 0 and is_one(loop.step)
            level = self.shape.loops.index(loop)
            if unit and len(left) == 1:  # whether the loop has more rounds than a constant
                self.shape.first[level] = max(self.shape.first[level], math.ceil(far / abs(left[ends[0]])) + 2)
                return frozenset({level + 1})
            if not unit or (left != want and left != {v: -n for v, n in want.items()}) or loop not in at.loops:
                raise Broken("a condition is not about the first or last rounds of its own loop", span)
            self.shape.last[level] = max(self.shape.last[level], int(far) + 2)
            return frozenset({level + 1})
        if len(left) != 1:
            self._blame(x, span)
            raise Broken("a condition is not a comparison of a running count with a constant", span)
        ((v, times),) = left.items()
        loop = self.loops.get(v)
        if loop is not None:
            if not (isinstance(loop.start, SConst) and isinstance(loop.step, SConst)):
                raise Broken(f"a condition on {v.name}, which does not count from a constant", span)
            level, step, begin = self.shape.loops.index(loop), int(loop.step.value), abs(int(loop.start.value))
        else:
            c = self.counter_of(v, span)
            if not c.level:
                return frozenset()
            level, step = c.level - 1, c.step
            start = next(s.value for s, _ in self.sets[v] if increment(s) is None)
            begin = int(max(map(abs, self._interval(start))))
            if level and len(self.shape.loops) > 1:
                raise Broken(f"a condition on {v.name}, which runs on over the rounds of the loop around it", span)
        reach = math.ceil((far / abs(times) + begin) / step) + 2
        self.shape.first[level] = max(self.shape.first[level], reach)
        return frozenset({level + 1})

    def _remainder(self, x: SOp, at: Place, span: Span) -> frozenset[int] | None:
        """A condition on a running count modulo a constant, which repeats; None when x is no such condition."""
        for a, b in ((x.args[0], x.args[1]), (x.args[1], x.args[0])):
            if isinstance(a, SOp) and a.op == "%" and isinstance(a.args[1], SConst) and self.constant(b):
                terms, _ = self._terms(a.args[0], 1, at, span)
                modulus = int(a.args[1].value)
                if len(terms) != 1 or modulus < 1:
                    return None
                if len(self.shape.loops) > 1:
                    raise Broken("a condition on a remainder inside nested loops", span)
                ((v, times),) = terms.items()
                c = self.counter_of(v, span)
                if not c.level:
                    return frozenset()
                self.shape.cycle[0] = math.lcm(self.shape.cycle[0], modulus // math.gcd(modulus, c.step * abs(times)))
                return frozenset({1})
        return None

    def _side(self, x: SX, at: Place, span: Span) -> tuple[dict[ScalarVar, int], tuple[float, float]]:
        return self._terms(
            self.mark(x), 1, at, span, "a condition is not a comparison of a running count with a constant"
        )

    def mark(self, x: SX) -> SX:
        """x with the end of a symbolic loop replaced by its number of rounds."""
        if isinstance(x, SConst):
            return x
        if not self.ends:
            for loop, var in self.marks.items():
                if isinstance(loop.start, SConst) and loop.start.value == 0 and is_one(loop.step):
                    self.ends.append((self.plain(loop.stop), var))
        for end, var in self.ends:
            if same(self.plain(x), end):
                return SVar(var)
        if isinstance(x, SOp):
            args = tuple(self.mark(a) for a in x.args)
            return x if all(a is b for a, b in zip(args, x.args, strict=True)) else SOp(x.op, args, x.dtype)
        return x

    def plain(self, x: SX) -> SX:
        """x with names of values that no loop changes replaced by the values."""
        if isinstance(x, SVar):
            definitions = self.bound.notes.get("definitions", {})
            made = definitions.get(x.var)
            return x if made is None or x.var not in self.sets or self.sets[x.var][0][1].loops else self.plain(made)
        if isinstance(x, SOp):
            return SOp(x.op, tuple(self.plain(a) for a in x.args), x.dtype)
        return x

    # ---- the body

    def _body(self, body: Iterable[Any], at: Place) -> None:
        for s in body:
            if isinstance(s, Op) and self.relevant(s):
                self._op(s, at)
            if isinstance(s, If):
                seen = self.any_relevant(s.then + s.orelse)
                if not seen:
                    continue
                if s in self.skeleton.data_control:
                    raise Broken(f"a condition on loaded data decides whether {_name(seen)} runs", s.span)
                place = Place(at.loops, at.times, at.partial | self.guard(s.cond, at, s.span), True)
                self._body(s.then, place)
                self._body(s.orelse, place)
                continue
            if isinstance(s, For) and not self.any_relevant(s.body):
                continue
            if isinstance(s, For) and s.var in self.loops and at.partial:
                raise Broken("a condition decides in which rounds an inner loop runs", s.span)
            for inner, place in parts_of(s, at, self.loops):
                self._body(inner, place)
            self.after = self.after or (isinstance(s, For) and s.var in self.loops)

    def _op(self, s: Op, at: Place) -> None:
        if s.attrs.get("scope") == "grid":
            raise Broken("a barrier of the whole grid joins clusters that run different numbers of rounds", s.span)
        for name, v in s.operands.items():
            if isinstance(v, View):
                for x in (v.row0, v.col0, *([v.rank] if v.rank is not None else [])):
                    if not self.constant(x):
                        self._blame(x, s.span)
                        raise Broken(f"the place inside {v.buffer.name} changes from round to round", s.span)
                if v.buffer.staged and v.use is not None:
                    self._use(v.buffer, v.use, s, at)
            elif isinstance(v, BarUse):
                if v.rank is not None and not self.constant(v.rank):
                    self._blame(v.rank, s.span)
                    raise Broken("the rank of a barrier changes from round to round", s.span)
                if v.barrier.kind == "mbarrier":
                    self._use(v.barrier, v.use, s, at)
                elif not self.constant(v.use):
                    self._blame(v.use, s.span)
                    raise Broken("the index of a named barrier changes from round to round", s.span)
                elif len(self.shape.loops) > 1 and (len(at.loops) == 1 or at.partial):
                    self.shape.steady = False  # rounds of a named barrier count on through both loops
            elif isinstance(v, (SConst, SVar, SOp)) and name in ("init", "multicast"):
                if self.mark(v) is not v:
                    raise Broken(f"{name} of {s.name} changes with the last round", s.span)
                self.guard(v, at, s.span)
            elif isinstance(v, tuple) and any(isinstance(x, (SVar, SOp)) and not self.constant(x) for x in v):
                raise Broken(f"{name} of {s.name} changes from round to round", s.span)

    def _use(self, what: Any, use: SX, s: Op, at: Place) -> None:
        counter, low, high = self.linear(use, at, s.span)
        ring = self.shape.rings.get(what)
        if ring is None:
            ring = self.shape.rings[what] = Ring(what.name, what.stages, s.span)
        if counter.level:
            if ring.counter.level and ring.counter != counter:
                raise Broken(f"{what.name} is used with numbers that grow differently", s.span)
            ring.counter = counter
        elif at.loops or self.after:
            ring.late = ring.late or s.span
        ring.low, ring.high = min(ring.low, low), max(ring.high, high)
        ring.places.add((counter.level, len(at.loops), at.partial))

    def _rings(self) -> None:
        nested = len(self.shape.loops) > 1
        for b in self.bound.buffers:
            if b.over is not None:
                self.shape.overlaid += [b, b.over]
        for what, ring in self.shape.rings.items():
            if not ring.counter.level:
                continue
            if ring.late is not None:
                raise Broken(f"a fixed use number of {ring.name}, whose numbers run on", ring.late)
            if not (nested and ring.counter.level == 2):
                continue
            if not isinstance(what, Buffer):
                if any(depth == 1 or guards for _, depth, guards in ring.places):
                    self.shape.steady = False
            elif ring.outside or what in self.shape.overlaid:
                why = "shares storage" if what in self.shape.overlaid else "is used outside the loop that advances it"
                text = f"the ring {ring.name} {why}, so what meets depends on the length modulo its stages"
                raise Broken(text, ring.span)


def _name(s: Any) -> str:
    return s.name if isinstance(s, Op) else "an assignment"
