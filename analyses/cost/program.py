"""What the agents of one CTA (of one cluster) do in order, with what each step asks of the machine: the input of the simulation.

A bound kernel is compiled once into closures; `Program.trace` then gives, for one shape, a list of events per role instance. Index
arithmetic and loops are executed, data are not: what depends on loaded values takes one round, branches on them are not taken.
Long loops are cut (`limits`): the first iterations and the last one are run, and the simulation extrapolates.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analyses.cost.code import Code, Kind, code_of, division_of
from analyses.cost.machine import Machine
from analyses.cost.schedule import movable, order
from analyses.cost.work import folded
from cake_ir import bound as B
from cake_ir.arithmetic import compile_sx
from cake_ir.events import tainted_scalars

EVENT_LIMIT = 60_000
"""Events of one trace; more are a program that no estimate is made of."""
SHORTEST_PERIOD, LONGEST_PERIOD = 4, 12
"""Iterations between the two lengths from which a loop over rings of stages is extrapolated."""
REPRESENTATIVES = 4
"""Warps of a role up to which all are simulated, and about so many of more."""
KINDS = 8
"""Kinds of a role's warps, which do the same, up to which at least one of each is simulated."""


class TooLong(Exception):
    """A trace beyond EVENT_LIMIT."""


@dataclass
class Agent:
    """One simulated role instance. weight: how many instances it stands for; events: (code, gates, part of the region that exists,
    how often the event stands for itself because loops are cut)."""

    rank: int
    role: B.Role
    instance: int
    weight: float
    events: list[tuple[Code, tuple[int, ...], float, float]]


@dataclass
class Trace:
    """The agents of a cluster. needs: arrivals per gate (completions of barriers, by number). cut: trips of the loops that were
    cut, by loop. like: by rank, the first rank that does the same. Ranks that do the same are in step with each other: the first is
    run alone, and its gates are those of each."""

    agents: list[Agent]
    needs: list[int]
    cut: dict[int, float]
    like: Sequence[int]

    @property
    def size(self) -> int:
        """Events of all agents."""
        return sum(len(a.events) for a in self.agents)

    @property
    def simulated(self) -> list[Agent]:
        """The agents that have to be run."""
        return [a for a in self.agents if self.like[a.rank] == a.rank]


OWN, ALL = -2, -1
"""Whose barrier: the agent's own CTA's, one of the cluster. Others are given by rank."""


class _Run:
    """State of the agent that is traced."""

    __slots__ = (
        "counts",
        "cut",
        "env",
        "gates",
        "instance",
        "limits",
        "most",
        "mult",
        "out",
        "rank",
        "role",
        "whole",
        "whose",
    )

    def __init__(
        self, env: list[Any], rank: int, role: B.Role, instance: int, gates: dict[Any, int], limits: Mapping[int, int],
        cut: dict[int, list[float]], whole: Mapping[int, float], most: int,
    ) -> None:  # fmt: skip
        self.whole, self.most = whole, most
        self.whose: list[tuple[int, ...]] = []  # of each event with gates: whose barriers they are
        self.env, self.rank, self.role, self.instance = env, rank, role, instance
        self.gates, self.limits, self.cut = gates, limits, cut
        self.out: list[tuple[Code, tuple[int, ...], float, float]] = []
        self.mult = 1.0
        self.counts: dict[Any, int] = defaultdict(int)

    def gate(self, place: Any) -> int:
        """The number of a completion, whosever barrier it is of."""
        found = self.gates.get(place)
        if found is None:
            found = self.gates[place] = len(self.gates)
        return found


Step = Callable[[_Run], None]


