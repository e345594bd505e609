"""When a check is a proof: a finite set of runs that decides the order reading for all shapes.

`decide` asks `premises` whether the text has the form for which the cutoff argument holds (docs/order-reading.md, "Cutoff"),
derives the trip counts that must be run, runs them with the same machine as the witnesses, and checks that each run needs
only what stands earlier in the text. Trip counts are set directly, so no shape has to be found for them.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import Any

from analyses.order.forms import Broken, Ring, Shape, alike
from analyses.order.fuse import fused
from analyses.order.log import Log
from analyses.order.machine import Machine
from analyses.order.premises import premises
from cake_ir.arithmetic import compile_sx
from cake_ir.bound import (
    BoundKernel,
    Buffer,
    For,
    If,
    Op,
    RoleBlock,
    SConst,
    SetScalar,
    SOp,
    SVar,
    WarpsBlock,
    walk,
)
from cake_ir.derive import Derived
from cake_ir.derive.arrivals import ARRIVING, COPIES, arrival_weight, copy_bytes, count, receivers
from cake_ir.memo import memo
from cake_ir.skeleton import AgentTrace, AssumeViolated, BarAt, Event, SkeletonLimit, compile_skeleton
from cake_ir.witness import Witness, traces

QUICK = 2_000
"""Events of all cutoff runs together that `verify` spends unasked; what needs more stays checked until a proof is asked for."""

THOROUGH = 120_000
"""The same when a proof is asked for."""

REACH = 8_000
"""Events of one run that reaches the constants of conditions, where a proof costs more than is spent on it."""

LONGEST = 2_000
"""Rounds that a run may have; constants beyond are not reached."""

PLAN = 40_000
"""Pairs of trip counts that a plan may hold."""


@dataclass(frozen=True)
class Cutoff:
    """holds: the runs decide all shapes. reason: the argument in short, or the premise that fails. runs: trip counts run.
    shown: a shape whose trip counts showed a fault in the runs; the order reading of that shape decides whether it is one.
    busy: the line of the innermost loop when `where` gives it at least one round, else 0."""

    holds: bool
    reason: str
    runs: int = 0
    shown: Witness | None = None
    busy: int = 0


class _Shown(Broken):
    """A run showed a fault."""


def decide(bound: BoundKernel, derived: Derived, budget: int = QUICK) -> Cutoff:
    """The verdict for one kernel whose witnesses gave no finding. Never raises."""
    return memo(bound, f"cutoff {budget}", lambda: _decide(joined(bound), derived, budget))


def joined(bound: BoundKernel) -> BoundKernel:
    """The kernel as the argument reads it: loops of their own that run side by side as one."""
    definitions = bound.notes.get("definitions", {})
    return memo(bound, "joined", lambda: fused(bound, lambda a, b: alike(a, b, definitions)))


def _decide(bound: BoundKernel, derived: Derived, budget: int) -> Cutoff:
    shape, trips, busy = Shape(), (), 0
    try:
        shape = premises(bound)
        busy = shape.loops[-1].span.line if shape.loops and shape.least[-1] else 0
        plan = trip_counts(shape)
        least = sum(math.prod(p) for p in plan) * bound.launch.cluster * _at_least(bound, shape)
        cost = _cost(bound, derived, shape, plan) if least <= budget else [least]
        if sum(cost) > budget:
            for trips in _corners(bound, derived, shape, plan):
                run(bound, derived, shape, trips, [False, True])
            text = f"a proof takes {len(plan)} trip counts, up to {_most(plan)} rounds"
            raise Broken(text + ("; ask for it with prove" if sum(cost) <= THOROUGH else ", more than is spent on one"))
        orders = [False, True]
        for trips in plan:
            run(bound, derived, shape, trips, orders)
    except _Shown as fault:
        return Cutoff(False, str(fault), 0, realise(bound, derived, shape, trips), busy)
    except Broken as fault:
        return Cutoff(False, str(fault), busy=busy)
    except (SkeletonLimit, AssumeViolated, ZeroDivisionError, ValueError, IndexError, OverflowError) as fault:
        return Cutoff(False, f"the cutoff runs cannot be made ({type(fault).__name__})")
    lines = " and ".join(str(s.span.line) for s in shape.loops)
    loops = f"; loops of line {lines} up to {_most(plan)} rounds" if lines else "; no loop of unknown length"
    many = f"{len(plan)} trip counts decide all" if len(plan) > 1 else "one run decides all"
    return Cutoff(True, f"cutoff: {many}{loops}", len(plan), busy=busy)


def _corners(bound: BoundKernel, derived: Derived, shape: Shape, plan: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Of a plan that is too long, the runs that witnesses tend to miss: empty inner loops between tiles, and rounds beyond the
    constants of conditions."""
    found = [p for p in plan if len(p) == 2 and p[1] == 0 and p[0] in (2, 3)]
    if max(a + b + c for a, b, c in zip(shape.first, shape.last, shape.cycle, strict=True)) > 4:
        each = _cost(bound, derived, shape, plan)
        found += [max((p for p, n in zip(plan, each, strict=True) if n <= REACH), default=plan[0])]
    return found


