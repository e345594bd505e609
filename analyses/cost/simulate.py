"""The time reading: the agents of an SM run against the clock, on what the machine gives.

A discrete-event simulation of one cluster's SMs. Agents are role instances of the CTAs that share an SM; copies and products run on
beside them with clocks of their own. What is served in turn are the pipes of the schedulers, the tensor cores, shared memory, the SM's
port, and the SM's share of L2 and of device memory; the agent whose clock is behind goes first. Barriers block: an agent waits for a
completion until everybody who arrives at it has arrived.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush, heappushpop
from typing import Any

from analyses.cost.code import Code, Kind
from analyses.cost.program import Trace
from analyses.cost.sm import Costs, Log, Outcome, Rates
from analyses.cost.work import PIPES

QUANTUM = 128.0
"""Clocks after which another agent may use a pipe: long statements take turns, as warps do."""
SMALL = 24.0
"""Statements below take their slots between those of others and wait for nobody."""
PIECES = 4
"""Pieces of a product between which the tensor cores turn to the product of another warpgroup, if there is one: products that run at the
same time share them and end at about the same time."""
BACKLOG = 2000.0
"""Clocks of stores on their way at which a unit has to wait before it can store more."""
SETTLE, CROWDED = 1000.0, 0.95
"""Clocks by which the part of the time that memory has worked is taken for lower at first; the part from which queues grow no longer,
because SMs have only so much on its way."""
SLACK = 8.0
"""An agent goes on while its clock is no further ahead of the others."""


class Deadlock(Exception):
    """Agents wait for completions that nobody brings about: loops were cut unevenly, or the program hangs."""


class _Sm:
    """Servers of one SM: when each is free, and how long they worked (pipes and what statements ask of shared memory aside)."""

    __slots__ = ("arriving", "busy", "credit", "hbm", "l2", "out", "pipes", "smem", "tensor")

    def __init__(self) -> None:
        self.pipes = [0.0] * len(PIPES)
        self.tensor = self.smem = self.l2 = self.out = self.hbm = 0.0
        self.credit = 0.0
        self.arriving = 0.0  # when the last bulk copy that was issued will have arrived
        self.busy: dict[str, float] = dict.fromkeys(("tensor", "smem", "l2", "out", "hbm", *PIPES), 0.0)


class _Engine:
    """The products of a warpgroup, in order. queue: (clocks, when issued, event); finished: (end, event)
    of those that are done; waiting: how many must be finished for the agent that waits (0: it does not)."""

    __slots__ = ("at", "finished", "idle", "left", "queue", "sm", "t", "waiting")

    def __init__(self, sm: _Sm) -> None:
        self.sm, self.t, self.at, self.left, self.idle = sm, 0.0, 0, 0, True
        self.queue: list[tuple[float, float, int]] = []
        self.finished: list[tuple[float, int]] = []
        self.waiting = 0


class _Copy:
    """A CTA (of each rank): its completions by gate, and how many of its agents still run."""

    __slots__ = ("by", "done", "end", "latest", "left", "needs", "waiting")

    def __init__(self, needs: list[int], agents: int) -> None:
        n = len(needs)
        self.needs, self.left, self.end = list(needs), agents, 0.0
        self.done, self.latest, self.by = [-1.0] * n, [0.0] * n, [-1] * n
        self.waiting: dict[int, list[int]] = {}


class _Agent:
    __slots__ = (
        "bulk", "bulk_last", "copy", "cp", "cp_last", "engine", "events", "last", "last_event", "name", "open", "patient", "ready",
        "sm", "t", "weight",
    )  # fmt: skip

    def __init__(
        self, events: list, sm: _Sm, weight: float, copy: _Copy, t: float, name: tuple[str, int], patient: bool
    ) -> None:
        self.events, self.sm, self.weight, self.copy, self.t, self.name = events, sm, weight, copy, t, name
        self.patient = patient
        self.engine = _Engine(sm)
        self.ready: dict[int, tuple[float, int]] = {}
        self.open: list[int] = []  # products up to the end of each committed group
        self.last = (0.0, -1)  # end of the newest tcgen05 product
        self.bulk: list[tuple[float, float]] = []
        self.bulk_last = (0.0, 0.0)
        self.cp: list[float] = []
        self.cp_last = 0.0
        self.last_event = -1


Effect = Callable[[int, _Agent, Any, tuple[int, ...], float, float, int], float]
"""(number of the agent, agent, what `_Simulation._plan` made of the code, gates, part, clock, event) -> when the agent goes on."""
Plan = tuple[
    int, tuple[int, ...], int, float, tuple[tuple[int, float], ...], float, float, float, Effect | None, Any
]  # fmt: skip
"""A code in a simulation, worked out once: how it blocks, fragments that it may have to wait for, pieces, own clocks of a piece, clocks of
pipes, drag and shared memory of a piece, delay, effect, what the effect needs."""
FREE, GATE, PRODUCTS, MEETING, RELEASE = range(5)
_BLOCKS = {Kind.WAIT: GATE, Kind.WGMMA_WAIT: PRODUCTS, Kind.SYNC: MEETING}
_UNSERVED = frozenset((Kind.WGMMA, Kind.COPY_IN, Kind.COPY_OUT, Kind.TC_MMA))
"""Kinds whose shared memory traffic is not their issuer's."""