class Program:
    """A compiled kernel. drivers: by loop, the extents and scalars that its trips follow from, unless the number of its CTA does too;
    uneven: whether that number decides which turns of a loop a CTA takes, persistent loops aside."""

    def __init__(self, bound: B.BoundKernel, machine: Machine) -> None:
        self.bound, self.machine = bound, machine
        self.tainted = tainted_scalars(bound)
        self._folded = folded(bound)
        self._wide = B.crosses_ctas(bound)
        self.loops: dict[int, B.For] = {}
        self._bodies = {r.name: self._block(bound.body, r, None) for r in bound.roles}
        self._spans = {id(s): self._limit(s) for s in self.loops.values()}
        depends = _dependence(bound)
        extents = {*bound.dims.values(), *bound.args}
        own = {bound.builtins["cluster_id"], bound.builtins["cta"]}
        self.drivers: dict[int, tuple[B.ScalarVar, ...]] = {}
        self.uneven = False
        for key, loop in self.loops.items():
            start, stop, step = (_reach(x, depends) for x in (loop.start, loop.stop, loop.step))
            self.uneven |= bool((start | stop) & own) and not B.persistent(bound, loop)
            if not start & own:
                self.drivers[key] = tuple(v for v in extents if v in start | stop | step)

    def spans(self, loop: int) -> tuple[int, int]:
        """(fewer, more) iterations of a loop: the two lengths from which longer ones are extrapolated."""
        return self._spans[loop]

    def trace(
        self, env: Sequence[Any], limits: Mapping[int, int], whole: Mapping[int, float] | None = None,
        like: Sequence[int] | None = None, most: int = EVENT_LIMIT,
    ) -> Trace:  # fmt: skip
        """The events of a cluster whose first CTA `env` describes. limits: iterations that are run of a loop (all where it has none);
        whole: trips of loops that are shorter here because an extent of `env` is smaller; like: which ranks do the same, if it is
        known: others are not traced. Raises TooLong beyond `most` events."""
        bound, gates = self.bound, {}
        cut: dict[int, list[float]] = defaultdict(list)
        rank_slot = bound.builtins["cluster_rank"].slot
        cta_slot = bound.builtins["cta"].slot
        budget = most
        runs: dict[int, list[tuple[_Run, float]]] = {}
        for rank in sorted(set(like)) if like is not None else range(bound.launch.cluster):
            runs[rank] = []
            for role in bound.roles:
                traced: list[_Run] = []
                for instance in range(role.count):
                    own = list(env)
                    own[rank_slot], own[cta_slot] = rank, env[cta_slot] + rank
                    run = _Run(own, rank, role, instance, gates, limits, cut, whole or {}, budget)
                    for step in self._bodies[role.name]:
                        step(run)
                    traced.append(run)
                kept = representatives(role, traced)
                budget -= sum(len(run.out) for run, _ in kept)
                if budget < 0:
                    raise TooLong
                runs[rank] += kept
        like = like if like is not None else _alike(runs)
        return _folded(runs, like, len(gates), {k: sum(v) / len(v) for k, v in cut.items()})

    # ---- compiling -------------------------------------------------------------------------------------------------

    def _limit(self, loop: B.For) -> tuple[int, int]:
        inner, stages = B.walk(loop.body), _rings(loop.body)
        if any(isinstance(s, B.For) and _rings(s.body) for s in inner):
            return 2, 3  # a loop over tiles
        if stages:
            # a whole number of turns of every ring, or of the longest
            period = math.lcm(*stages)
            period = period if period <= LONGEST_PERIOD else max(stages)
            period *= -(-SHORTEST_PERIOD // period)
            return period + max(4, max(stages)), 2 * period + max(4, max(stages))
        return 4, 6

    def _block(self, body: tuple[B.Stmt, ...], role: B.Role, narrow: str | None) -> tuple[Step, ...]:
        out: list[Step] = []
        divided: set[Any] = set()
        run: list[tuple[B.Stmt, Step]] = []  # statements among which a compiler moves loads
        for s in body:
            step = self._statement(s, role, narrow)
            assigns = isinstance(s, B.SetScalar)
            code = division_of(s, role, self.machine, divided) if assigns and step is not None else None
            if code is None and (assigns or (step is not None and movable(s))):
                if step is not None:
                    run.append((s, step))
                continue
            out += _scheduled(run)
            run = []
            if step is not None:
                out.append(step)
            if code is not None:
                out.append(_plain(code))
        return (*out, *_scheduled(run))

    def _statement(self, s: B.Stmt, role: B.Role, narrow: str | None) -> Step | None:
        if isinstance(s, (B.Let, B.Op)):
            return self._event(s, role, narrow)
        if isinstance(s, B.SetScalar):
            return None if s.var in self.tainted else _assign(s)
        if isinstance(s, B.For):
            return self._for(s, role, narrow)
        if isinstance(s, B.While):
            return _sequence(self._block((*s.prelude, *s.body), role, narrow))
        if isinstance(s, B.If):
            return self._if(s, role, narrow)
        if isinstance(s, B.RoleBlock):
            if s.role is not role:
                return None
            body, slot = self._block(s.body, role, narrow), s.instance.slot if s.instance is not None else None

            def block(c: _Run) -> None:
                if slot is not None:
                    c.env[slot] = c.instance
                for step in body:
                    step(c)

            return block if body else None
        if isinstance(s, B.ElectedBlock):
            return _sequence(self._block(s.body, role, "T"))
        if isinstance(s, B.WarpsBlock):
            if s.warp is not None:
                body, slot = self._block(s.body, role, "W"), s.warp.slot

                def warps(c: _Run) -> None:
                    c.env[slot] = 0
                    for step in body:
                        step(c)

                return warps
            return _sequence(self._block(s.body, role, "W"))
        return None

    def _for(self, s: B.For, role: B.Role, narrow: str | None) -> Step | None:
        body = self._block(s.body, role, narrow)
        if not body:
            return None
        self.loops[id(s)] = s
        start, stop, by, slot, key = compile_sx(s.start), compile_sx(s.stop), compile_sx(s.step), s.var.slot, id(s)

        def loop(c: _Run) -> None:
            env = c.env
            rounds = range(_number(start, env), _number(stop, env), max(1, _number(by, env)))
            trips = len(rounds)
            limit = c.limits.get(key)
            if limit is None or trips <= limit:
                if trips > 1 << 16:
                    raise TooLong
                outer = c.mult
                if key in c.whole and trips:
                    c.mult *= c.whole[key] / trips
                for i in rounds:
                    env[slot] = i
                    for step in body:
                        step(c)
                    if len(c.out) > c.most:
                        raise TooLong
                c.mult = outer
                return
            c.cut[key].append(trips)
            outer, c.mult = c.mult, c.mult * trips / limit
            for i in (*rounds[: limit - 1], rounds[-1]):
                env[slot] = i
                for step in body:
                    step(c)
                if len(c.out) > c.most:
                    raise TooLong
            c.mult = outer

        return loop

    def _if(self, s: B.If, role: B.Role, narrow: str | None) -> Step | None:
        then, orelse = self._block(s.then, role, narrow), self._block(s.orelse, role, narrow)
        if not then and not orelse:
            return None
        by_data = bool(B.sx_vars(s.cond) & self.tainted) if isinstance(s.cond, (B.SOp, B.SVar, B.SConst)) else True
        cond = compile_sx(s.cond) if not by_data else None

        def branch(c: _Run) -> None:
            taken = cond is not None and bool(_number(cond, c.env))
            for step in then if taken else orelse:
                step(c)

        return branch

    def _event(self, s: B.Let | B.Op, role: B.Role, narrow: str | None) -> Step | None:
        code = code_of(s, role, narrow, self.machine, self.bound.launch.cluster, self._folded, self._wide)
        if code is None:
            return None
        zero = tuple(r.slot for r in s.results if isinstance(r, B.ScalarVar)) if isinstance(s, B.Op) else ()
        gates = self._gates(s, role, code) if isinstance(s, B.Op) else None
        part = _moved(code) if code.region is not None else None

        if gates is None and part is None and not zero:
            return _plain(code)
        reduced = _reduced(code)

        def emit(c: _Run) -> None:
            for slot in zero:
                c.env[slot] = 0
            exists = part(c.env) if part is not None else 1.0
            c.out.append((reduced(exists) if exists < 1 else code, gates(c) if gates is not None else (), exists, c.mult))

        return emit

    def _gates(self, op: B.Op, role: B.Role, code: Code) -> Callable[[_Run], tuple[int, ...]] | None:
        """Which completions an op arrives at or waits for."""
        cluster, o = self.bound.launch.cluster, op.operands
        if code.kind is Kind.SYNC:
            scope = op.attrs["scope"] if op.name == "sync" else "named"
            if scope == "named":
                use, bar = compile_sx(o["bar"].use), o["bar"].barrier

                def named(c: _Run) -> tuple[int, ...]:
                    place = (id(bar), _number(use, c.env))
                    c.counts[place] += 1
                    c.whose.append((OWN,))
                    return (c.gate((*place, c.counts[place], "named")),)

                return named
            whole = scope in ("cluster", "grid")
            name, whose = o["role"].name if scope == "role" else scope, (ALL if whole else OWN,)

            def met(c: _Run) -> tuple[int, ...]:
                place = ("sync", name)
                c.counts[place] += 1
                c.whose.append(whose)
                return (c.gate((*place, c.counts[place])),)

            return met
        bar = o.get("bar") or o.get("signal")
        if not isinstance(bar, B.BarUse) or code.kind in (Kind.EXEC, Kind.LOCAL):
            return None
        use, key = compile_sx(bar.use), id(bar.barrier)
        rank = compile_sx(bar.rank) if bar.rank is not None else None
        many = o.get("multicast")
        ranks = None
        if many == "cluster":
            ranks = [lambda env, r=r: r for r in range(cluster)]
        elif many:
            ranks = [compile_sx(r) if isinstance(r, (B.SConst, B.SVar, B.SOp)) else (lambda env, r=r: r) for r in many]
        waits = code.kind is Kind.WAIT

        def at(c: _Run) -> tuple[int, ...]:
            n = _number(use, c.env)
            if waits and n < 0:
                return ()
            if ranks is not None:
                c.whose.append(tuple([_number(r, c.env) % cluster for r in ranks]))
                return (c.gate((key, n)),) * len(ranks)
            c.whose.append((OWN if rank is None else _number(rank, c.env) % cluster,))
            return (c.gate((key, n)),)

        return at


def _alike(runs: Mapping[int, list[tuple[_Run, float]]]) -> list[int]:
    """By rank, the first rank that does the same: the same statements, of which the barriers are those of ranks that do the same."""
    like: list[int] = []
    for rank, agents in runs.items():
        same = (
            r
            for r in dict.fromkeys(like)
            if len(runs[r]) == len(agents)
            and all(a.out == b.out for (a, _), (b, _) in zip(runs[r], agents, strict=True))
        )
        like.append(next(same, rank))
    for rank, agents in runs.items():
        for (a, _), (b, _) in zip(runs[like[rank]], agents, strict=True):
            if a.whose != b.whose and _owners(a, like) != _owners(b, like):
                return list(runs)
    return like


def _owners(run: _Run, like: Sequence[int]) -> list[list[int]]:
    return [sorted([ALL if r == ALL else like[run.rank if r == OWN else r] for r in whose]) for whose in run.whose]


def _folded(
    runs: Mapping[int, list[tuple[_Run, float]]], like: Sequence[int], gates: int, cut: dict[int, float]
) -> Trace:
    """The trace of a cluster: gates are numbered by whose they are, and what no first rank does is that of its first rank."""
    agents: list[Agent] = []
    of = {r: i * gates for i, r in enumerate(dict.fromkeys(like))}
    needs, starts = [0] * (len(of) * gates), dict[int, int]()
    for rank, traced in runs.items():
        first = like[rank] == rank
        starts[rank] = len(agents)
        for i, (run, weight) in enumerate(traced):
            events = run.out if first else agents[starts[like[rank]] + i].events
            if first and len(of) > 1:
                whose = iter(run.whose)
                base = {r: of[like[r]] for r in range(len(like))} | {OWN: of[rank], ALL: 0}
                events = [
                    (code, tuple([g + base[r] for g, r in zip(at, next(whose), strict=True)]), part, mult) if at else e
                    for e in run.out
                    for code, at, part, mult in (e,)
                ]
            agents.append(Agent(rank, run.role, run.instance, weight, events))
            if first:
                for code, at, _, _ in events:
                    if code.arrives:
                        for g in at:
                            needs[g] += 1
    return Trace(agents, needs, cut, like)


def _rings(body: tuple[B.Stmt, ...]) -> list[int]:
    """Stages of the mbarriers that ops of a body use."""
    return [
        x.barrier.stages
        for s in B.walk(body)
        if isinstance(s, B.Op)
        for x in s.operands.values()
        if isinstance(x, B.BarUse) and x.barrier.kind == "mbarrier"
    ]


def _dependence(bound: B.BoundKernel) -> dict[B.ScalarVar, set[B.ScalarVar]]:
    """What each assigned scalar or loop index depends on, through others."""
    found: dict[B.ScalarVar, set[B.ScalarVar]] = defaultdict(set)
    for s in B.walk(bound.body):
        if isinstance(s, B.SetScalar):
            found[s.var] |= B.sx_vars(s.value)
        elif isinstance(s, B.For):
            found[s.var] |= B.sx_vars(s.start) | B.sx_vars(s.stop)
    changed = True
    while changed:
        changed = False
        for reached in found.values():
            more = set().union(*(found[v] for v in reached if v in found)) - reached
            if more:
                reached |= more
                changed = True
    return found


def _reach(x: Any, depends: Mapping[B.ScalarVar, set[B.ScalarVar]]) -> set[B.ScalarVar]:
    own = B.sx_vars(x)
    return own.union(*(depends[v] for v in own if v in depends))


def representatives(role: B.Role, traced: Sequence[_Run]) -> list[tuple[_Run, float]]:
    """The instances that are simulated, with how many each stands for: all warpgroups and threads; of many warps some of each kind,
    which do the same, and, where there are more kinds than a few, some that stand for their neighbours."""
    if role.unit != "warp" or role.count <= REPRESENTATIVES:
        return [(run, 1.0) for run in traced]
    kinds: dict[Any, list[_Run]] = {}
    for run in traced:
        kinds.setdefault(tuple(run.out), []).append(run)
    if len(kinds) > KINDS:
        return _some(traced, REPRESENTATIVES)
    return [x for same in kinds.values() for x in _some(same, max(1, round(REPRESENTATIVES * len(same) / role.count)))]


def _some(runs: Sequence[_Run], kept: int) -> list[tuple[_Run, float]]:
    """So many of these, which stand for all."""
    edges = [round(i * len(runs) / kept) for i in range(kept + 1)]
    return [(runs[a], float(b - a)) for a, b in itertools.pairwise(edges)]


def _number(f: Callable[[list[Any]], Any], env: list[Any]) -> int:
    """A uniform expression; what data would decide is 0."""
    try:
        return int(f(env))
    except (TypeError, ZeroDivisionError, OverflowError, ValueError):
        return 0


def _scheduled(run: Sequence[tuple[B.Stmt, Step]]) -> list[Step]:
    """Statements that follow each other as a compiler orders them. Assignments stay in their places: events move, not their evaluation."""
    steps = [step for _, step in run]
    places = order([s for s, _ in run if not isinstance(s, B.SetScalar)])
    if places == sorted(places):
        return steps

    def scheduled(c: _Run) -> None:
        start = len(c.out)
        for step in steps:
            step(c)
        events = c.out[start:]
        c.out[start:] = [events[i] for i in places]

    return [scheduled]


def _plain(code: Code) -> Step:
    return lambda c: c.out.append((code, (), 1.0, c.mult))


def _assign(s: B.SetScalar) -> Step:
    slot, value = s.var.slot, compile_sx(s.value)

    def assign(c: _Run) -> None:
        try:
            c.env[slot] = value(c.env)
        except (TypeError, ZeroDivisionError, OverflowError):
            c.env[slot] = 0

    return assign


def _sequence(body: tuple[Step, ...]) -> Step | None:
    if len(body) < 2:
        return body[0] if body else None

    def run(c: _Run) -> None:
        for step in body:
            step(c)

    return run


def _inside(d: B.RegionDim, extent: B.SX) -> bool:
    """Whether a slice exists whatever the shape."""
    if d.stop is not None or not isinstance(d.start, B.SConst) or not isinstance(extent, B.SConst):
        return False
    return d.start.value + d.size <= extent.value


def _reduced(code: Code) -> Callable[[float], Code]:
    """What a store costs of which only a part exists: each lane's pieces stand in a branch, and what is worked out for one alone with it,
    so that warps without any go past. Of others all is executed."""
    if code.kind != Kind.STORE or code.region is None:
        return lambda part: code
    made: dict[float, Code] = {}

    def of(part: float) -> Code:
        found = made.get(part)
        if found is None:
            found = made[part] = replace(
                code, pipes=tuple((p, c * part) for p, c in code.pipes), own=code.own * part, issue=code.issue * part, drag=code.drag * part
            )
        return found

    return of


LINE = 128
"""Bytes of a line of L2."""
STRADDLED = 0.6
"""What a second line costs that a row of a bulk copy reaches into, in lines: its tag is looked up, but only sectors that are needed
cross. (Fitted to products of 1000 to 2504 elements a row on the H200.)"""


def _moved(code: Code) -> Callable[[list[Any]], float] | None:
    """How much of what a region has in bytes an op moves: the part that exists; for rows of bulk copies that straddle lines of L2, because
    rows of the tensor do not begin at one, the lines that they touch."""
    assert code.region is not None
    part = _part(code.region)
    if code.kind not in (Kind.COPY_IN, Kind.COPY_OUT):
        return part
    region = code.region
    inner = region.dims[-1].size * region.tensor.dtype.bits // 8
    extent, size = region.tensor.extents[-1], region.tensor.dtype.bits
    if isinstance(extent, B.SConst) and extent.value * size // 8 % LINE == 0:
        return part
    pitch = compile_sx(extent)
    lines = max(1.0, min(inner, LINE) / LINE) * max(1, inner // LINE)

    def moved(env: list[Any]) -> float:
        aligned = math.gcd(_number(pitch, env) * size // 8, LINE)
        straddle = 1.0 + STRADDLED * (1.0 - aligned / LINE) / lines
        return straddle * (part(env) if part is not None else 1.0)

    return moved


def _part(region: B.Region) -> Callable[[list[Any]], float] | None:
    """The part of a region that exists: what lies outside the tensor is not moved. None where all of it always does."""
    dims = [
        (compile_sx(d.start), compile_sx(d.stop) if d.stop is not None else None, d.size, compile_sx(e))
        for d, e in zip(region.dims, region.tensor.extents, strict=False)
        if d.kind == "slice" and not _inside(d, e)
    ]
    if not dims:
        return None

    def part(env: list[Any]) -> float:
        found = 1.0
        for start, stop, size, extent in dims:
            end = _number(extent, env)
            if stop is not None:
                end = min(end, _number(stop, env))
            left = end - _number(start, env)
            if left < size:
                found *= max(0, left) / size
        return found

    return part