def _most(plan: list[tuple[int, ...]]) -> str:
    return " and ".join(str(max(p[i] for p in plan)) for i in range(len(plan[0])))


# ---- which trip counts


def trip_counts(shape: Shape) -> list[tuple[int, ...]]:
    """The trip counts to run, one number per symbolic loop, outermost first."""
    if not shape.loops:
        return [()]
    edge = [a + b for a, b in zip(shape.first, shape.last, strict=True)]
    if len(shape.loops) == 1:
        top = _window(shape, 1) + edge[0] + 2 * _turn(shape, 1)
        _bounded(top)
        return [(n,) for n in range(shape.least[0], top + 1)]
    far, near = _window(shape, 1), _window(shape, 2)
    tiles = far + edge[0] + 2 * _turn(shape, 1)
    deep = near + edge[1] + 2
    _bounded(tiles, deep)
    if tiles * deep > PLAN:
        raise Broken(f"conditions or rings ask for {tiles} times {deep} rounds")
    found: set[tuple[int, int]] = set()
    for k in range(shape.least[1], deep + 1):
        across = math.ceil((near + 2) / max(k, 1))  # rounds of the outer loop that a window of the inner one can span
        if k > edge[1] + 2 and shape.steady:
            ts = {shape.least[0], 1}
        elif shape.steady:
            ts = {*range(shape.least[0], tiles + 1), across}
        else:
            ts = {*range(shape.least[0], max(tiles, across + edge[0] + 1) + 1)}
        found |= {(t, k) for t in ts if t >= shape.least[0]}
    return sorted(found)


def _bounded(*rounds: int) -> None:
    if max(rounds) > LONGEST:
        raise Broken(f"a constant in a condition, or a ring, asks for runs of {max(rounds)} rounds")


def _window(shape: Shape, level: int) -> int:
    """Rounds within which two ops that meet are neighbours: what a condition on a remainder lets run comes back to a slot
    after the common period only."""
    mine = [r for r in shape.rings.values() if r.counter.level == level]
    found = max([2, *(r.window for r in mine)])
    cycle = shape.cycle[level - 1]
    return found if cycle == 1 else found + math.lcm(cycle, *(_period(r) for r in mine))


def _turn(shape: Shape, level: int) -> int:
    """Rounds after which the slots of all rings of a level stand as before, where that matters; else 1."""
    mine = [(w, r) for w, r in shape.rings.items() if r.counter.level == level and isinstance(w, Buffer)]
    cycle = shape.cycle[level - 1]
    if cycle == 1 and not any(r.outside or w in shape.overlaid for w, r in mine):
        return 1
    return math.lcm(cycle, *(_period(r) for _, r in mine))


def _period(r: Ring) -> int:
    return r.stages // math.gcd(r.stages, r.counter.step)


# ---- runs


def _at_least(bound: BoundKernel, shape: Shape) -> int:
    """Events of one round of the innermost loop, one CTA, at least: its ops without conditions."""
    agents = {r.name: r.count for r in bound.roles}
    inner = shape.loops[-1].body if shape.loops else ()
    certain = [s for s in inner if not isinstance(s, If)]
    ops = [o for s in certain for o in walk((s,)) if isinstance(o, Op)]
    return max(1, sum(agents.get(o.role or "", len(agents)) for o in ops))