def run(
    traces: Sequence[Trace], order: Sequence[int], rates: Rates, costs: Costs, *, resident: int, weight: float = 1.0, log: bool = False,
    skip_ring: bool = False,
) -> Outcome:  # fmt: skip
    """Run CTAs (of each rank of the cluster) on an SM that holds `resident` at once: in order the traces of these numbers; each stands for
    `weight`. skip_ring: roles that copy in do not wait for anything. Raises Deadlock.
    """
    return _Simulation(traces, rates, costs, weight, log, skip_ring).run(resident, order)


class _Kind:
    """CTAs that do the same: needs of their gates, agents, how often each does what, and which of them wait."""

    __slots__ = ("agents", "counts", "needs", "patient", "rounds")

    def __init__(self, trace: Trace, skip_ring: bool) -> None:
        self.needs, self.agents, self.rounds = trace.needs, trace.simulated, 0
        self.counts = [Counter([e[0] for e in a.events]) for a in self.agents]
        self.patient = [not (skip_ring and any(code.kind == Kind.COPY_IN for code in n)) for n in self.counts]


class _Simulation:
    def __init__(
        self, traces: Sequence[Trace], rates: Rates, costs: Costs, weight: float, log: bool, skip_ring: bool
    ) -> None:
        self.rates, self.costs, self.weight = rates, costs, weight
        self.kinds = [_Kind(trace, skip_ring) for trace in traces]
        counted = [(a, n) for kind in self.kinds for a, n in zip(kind.agents, kind.counts, strict=True)]
        # only what arrives later than its op ends is waited for
        later = {
            f
            for _, n in counted
            for code in n
            if code.kind in (Kind.LOAD, Kind.SHARED, Kind.MMA)
            for f in code.results
        }
        self.plans: dict[float, dict[Code, Plan]] = {}
        for a, n in counted:
            plans = self.plans.setdefault(a.weight, {})
            for code in n:
                if code not in plans:
                    plans[code] = self._plan(code, a.weight * weight, later)
        self.sms = [_Sm() for _ in range(1 + max(a.rank for a, _ in counted))]
        self.agents: list[_Agent] = []
        self.resume: list[Callable[[], float]] = []
        self.copies: list[_Copy] = []
        self.heap: list[tuple[float, int]] = []
        self.log = Log() if log else None
        self.stalls: dict[str, float] = dict.fromkeys(("load", "barrier", "product", "store"), 0.0)
        self.clocks = self.first = 0.0
        self.last = -1
        self.to_start: Iterator[int] = iter(())
        self.started = 0.0

    def run(self, resident: int, order: Sequence[int]) -> Outcome:
        for i, kind in enumerate(order[:resident]):
            self._start(kind, i * self.costs.gap * self.weight)
        self.to_start = iter(order[resident:])
        heap, resume, multiply = self.heap, self.resume, self._multiply
        i = heappop(heap)[1] if heap else None
        while i is not None:
            again = resume[i]() if i >= 0 else multiply(~i)
            if again >= 0.0:
                i = heappushpop(heap, (again, i))[1]
            else:
                i = heappop(heap)[1] if heap else None
        if any(c.left for c in self.copies):
            raise Deadlock
        self.clocks = max(self.clocks, *(max(sm.out, sm.hbm) for sm in self.sms))  # a launch ends when its stores have
        self._issued()
        return Outcome(
            self.clocks, self.first, self.sms[0].busy, self.stalls, self.log, self.last, tuple(a.name for a in self.agents)
        )  # fmt: skip

    def _start(self, number: int, t: float) -> None:
        self.started = t
        kind = self.kinds[number]
        kind.rounds += 1
        copy = _Copy(kind.needs, len(kind.agents))
        self.copies.append(copy)
        for a, patient in zip(kind.agents, kind.patient, strict=True):
            made = _Agent(a.events, self.sms[a.rank], a.weight, copy, t, (a.role.name, a.instance), patient)
            i = len(self.agents)
            self.agents.append(made)
            self.resume.append(self._agent(i, made).__next__)
            heappush(self.heap, (t, i))

    def _issued(self) -> None:
        """Add what statements asked of the first SM's pipes and shared memory."""
        busy = self.sms[0].busy
        for kind in self.kinds:
            for a, n in zip(kind.agents, kind.counts, strict=True):
                if a.rank == 0:
                    plans = self.plans[a.weight]
                    for code, times in n.items():
                        _, _, pieces, _, pipes, _, smem, *_ = plans[code]
                        times *= kind.rounds * pieces
                        for p, clocks in pipes:
                            busy[PIPES[p]] += clocks * times
                        busy["smem"] += smem * times

    # ---- completions -------------------------------------------------------------------------------------------------

    def _arrive(self, copy: _Copy, gate: int, t: float, event: int) -> None:
        if t >= copy.latest[gate]:
            copy.latest[gate] = t
            copy.by[gate] = event
        needs = copy.needs
        needs[gate] -= 1
        if needs[gate] == 0:
            when = copy.done[gate] = copy.latest[gate]
            if gate in copy.waiting:
                for i in copy.waiting.pop(gate):
                    heappush(self.heap, (max(self.agents[i].t, when), i))

    # ---- an agent ----------------------------------------------------------------------------------------------------

    def _plan(self, code: Code, weight: float, later: set[int]) -> Plan:
        """What executing a code means here, for an agent that stands for `weight`."""
        kind, costs = code.kind, self.costs
        pieces = 1
        if code.pipes and kind == Kind.EXEC and costs.queues:
            pieces = int(max(c for _, c in code.pipes) * weight // QUANTUM) + 1
        share = weight / pieces
        pipes = tuple((p, c * share) for p, c in code.pipes) if costs.pipes else ()
        own = code.own / pieces if costs.pipes else 0.0
        drag = code.drag * share * costs.drag if costs.pipes and kind != Kind.WGMMA else 0.0
        smem = code.smem * share if costs.smem and kind not in _UNSERVED else 0.0
        delay = 0.0
        blocks = _BLOCKS.get(kind, FREE)
        if kind == Kind.ARRIVE and code.delay:
            blocks, delay = RELEASE, code.delay * costs.local
        if kind == Kind.LOCAL:
            delay = code.delay * (costs.local if code.name in ("sync", "fence_async") else 1.0)
        effect, needed = self._effect(code, weight)
        reads = tuple(f for f in code.reads if f in later)
        return blocks, reads, pieces, own, pipes, drag, smem, delay, effect, needed

    def _agent(self, i: int, a: _Agent) -> Iterator[float]:
        """Run an agent; yields when others are behind (its clock) and when it blocks or has ended (-1: whoever it waits for queues it)."""
        heap, sm, costs, copy, log = self.heap, a.sm, self.costs, a.copy, self.log
        plans, frees, ready, needs, stalls = self.plans[a.weight], sm.pipes, a.ready, copy.needs, self.stalls
        at = a.t
        for code, gates, part, mult in a.events:
            if heap and at > heap[0][0] + SLACK:
                yield at
            blocks, reads, left, own, pipes, drag, smem, delay, effect, needed = plans[code]
            t, cause = at, -1
            if ready and reads:
                for f in reads:
                    found = ready.pop(f, None)
                    if found is not None and found[0] > t:
                        t, cause = found
                if t > at:
                    stalls["load"] += t - at
                    if heap and t > heap[0][0] + SLACK:
                        if log is not None:
                            self._record(i, a, code, at, t, mult, cause)
                            cause = -1
                        at = t
                        yield t
            begin = at
            if blocks == GATE:
                if gates and needs[gates[0]] > 0 and a.patient:
                    a.t = at
                    copy.waiting.setdefault(gates[0], []).append(i)
                    yield -1.0
            elif blocks == RELEASE:  # to the cluster: once no copy of the SM is on its way any more
                t += delay
                if heap and t > heap[0][0] + SLACK:
                    yield t
                if sm.arriving > t:
                    stalls["barrier"] += sm.arriving - t
                    t = sm.arriving
            elif blocks == PRODUCTS and len(a.open) > code.k and costs.tensor:
                engine, count = a.engine, a.open[-code.k - 1]
                if len(engine.finished) < count:
                    engine.waiting, a.t = count, at
                    yield -1.0
                del a.open[: len(a.open) - code.k]
                end, event = engine.finished[count - 1] if count else (0.0, -1)
                if end + costs.wgmma > t:
                    stalls["product"] += end + costs.wgmma - t
                    t, cause = end + costs.wgmma, event
            while True:  # issue the pieces of it
                end = t + own
                for p, clocks in pipes:
                    free = frees[p]
                    free = (free if free > t else t) + clocks
                    frees[p] = free
                    if clocks > SMALL and free > end:
                        end = free
                if drag and sm.tensor > t:
                    if drag <= sm.credit:
                        sm.credit -= drag
                    else:
                        sm.tensor += drag - sm.credit
                        sm.credit = 0.0
                if smem:
                    free = (sm.smem if sm.smem > t else t) + smem
                    sm.smem = free
                    if free > end:
                        end = free
                t = end
                if left == 1:
                    break
                left -= 1
                if log is not None:
                    self._record(i, a, code, begin, t, mult, cause)
                if heap and t > heap[0][0] + SLACK:
                    yield t
                begin, cause = t, -1
            if effect is not None:
                t = effect(i, a, needed, gates, part, t, len(log.agent) if log is not None else -1)
            elif blocks == FREE:
                t += delay
            elif blocks == GATE:
                if gates and a.patient:
                    t += costs.passed
                    when = copy.done[gates[0]]
                    if when > t:
                        stalls["barrier"] += when - t
                        t, cause = when, copy.by[gates[0]]
            elif blocks == MEETING:
                gate = gates[0]
                hop = costs.cluster if code.far else costs.named
                self._arrive(copy, gate, t + hop, len(log.agent) if log is not None else -1)
                if log is not None:
                    self._record(i, a, code, begin, t, mult, cause)
                    begin, cause = t, -1
                if code.waits:
                    if needs[gate] > 0:
                        a.t = t
                        copy.waiting.setdefault(gate, []).append(i)
                        yield -1.0
                    when = copy.done[gate]
                    if when > t:
                        stalls["barrier"] += when - t
                        t, cause = when, copy.by[gate]
            if log is not None:
                self._record(i, a, code, begin, t, mult, cause)
            at = t
        self._ended(a, at)
        yield -1.0

    def _multiply(self, i: int) -> float:
        """One piece of the product that a warpgroup's engine is at; when the next begins, or -1."""
        e = self.agents[i].engine
        sm = e.sm
        clocks, issued, event = e.queue[e.at]
        if e.left == 0:
            e.left = PIECES
        # operands out of shared memory are in the rate of the product: beside copies into it no loss was seen
        end = sm.tensor = max(e.t, issued, sm.tensor) + clocks / PIECES
        sm.busy["tensor"] += clocks / PIECES
        e.t = end
        e.left -= 1
        if e.left == 0:
            e.finished.append((end, event))
            e.at += 1
            if e.waiting and len(e.finished) >= e.waiting:
                heappush(self.heap, (max(self.agents[i].t, end), i))
                e.waiting = 0
        if e.at < len(e.queue):
            issued = e.queue[e.at][1]
            return end if end > issued else issued
        e.idle = True
        return -1.0

    def _ended(self, a: _Agent, t: float) -> None:
        copy = a.copy
        if t > self.clocks:
            self.clocks, self.last = t, a.last_event
        copy.left -= 1
        copy.end = max(copy.end, t)
        if copy.left == 0:
            self.first = self.first or copy.end
            following = next(self.to_start, None)
            if following is not None:
                self._start(following, max(copy.end + self.costs.turnaround, self.started + self.costs.gap * self.weight))

    def _record(self, i: int, a: _Agent, code: Code, begin: float, end: float, mult: float, cause: int) -> None:
        log = self.log
        assert log is not None
        log.agent.append(i)
        log.code.append(code)
        log.begin.append(begin)
        log.end.append(end)
        log.mult.append(mult)
        log.cause.append(cause)
        log.before.append(a.last_event)
        a.last_event = len(log.agent) - 1

    # ---- memory ------------------------------------------------------------------------------------------------------

    def _way(self, code: Code, weight: float, out: bool = False) -> tuple[float, float, float]:
        """Clocks that moving all of a code's region takes of the SM's share of L2, of device memory, and of shared memory."""
        r = self.rates
        share, miss = r.shares.get(code.site, 1.0), r.misses.get(code.site, 0.0)
        if out:
            l2 = code.l2 * weight * share / r.l2_write
        else:
            # a line that several SMs ask for at once is read once and sent to each; CTAs drift, so fewer ask at once than share it
            l2 = weight * (code.port / r.port + code.l2 * math.sqrt(share) * max(0.0, 1 / r.l2 - 1 / r.port))
        hbm = code.l2 * weight * miss / (r.hbm_write if out else r.hbm) if miss else -1.0
        return l2, hbm, code.smem * weight if self.costs.smem else 0.0

    def _move(self, sm: _Sm, way: tuple[float, float, float], part: float, t: float, out: bool = False) -> float:
        """Bytes between the SM and memory, from t on; when the last has passed."""
        busy = sm.busy
        l2, hbm, smem = way
        l2 *= part
        if out:
            end = sm.out = (sm.out if sm.out > t else t) + l2
            busy["out"] += l2
        else:
            end = sm.l2 = (sm.l2 if sm.l2 > t else t) + l2
            busy["l2"] += l2
        if hbm >= 0.0:
            hbm *= part
            free = sm.hbm = (sm.hbm if sm.hbm > t else t) + hbm
            busy["hbm"] += hbm
            if free > end:
                end = free
        if smem:
            smem *= part
            sm.smem = (sm.smem if sm.smem > t else t) + smem
            busy["smem"] += smem
        return end

    def _read(self, sm: _Sm, way: tuple[float, float, float], part: float, t: float) -> float:
        """As `_move`, and what is read waits among what other SMs ask for: they ask at random times, which makes queues even where there is
        enough for all, and longer ones the less is left over: x / (1 - x) as in any queue, x the part of the time that the server works."""
        end = self._move(sm, way, part, t)
        passed = end + SETTLE
        used = min(CROWDED, sm.busy["l2"] / passed)
        wait = self.rates.crowd_l2 * used / (1 - used)
        if way[1] > 0.0:
            used = min(CROWDED, sm.busy["hbm"] / passed)
            wait += self.rates.crowd_hbm * used / (1 - used)
        return end + wait

    # ---- effects -----------------------------------------------------------------------------------------------------

    def _effect(self, code: Code, weight: float) -> tuple[Effect | None, Any]:
        """What an issued statement starts, and what that needs."""
        kind, costs, r = code.kind, self.costs, self.rates
        if kind == Kind.SHARED:
            return self._shared, code.results
        if kind == Kind.LOAD:
            near = r.near.get(code.site, 0.0)
            first = near * code.port * weight / r.l1 if costs.smem else 0.0  # L1 and shared memory are one
            return self._load, (self._way(code, weight), near, first, r.load_latency(code.site), code.results)
        if kind == Kind.STORE:
            return self._store, self._way(code, weight, out=True)
        if kind == Kind.COPY_IN:
            return self._copy_in, (self._way(code, weight), r.copy_latency(code.site))
        if kind == Kind.COPY_OUT:
            return self._copy_out, self._way(code, weight, out=True)
        if kind == Kind.CP_ASYNC:
            return self._cp_async, (self._way(code, weight), r.load_latency(code.site))
        if kind == Kind.ARRIVE:
            return self._signal, costs.far if code.far else costs.hop
        if kind == Kind.SEND:
            return self._signal, costs.far
        if kind == Kind.MMA:
            return (self._mma, (code.tensor, code.tensor * weight, code.results)) if costs.tensor else (None, None)
        found: Effect | None = {
            Kind.WGMMA: self._wgmma, Kind.WGMMA_COMMIT: self._wgmma_commit, Kind.BULK_COMMIT: self._bulk_commit,
            Kind.BULK_WAIT: self._bulk_wait, Kind.CP_COMMIT: self._cp_commit, Kind.CP_WAIT: self._cp_wait,
            Kind.CP_ARRIVE: self._cp_arrive, Kind.TC_MMA: self._tc_mma, Kind.TC_COMMIT: self._tc_commit,
        }.get(kind)  # fmt: skip
        return found, code

    def _shared(self, i, a, results, gates, part, t, event) -> float:
        for f in results:
            a.ready[f] = (t + self.costs.smem_load, event)
        return t

    def _load(self, i, a, needed, gates, part, t, event) -> float:
        way, near, first, latency, results = needed
        end = t
        if part:
            sm = a.sm
            if near < 1:
                end = self._read(sm, way, part * (1 - near), t)
            if first:
                sm.smem = (sm.smem if sm.smem > t else t) + first * part
                end = max(end, sm.smem)
            end += latency
        for f in results:
            a.ready[f] = (end, event)
        return t if results else end

    def _store(self, i, a, way, gates, part, t, event) -> float:
        if part:
            end = self._move(a.sm, way, part, t, True) - BACKLOG
            if end > t:
                self.stalls["store"] += end - t
                return end
        return t

    def _copy_in(self, i, a, needed, gates, part, t, event) -> float:
        way, latency = needed
        end = self._read(a.sm, way, part, t) + latency
        if end > a.sm.arriving:
            a.sm.arriving = end
        for g in gates:
            self._arrive(a.copy, g, end, event)
        return t

    def _copy_out(self, i, a, way, gates, part, t, event) -> float:
        end, latency = self._move(a.sm, way, part, t, True), self.rates.copy_l2
        a.bulk_last = (max(a.bulk_last[0], end + 0.5 * latency), max(a.bulk_last[1], end + latency))
        return t

    def _wgmma(self, i, a, code, gates, part, t, event) -> float:
        engine, sm = a.engine, a.sm
        free = self.costs.free * code.tensor
        sm.credit = min(sm.credit, free) + free
        engine.queue.append((code.tensor, t, event))
        if engine.idle and self.costs.tensor:
            engine.idle, engine.t, engine.left = False, max(engine.t, t), 0
            heappush(self.heap, (engine.t, ~i))
        return t

    def _wgmma_commit(self, i, a, code, gates, part, t, event) -> float:
        a.open.append(len(a.engine.queue))
        return t

    def _signal(self, i, a, hop, gates, part, t, event) -> float:
        for g in gates:
            self._arrive(a.copy, g, t + hop, event)
        return t

    def _bulk_commit(self, i, a, code, gates, part, t, event) -> float:
        a.bulk.append(a.bulk_last)
        return t

    def _bulk_wait(self, i, a, code, gates, part, t, event) -> float:
        if len(a.bulk) > code.k:
            read, written = a.bulk[-code.k - 1]
            del a.bulk[: len(a.bulk) - code.k]
            end = read if code.sources else written
            if end > t:
                self.stalls["store"] += end - t
                return end
        return t

    def _cp_async(self, i, a, needed, gates, part, t, event) -> float:
        way, latency = needed
        a.cp_last = max(a.cp_last, self._read(a.sm, way, part, t) + latency)
        return t

    def _cp_commit(self, i, a, code, gates, part, t, event) -> float:
        a.cp.append(a.cp_last)
        return t

    def _cp_wait(self, i, a, code, gates, part, t, event) -> float:
        if len(a.cp) > code.k:
            end = a.cp[-code.k - 1]
            del a.cp[: len(a.cp) - code.k]
            if end > t:
                self.stalls["load"] += end - t
                return end
        return t

    def _cp_arrive(self, i, a, code, gates, part, t, event) -> float:
        for g in gates:
            self._arrive(a.copy, g, max(t, a.cp_last) + self.costs.hop, event)
        return t

    def _mma(self, i, a, needed, gates, part, t, event) -> float:
        alone, clocks, results = needed
        sm = a.sm
        start = max(t, sm.tensor) if clocks > SMALL else t
        sm.tensor = max(sm.tensor, t) + clocks
        sm.busy["tensor"] += clocks
        t = max(start + clocks, t + alone * 4)
        for f in results:
            a.ready[f] = (
                max(t, start + self.costs.mma),
                event,
            )  # each of its instructions goes on where one of the last did
        return t

    def _tc_mma(self, i, a, code, gates, part, t, event) -> float:
        clocks = code.tensor if self.costs.tensor else 0.0
        a.last = (max(t, a.sm.tensor) + clocks, event)
        a.sm.tensor = a.last[0]
        a.sm.busy["tensor"] += clocks
        return t

    def _tc_commit(self, i, a, code, gates, part, t, event) -> float:
        for g in gates:
            self._arrive(a.copy, g, max(t, a.last[0]) + self.costs.hop, event)
        return t
