"""A kernel at a shape on a machine: traces, rates and fixed costs, simulations of cut loops, and their extrapolation.

The simulation runs the CTAs of one SM. What the other SMs take of L2 and device memory is in its rates; loops that were cut and further
rounds of CTAs are linear in their trips: a run with fewer and one with more of each give the line.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from analyses.cost.code import Kind
from analyses.cost.machine import Machine
from analyses.cost.places import at_cta
from analyses.cost.program import Program, TooLong, Trace
from analyses.cost.sharing import L2, Traffic, traffic
from analyses.cost.simulate import Deadlock, run
from analyses.cost.sm import Costs, Outcome, Rates
from cake_ir import bound as B
from cake_ir.arithmetic import compile_sx
from cake_ir.diagnostics import CakeError, error

WHOLE = 5000
"""Events up to which nothing is cut."""
EVENTS = 4000
"""Events of one simulation that are aimed at: CTAs of an SM beyond that are simulated by fewer, each of which stands for several."""
INFINITE = 1e18


@dataclass
class Reading:
    """clocks: of the SM with most CTAs, from its first CTA's start to its last one's end; cta: of one CTA that has the SM with its
    neighbours. busy: clocks that each server of an SM works for `ctas` CTAs like the first; reads, writes: bytes of device memory;
    l2_reads, l2_writes: bytes that pass L2, once for CTAs that ask at the same time. outcome: the longest simulation, logged when asked
    for; trace: its trace. error: the standard error of bytes, as a fraction, where some CTAs were looked at for all."""

    clocks: float
    cta: float
    busy: dict[str, float]
    ctas: float
    stalls: dict[str, float]
    reads: float
    writes: float
    adds: float
    l2_reads: float
    l2_writes: float
    flop: float
    outcome: Outcome
    trace: Trace
    simulations: int = 0
    error: float = 0.0


@dataclass(frozen=True)
class Grid:
    """CTAs of a launch: `ctas`, `resident` fit an SM, `sms` are used, `busy` share an SM at most, `per_sm` come to the fullest SM; average:
    work of the average CTA over that of the first."""

    ctas: int
    resident: int
    sms: int
    busy: int
    per_sm: float
    average: float

    @property
    def active(self) -> int:
        """SMs that have a CTA."""
        return min(self.ctas, self.sms)


@dataclass(frozen=True)
class _Axis:
    """What is extrapolated, from `low` and `high` to `whole`: iterations of a loop (by id), an extent with the trips of the loops that it
    drives, or the rounds of CTAs (neither)."""

    low: float
    high: float
    whole: float
    loop: int | None = None
    extent: B.ScalarVar | None = None
    drives: tuple[tuple[int, float], ...] = ()


def read(
    bound: B.BoundKernel, env: list[Any], grid: Grid, m: Machine, clock_hz: float, *, l2: L2, without: frozenset[str] = frozenset(),
    log: bool = False,
) -> Reading:  # fmt: skip
    """Simulate. Raises CakeError `cost/too-long` for a program that no simulation of bounded length stands for."""
    try:
        return _read(bound, env, grid, m, clock_hz, l2, without, log)
    except (TooLong, Deadlock) as exc:
        why = (
            "its loops are too long to be simulated" if isinstance(exc, TooLong) else "some of its roles wait for ever"
        )
        raise CakeError(
            error("cost/too-long", "performance", f"'{bound.name}' cannot be estimated at this shape: {why}", bound.span,
                  contract="An estimate runs the program's roles against the clock, with long loops cut; verify the kernel first.")
        ) from None  # fmt: skip


def _read(
    bound: B.BoundKernel,
    env: list[Any],
    grid: Grid,
    m: Machine,
    clock_hz: float,
    l2: L2,
    without: frozenset[str],
    log: bool,
) -> Reading:
    program = Program(bound, m)
    limits = {k: program.spans(k)[1] for k in program.loops}
    try:  # a short program is run whole: cutting it would cost more
        whole = program.trace(env, {}, most=WHOLE)
        limits = {}
    except TooLong:
        whole = program.trace(env, limits)
    cluster = bound.launch.cluster
    mix = _mix(program, env, grid, limits, whole)
    moved = traffic(bound, env, grid, mix.parts(), m, l2)
    rates = _rates(m, clock_hz, grid, moved, without)
    costs = _costs(m, cluster, without)
    weight, copies, rounds, axis = _rounds(grid, whole.size)
    many = 1.0
    if axis is not None and len(mix.traces) > 1:  # a line through two runs would say what the kinds of their last CTAs take
        fewer = max(int(axis.low), 2 * int(copies), min(rounds, 3 * WHOLE // mix.events))
        many, rounds, axis = rounds / fewer, fewer, None
    axes = _axes(program, whole, env)
    axes += [axis] if axis is not None else []
    stretch = 1.0
    if rounds > copies:  # tiles of persistent CTAs are dealt out before it is known who waits for an SM
        stretch = _stretch(bound, env, grid)
        if stretch:
            rounds = copies
            axes = [a for a in axes if a is not axis]
        stretch = stretch or 1.0
    total = cta = 0.0
    busy: dict[str, float] = defaultdict(float)
    stalls: dict[str, float] = defaultdict(float)
    outcome: Outcome | None = None
    traces, made = mix.traces, (env, limits, {})
    corners = list(itertools.product((0, 1), repeat=len(axes)))
    for corner in corners:
        factor, some, n, at = 1.0, dict(limits), rounds, list(env)
        trips: dict[int, float] = {}
        for a, c in zip(axes, corner, strict=True):
            x = (a.whole - a.low) / (a.high - a.low)
            factor *= x if c else 1 - x
            value = a.high if c else a.low
            if a.loop is not None:
                some[a.loop] = int(value)
            elif a.extent is not None:
                at[a.extent.slot] = int(value)
                trips |= dict(a.drives)
                for k, _ in a.drives:
                    some.pop(k, None)
            else:
                n = int(value)
        simulated = partial(
            run, order=mix.order(n), rates=rates, costs=costs, resident=copies, weight=weight, log=log and all(corner),
            skip_ring="ring" in without,
        )  # fmt: skip
        if (at, some, trips) != made:  # the axis of rounds is the last: two runs of the same trace follow one another
            traces = [program.trace(mix.env(i, at), some, trips, t.like) for i, t in enumerate(mix.traces)]
            made = (at, some, trips)
        try:
            outcome = simulated(traces)
        except Deadlock:  # CTAs of a cluster that do the same at this shape may not at a smaller one
            traces = [program.trace(mix.env(i, at), some, trips) for i in range(len(mix.traces))]
            outcome = simulated(traces)
        cta += factor * outcome.first
        factor *= many
        total += factor * outcome.clocks
        for k, v in outcome.busy.items():
            busy[k] += factor * v
        for k, v in outcome.stalls.items():
            stalls[k] += factor * v
    assert outcome is not None
    # short statements pass busy pipes, and loops are cut where another server may limit: no server works longer than the SM runs
    total = max(total, *busy.values()) * stretch
    if "wave" in without and grid.per_sm:
        total *= grid.ctas * grid.average / (grid.sms * grid.per_sm) if grid.ctas > grid.sms else 1.0
    flop, passed, amounts = 0.0, {False: 0.0, True: 0.0}, [0.0] * len(mix.traces)
    for i, (trace, share) in enumerate(mix.parts()):
        for a in trace.agents:
            for code, _, part, mult in a.events:
                times = mult * a.weight * share
                flop += code.flop * times
                own = moved.crossing.get(code.site, 1.0) * (1 - moved.near.get(code.site, 0.0))
                passed[code.kind in (Kind.STORE, Kind.COPY_OUT)] += code.l2 * own * part * times
                amounts[i] += code.l2 * part * mult * a.weight
    scale = grid.ctas * grid.average / cluster
    return Reading(
        max(total, 0.0), max(cta, 0.0), dict(busy), weight * rounds * many, dict(stalls), moved.reads, moved.writes, moved.adds,
        passed[False] * scale, passed[True] * scale, flop * scale, outcome, traces[0], len(corners), mix.error(amounts),
    )  # fmt: skip


LEAST_SAMPLED, SAMPLED = 8, 128
"""CTAs (clusters) of a launch that are looked at where not all do the same: fewer of long programs."""


@dataclass(frozen=True)
class _Mix:
    """What the CTAs of a launch do. traces: of each kind one; first: a cluster of each kind; kinds: of clusters from all over the
    launch, in no order, the kind of each."""

    bound: B.BoundKernel
    traces: list[Trace]
    first: list[int]
    kinds: list[int]

    def env(self, kind: int, env: list[Any]) -> list[Any]:
        """The scalars of the first CTA of a kind."""
        return at_cta(self.bound, env, self.first[kind] * self.bound.launch.cluster)

    def order(self, rounds: int) -> list[int]:
        """The kinds of so many CTAs that an SM gets, in the launch's proportions; of one, what the first CTA does."""
        if rounds == 1:
            return self.kinds[:1]
        ranked = sorted(self.kinds)
        out = [ranked[(2 * i + 1) * len(ranked) // (2 * rounds)] for i in range(rounds)]
        random.Random(rounds).shuffle(out)
        return out

    @property
    def events(self) -> int:
        """Events of the average CTA (of each rank), one at least."""
        return max(1, int(sum(share * t.size for t, share in self.parts())))

    def error(self, amounts: Sequence[float]) -> float:
        """The standard error of the mean over all CTAs of something of which each kind has so much, as a fraction of it."""
        each = [amounts[k] for k in self.kinds]
        mean = statistics.fmean(each)
        return statistics.pstdev(each) / math.sqrt(len(each)) / mean if len(self.traces) > 1 and mean else 0.0

    def parts(self) -> list[tuple[Trace, float]]:
        """Traces with the share of the CTAs that do that."""
        return [(t, self.kinds.count(i) / len(self.kinds)) for i, t in enumerate(self.traces)]


def _mix(program: Program, env: list[Any], grid: Grid, limits: Mapping[int, int], whole: Trace) -> _Mix:
    """What the clusters of a launch do; where their number decides which turns of a loop they take, some are traced."""
    bound, cluster = program.bound, program.bound.launch.cluster
    clusters = grid.ctas // cluster
    mix = _Mix(bound, [whole], [0], [0])
    if not program.uneven:
        return mix
    number = min(clusters, max(LEAST_SAMPLED, min(SAMPLED, 2 * WHOLE // max(1, whole.size))))
    known = {_amount(whole): 0}
    # one from each part of the launch, at a place that is in step with no tiling
    source = random.Random(clusters)
    chosen = [int((i + source.random()) / number * clusters) for i in range(1, number)]
    source.shuffle(chosen)
    for place in chosen:
        trace = program.trace(at_cta(bound, env, place * cluster), limits)
        kind = known.setdefault(_amount(trace), len(mix.traces))
        if kind == len(mix.traces):
            mix.traces.append(trace)
            mix.first.append(place)
        mix.kinds.append(kind)
    return mix


def _amount(trace: Trace) -> tuple[Any, ...]:
    """What tells kinds of CTAs apart: how many events their agents have, and how often each loop that was cut is taken."""
    return tuple(len(a.events) for a in trace.agents), tuple(sorted(trace.cut.items()))


def _rounds(grid: Grid, events: int) -> tuple[float, int, int, _Axis | None]:
    """(what a simulated CTA stands for, how many run at once, how many in all, the axis of rounds if they are many)."""
    copies, rounds, weight = grid.busy, grid.per_sm, 1.0
    most = max(2, EVENTS // max(1, 3 * events))
    if copies > most:
        weight, copies = grid.busy / most, most
        rounds = -(-grid.per_sm * most // grid.busy)
    if rounds <= 3 * copies or rounds * max(1, events) <= WHOLE:  # a CTA without any is started all the same
        return weight, copies, int(rounds), None
    low = copies + rounds % copies if rounds % copies else 2 * copies if copies > 1 else 1
    high, room = low + copies, WHOLE // max(1, events)
    if room > 6 * copies:  # the first CTAs run in step, later ones do not
        low += 2 * copies
        high = low + max(1, min((room - 2 * low) // copies, int((rounds - low) // copies))) * copies
    return weight, copies, int(rounds), _Axis(low, high, rounds)


def _axes(program: Program, whole: Trace, env: list[Any]) -> list[_Axis]:
    """Loops that were cut: those that an extent drives are shortened by a smaller extent, so that whatever else it drives stays in
    step; others by leaving iterations out."""
    out = []
    by_extent: dict[B.ScalarVar, list[tuple[int, float]]] = defaultdict(list)
    for k, trips in whole.cut.items():
        low, high = program.spans(k)
        if trips <= high:
            continue
        driven = [v for v in program.drivers.get(k, ()) if env[v.slot] >= trips - 1]
        if driven:
            by_extent[max(driven, key=lambda v: env[v.slot])].append((k, trips))
        else:
            out.append(_Axis(low, high, trips, loop=k))
    for v, loops in by_extent.items():
        axis = _extent_axis(program, v, env[v.slot], loops)
        if axis is not None:
            out.append(axis)
    return out


def _extent_axis(program: Program, extent: B.ScalarVar, n: int, loops: list[tuple[int, float]]) -> _Axis | None:
    """Two smaller extents with the same remainder. Every loop takes `step` of the extent per trip."""
    steps = {k: _step(n, trips) for k, trips in loops}
    longest = max(loops, key=lambda x: x[1])[0]
    unit = max(s for s in steps.values() if s <= 8 * steps[longest])
    low, high = program.spans(longest)
    rest = (n - 1) % unit + 1
    few = max(1, -(-low * steps[longest] // unit))
    more = max(1, -(-(high - low) * steps[longest] // unit))
    if rest + (few + more) * unit >= n:
        return None
    return _Axis(rest + few * unit, rest + (few + more) * unit, n, extent=extent, drives=tuple(loops))


def _step(n: int, trips: float) -> int:
    """What one trip takes of an extent n: the roundest number s with ceil(n / s) trips."""
    least, most = -(-n // max(1, round(trips))), n if trips < 2 else max(1, -(-n // (round(trips) - 1)) - 1)
    power = 1
    while -(-least // (2 * power)) * 2 * power <= most:
        power *= 2
    return -(-least // power) * power


def _stretch(bound: B.BoundKernel, env: list[Any], grid: Grid) -> float:
    """How much longer the launch takes than its first CTA when not all persistent CTAs are there from the start: those that come later
    start when the first ones with the fewest tiles are done. 0 for a kernel that is not persistent, or whose CTAs have a tile each: those
    are run one after the other."""
    loop = next((s for s in bound.body if isinstance(s, B.For) and B.persistent(bound, s)), None)
    if loop is None:
        return 0.0
    step, stop = max(1, compile_sx(loop.step)(env)), compile_sx(loop.stop)(env)
    cluster = bound.launch.cluster
    there = grid.sms * grid.busy // cluster

    def tiles(i: int) -> int:
        return max(0, -(-(stop - i) // step))

    if tiles(0) < 2:
        return 0.0
    ends = [0] * there
    for i in range(grid.ctas // cluster):
        heapq.heapreplace(ends, ends[0] + tiles(i))
    return max(ends) / tiles(0)


def _rates(m: Machine, clock_hz: float, grid: Grid, moved: Traffic, without: frozenset[str]) -> Rates:
    late = 0.0 if "load latency" in without else 1.0
    active = max(1, grid.active)
    # few SMs get more each than all together
    port = min(m.port_alone, m.port * (m.sms / active) ** 0.5)
    # CTAs share what the device has, not SMs: the fullest SM gets what its CTAs get
    share = max(grid.per_sm / max(1.0, grid.ctas * grid.average), 1 / active) / clock_hz
    return Rates(
        port=INFINITE if "copies" in without else port, l2=INFINITE if "l2" in without else m.l2 * share,
        l2_write=INFINITE if "l2" in without else min(m.write_alone, m.l2_write * share),
        hbm=INFINITE if "hbm" in without else min(m.hbm_read * share, port),
        hbm_write=INFINITE if "hbm" in without else min(m.hbm_write * share, port),
        latency_l2=late * m.latency["load"], latency_hbm=late * m.latency["load_hbm"], copy_l2=late * m.latency["tma"],
        copy_hbm=late * m.latency["tma_hbm"], shares=moved.crossing, misses=moved.misses, late=moved.late, near=moved.near,
        l1=m.smem, latency_l1=late * m.latency["l1"],
        crowd_l2=late * m.latency["crowd_l2"], crowd_hbm=late * m.latency["crowd_hbm"],
    )  # fmt: skip


def _costs(m: Machine, cluster: int, without: frozenset[str]) -> Costs:
    latency = m.latency
    wait = 0.0 if "barriers" in without else 1.0
    return Costs(
        passed=wait * latency["passed"], hop=wait * latency["hop"], far=wait * latency["far"], named=wait * latency["named"],
        cluster=wait * latency["cluster"], local=wait, smem_load=0.0 if "load latency" in without else latency["smem_load"],
        wgmma=0.0 if "load latency" in without else latency["wgmma"], mma=0.0 if "load latency" in without else latency["mma"],
        turnaround=0.0 if "launch" in without else latency["turnaround"] + (latency["cluster"] if cluster > 1 else 0.0),
        gap=0.0 if "launch" in without else latency["cta_start"], free=m.drag[2], drag=0.0 if "interference" in without else 1.0,
        pipes="issue" not in without, smem="smem" not in without, tensor="tensor" not in without, queues="residency" not in without,
    )  # fmt: skip