def _cost(bound: BoundKernel, derived: Derived, shape: Shape, plan: list[tuple[int, ...]]) -> list[int]:
    """The events of each run, estimated from small ones. Raises Broken without a witness to take extents from."""
    if not derived.witnesses:
        raise Broken("no witness shape")
    if not shape.loops:
        return [0]
    level = len(shape.loops)
    one = _events(bound, derived, shape, (2,) * level)
    two = _events(bound, derived, shape, (2,) * (level - 1) + (4,))
    inner = max(1, (two - one) // (2 * 2 ** (level - 1)))
    outer = max(0, one // 2 - 2 * inner) if level == 2 else 0
    return [math.prod(p) * inner + (p[0] * outer if level == 2 else 0) for p in plan]


def _events(bound: BoundKernel, derived: Derived, shape: Shape, trips: tuple[int, ...]) -> int:
    kernel, w = _instance(bound, derived, shape, trips)
    return sum(1 for t in traces(kernel, w) for _ in _flat(t.events))


def _flat(events: list[Event]) -> Any:
    for e in events:
        if e.children is None:
            yield e
        else:
            for child in e.children:
                yield from _flat(child)


def _instance(
    bound: BoundKernel, derived: Derived, shape: Shape, trips: tuple[int, ...]
) -> tuple[BoundKernel, Witness]:
    """The kernel with its symbolic loops run so many rounds, and the one shape of it."""
    kernel: BoundKernel = memo(bound, "cutoff kernel", lambda: _free(bound, shape))
    dims = {**derived.witnesses[0].shape, **{f"rounds{i + 1}": n for i, n in enumerate(trips)}}
    cluster = bound.launch.cluster
    goal = ", ".join(f"{n} rounds of line {s.span.line}" for n, s in zip(trips, shape.loops, strict=True))
    return kernel, Witness(
        tuple(dims.items()), cluster, tuple(range(cluster)), cluster, derived.witnesses[0].oracle, goal
    )


def _free(bound: BoundKernel, shape: Shape) -> BoundKernel:
    """The kernel with trip counts of its own instead of those that the extents give."""

    def stmts(body: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(stmt(s) for s in body)

    def stmt(s: Any) -> Any:
        if isinstance(s, SetScalar):
            return replace(s, value=shape.values[s]) if s in shape.values else s
        changes: dict[str, Any] = {}
        for part in ("prelude", "body", "then", "orelse"):
            inner = getattr(s, part, None)
            if inner:
                new = stmts(inner)
                if any(a is not b for a, b in zip(new, inner, strict=True)):
                    changes[part] = new
        if isinstance(s, If) and s in shape.values:
            changes["cond"] = shape.values[s]
        if isinstance(s, For) and s in shape.marks:
            rounds: Any = SVar(shape.marks[s])
            if isinstance(s.start, SConst) and isinstance(s.step, SConst):
                stop = SOp("+", (s.start, SOp("*", (s.step, rounds), "i32")), "i32")
                changes |= {"stop": stop}
            else:
                changes |= {"start": SConst(0), "stop": rounds, "step": SConst(1)}
        return replace(s, **changes) if changes else s

    marks = {v.name: v for v in shape.marks.values()}
    return replace(
        bound,
        body=stmts(bound.body),
        where=(),
        dims={**bound.dims, **marks},
        scalars=(*bound.scalars, *marks.values()),
        launch=replace(bound.launch, ctas=SConst(bound.launch.cluster)),
    )


def run(bound: BoundKernel, derived: Derived, shape: Shape, trips: tuple[int, ...], orders: list[bool]) -> None:
    """One run. Raises Broken when anything is found, or when an op waits for one that stands later in the text.

    orders: the ways to read the text as one program (see `_later`) that fit so far; those that this run breaks are removed.
    """
    kernel, w = _instance(bound, derived, shape, trips)
    found = traces(kernel, w)
    _counts(kernel, derived, w)
    log = Log(kernel)
    log.begin(w)
    Machine(kernel, derived, w, found, log).run()
    for faults in log.found.values():
        for d in faults.values():
            raise _Shown(f"with {w.goal or 'any shape'} the runs show {d.rule}", d.span)
    late: Event | None = None
    for fine in list(orders):
        if (blocked := _later(kernel, derived, found, fine)) is not None:
            late = late or blocked
            orders.remove(fine)
    if not orders and late is not None:
        raise Broken(f"{late.node.name} waits for what stands later in the text", late.node.span)


def _counts(kernel: BoundKernel, derived: Derived, w: Witness) -> None:
    """Arrivals and bytes of every use are those that were derived."""
    tally = count(kernel, (w,))
    for d in tally.diagnostics:
        raise _Shown(f"with {w.goal} the runs show {d.rule}", d.span)
    for bar, totals in tally.arrivals.items():
        if set(totals) != {derived.arrivals.get(bar)}:
            raise _Shown(
                f"with {w.goal}, {bar.name} gets {', '.join(map(str, sorted(totals)))} arrivals per use", bar.span
            )
        if bar in tally.restarted:
            raise Broken(f"the use numbers of {bar.name} begin again", bar.span)
    for site, totals in tally.expects.items():
        if set(totals) != {derived.expect_bytes.get(site)}:
            raise _Shown(f"with {w.goal} the bytes of a use differ")


def realise(bound: BoundKernel, derived: Derived, shape: Shape, trips: tuple[int, ...]) -> Witness | None:
    """A shape in which the loops of the first CTA run so many rounds, or None when none was found near the witnesses."""
    skeleton = compile_skeleton(bound)
    names, cluster = list(bound.dims), bound.launch.cluster
    definitions = [s for s in walk(bound.body) if isinstance(s, SetScalar)]
    bounds = [tuple(compile_sx(x) for x in (s.start, s.stop, s.step)) for s in shape.loops]
    builtins = bound.builtins

    def rounds(values: tuple[int, ...]) -> tuple[int, ...] | None:
        env = skeleton.environment(dict(zip(names, values, strict=True)), {}, cluster)
        if not skeleton.admits(env) or skeleton.cta_count(env) < cluster:
            return None
        count = skeleton.cta_count(env)
        for name, value in (("cta_count", count), ("cluster_count", count // cluster)):
            if name in builtins:
                env[builtins[name].slot] = value
        for s in definitions:
            if s.var not in skeleton.tainted:
                env[s.var.slot] = compiled[s](env)
        return tuple(len(range(start(env), stop(env), step(env))) for start, stop, step in bounds)

    compiled = {s: compile_sx(s.value) for s in definitions}
    scales = sorted(
        {1, 8, 16, 32, 64, 128, 192, 256, 512, *(int(x) for x in bound.tunables.values() if type(x) is int and x > 0)}
    )
    for base in dict.fromkeys(tuple(w.shape[n] for n in names) for w in derived.witnesses):
        values, got = base, None
        for level in reversed(range(len(trips))):  # the inner loop first: its extent seldom changes the outer one
            for i, d in itertools.product(range(len(names)), scales):
                trial = (*values[:i], d * max(trips[level], 1), *values[i + 1 :])
                try:
                    got = rounds(trial)
                except (ZeroDivisionError, ValueError):
                    continue
                if got is not None and got[level:] == trips[level:]:
                    values = trial
                    break
            else:
                break
        else:
            if got == trips:
                dims = tuple(zip(names, values, strict=True))
                env = skeleton.environment(dict(dims), {}, cluster)
                ctas, total = tuple(range(cluster)), skeleton.cta_count(env)
                return Witness(dims, cluster, ctas, total, derived.witnesses[0].oracle, "a fault of the cutoff runs")
    return None


# ---- the text as one sequential program


def _positions(kernel: BoundKernel) -> dict[Any, tuple[tuple[Any, ...], int]]:
    """By op (site) and WarpsBlock: (path of indices, None for each loop; how many entries lie above its role block)."""
    found: dict[Any, tuple[tuple[Any, ...], int]] = {}

    def visit(body: tuple[Any, ...], path: tuple[Any, ...], role: int | None) -> None:
        for i, s in enumerate(body):
            here = (*path, i)
            found[s.site if isinstance(s, Op) else s] = (here, len(here) if role is None else role)
            if isinstance(s, WarpsBlock):
                continue
            inside = len(here) if isinstance(s, RoleBlock) and role is None else role
            below = (*here, None) if hasattr(s, "cond") is False and hasattr(s, "stop") else here
            if hasattr(s, "prelude"):
                below = (*here, None)
            for k, part in enumerate(("prelude", "body", "then", "orelse")):
                if getattr(s, part, None):
                    visit(getattr(s, part), (*below, k), inside)

    visit(kernel.body, (), None)
    return found


def _later(kernel: BoundKernel, derived: Derived, found: list[AgentTrace], fine: bool) -> Event | None:
    """The first op that would block if all agents ran statement by statement in the order of the text (fine), or one role block
    after the other (not fine); None when nothing blocks."""
    places: dict[Any, tuple[tuple[Any, ...], int]] = memo(kernel, "positions", lambda: _positions(kernel))
    steps: list[tuple[Any, ...]] = []
    for a, t in enumerate(found):
        for n, e in enumerate(t.events):
            node = e.node
            path, role = places[node.site if isinstance(node, Op) else node]
            rounds = iter(e.path)
            key = tuple(next(rounds) if p is None else p for p in path)
            whole = fine or role == len(path)
            # the loops inside a role block do not count when the block is one step
            at = key if whole else key[:role]
            steps.append((at, a, n, t, e, whole))
    steps.sort(key=lambda s: s[:3])
    state = _Sequence(kernel, derived, found)
    i = 0
    while i < len(steps):
        j = i + 1
        if steps[i][5]:
            while j < len(steps) and steps[j][5] and steps[j][0] == steps[i][0]:
                j += 1
        for _, _, _, t, e, _ in steps[i:j]:
            for one in _flat([e]):
                if not state.step(t, one):
                    return one
        if (open_one := state.open()) is not None:
            return open_one
        i = j
    return None


class _Sequence:
    """Barriers of a sequential run: nothing may block."""

    def __init__(self, kernel: BoundKernel, derived: Derived, found: list[AgentTrace]) -> None:
        self.derived, self.cluster = derived, kernel.launch.cluster
        self.arrived: Counter[Any] = Counter()
        self.bytes: Counter[Any] = Counter()
        self.rounds: dict[Any, Counter[Any]] = defaultdict(Counter)
        self.inside: dict[Any, Counter[int]] = defaultdict(Counter)
        self.waiting: list[tuple[Any, int, Event]] = []
        self.threads: Counter[int] = Counter()
        for t in found:
            self.threads[t.cta] += (
                32 * t.role.warps if t.role.unit == "thread" else 128 if t.role.unit == "warpgroup" else 32
            )

    def step(self, t: AgentTrace, e: Event) -> bool:
        if not isinstance(e.node, Op):
            return True
        name, base = e.node.name, t.cta - t.cta % self.cluster
        if name == "wait":
            bar: BarAt = e.vals["bar"]
            key = (bar.barrier, bar.cta, bar.use)
            return bar.use < 0 or (self.arrived[key] == self.derived.arrivals.get(bar.barrier) and self.bytes[key] == 0)
        if name in ARRIVING:
            bar = e.vals["bar"]
            for cta in receivers(e, bar.cta, base, self.cluster):
                self.arrived[(bar.barrier, cta, bar.use)] += arrival_weight(e, t)
            if name == "expect":
                self.bytes[(bar.barrier, bar.cta, bar.use)] += self.derived.expect_bytes.get(e.node.site, 0)
        elif name in COPIES:
            bar = e.vals["signal"]
            for cta in receivers(e, bar.cta, base, self.cluster):
                self.bytes[(bar.barrier, cta, bar.use)] -= copy_bytes(e.vals["view"])
        elif name in ("sync", "named_arrive"):
            self.enter(t, e, name == "sync", base)
        return True

    def enter(self, t: AgentTrace, e: Event, waits: bool, base: int) -> None:
        scope = e.node.attrs.get("scope")
        mine = 128 if t.role.unit == "warpgroup" else 32 * t.role.warps if t.role.unit == "thread" else 32
        if e.node.unit == "W":
            mine = 32
        if scope == "warp" or scope == "warpgroup":
            return
        if not waits or scope == "named":
            bar: BarAt = e.vals["bar"]
            key: Any = ("named", bar.barrier, bar.slot, t.cta)
            need = self.derived.named.get(("named", bar.barrier, bar.slot), (0, mine))[1]
        elif scope == "role":
            key, need = ("role", e.node.operands["role"], t.cta), 32 * e.node.operands["role"].warps
        elif scope == "cluster":
            key = ("cluster", base)
            need = sum(n for c, n in self.threads.items() if base <= c < base + self.cluster)
        else:
            key, need = ("cta", t.cta), self.threads[t.cta]
        who = (t.cta, t.role.name, t.instance)
        number = self.rounds[key][who]
        self.rounds[key][who] += 1
        self.inside[key][number] += mine
        if waits:
            self.waiting.append((key, number, e))
        if self.inside[key][number] >= need:
            self.waiting = [w for w in self.waiting if w[:2] != (key, number)]

    def open(self) -> Event | None:
        """A rendezvous that somebody still waits at."""
        return self.waiting[0][2] if self.waiting else None
