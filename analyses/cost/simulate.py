"""The time reading: the agents of an SM run against the clock, on what the machine gives.

A discrete-event simulation of one cluster's SMs. Agents are role instances of the CTAs that share an SM; copies and products run on
beside them with clocks of their own. What is served in turn are the pipes of the schedulers, the tensor cores, shared memory, the SM's
port, and the SM's share of L2 and of device memory; the agent whose clock is behind goes first. Barriers block: an agent waits for a
completion until everybody who arrives at it has arrived.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from analyses.cost.code import Code, Kind
from analyses.cost.program import Trace
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
SLACK = 8.0
"""An agent goes on while its clock is no further ahead of the others."""


class Deadlock(Exception):
    """Agents wait for completions that nobody brings about: loops were cut unevenly, or the program hangs."""


@dataclass(frozen=True)
class Rates:
    """What the simulated SM gets of what all SMs share. Bytes per clock: port, l2 (what no other SM asks for at that time), l2_write,
    hbm, hbm_write; latencies in clocks; per site: the parts of its bytes that count against L2 and against device memory."""

    port: float
    l2: float
    l2_write: float
    hbm: float
    hbm_write: float
    l1: float
    latency_l2: float
    latency_hbm: float
    copy_l2: float
    copy_hbm: float
    shares: dict[int, float]
    misses: dict[int, float]
    late: dict[int, float]
    near: dict[int, float]
    latency_l1: float

    def load_latency(self, site: int) -> float:
        """Clocks until a load of a site arrives, queues aside."""
        near = self.near.get(site, 0.0)
        far = self.latency_l2 + self.late.get(site, 0.0) * (self.latency_hbm - self.latency_l2)
        return near * self.latency_l1 + (1 - near) * far

    def copy_latency(self, site: int) -> float:
        """Clocks until a bulk copy of a site has arrived, queues aside."""
        return self.copy_l2 + self.late.get(site, 0.0) * (self.copy_hbm - self.copy_l2)


@dataclass(frozen=True)
class Costs:
    """Fixed times in clocks and the law of interference, of a machine, with terms taken out."""

    passed: float
    hop: float
    far: float
    named: float
    cluster: float
    smem_load: float
    wgmma: float
    mma: float
    local: float
    turnaround: float
    gap: float
    free: float
    drag: float
    pipes: bool = True
    smem: bool = True
    tensor: bool = True
    queues: bool = True


@dataclass
class Log:
    """Every event of a run, for the critical path: agent, code, when the agent came to it and left it, how often it stands for itself,
    the event that it waited for (-1: its own agent's one before), the event before of that agent."""

    agent: list[int] = field(default_factory=list)
    code: list[Code] = field(default_factory=list)
    begin: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    mult: list[float] = field(default_factory=list)
    cause: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)


@dataclass
class Outcome:
    """clocks: from the start of the first CTA to the end of the last; first: to the end of the first; busy: clocks that each server of the first SM worked; agents: the
    clock of every agent at its end."""

    clocks: float
    first: float
    busy: dict[str, float]
    stalls: dict[str, float]
    log: Log | None = None
    last: int = -1
    names: tuple[tuple[str, int], ...] = ()


class _Sm:
    """Servers of one SM: when each is free."""

    __slots__ = ("busy", "credit", "hbm", "l2", "out", "pipes", "smem", "tensor")

    def __init__(self) -> None:
        self.pipes = [0.0] * len(PIPES)
        self.tensor = self.smem = self.l2 = self.out = self.hbm = 0.0
        self.credit = 0.0
        self.busy = dict.fromkeys(("tensor", "smem", "l2", "hbm", *PIPES), 0.0)


class _Engine:
    """The products of a warpgroup, in order. queue: (clocks, when issued, event); finished: (end, event)
    of those that are done; waiting: (how many must be finished, the agent) if it waits."""

    __slots__ = ("at", "finished", "idle", "left", "queue", "sm", "t", "waiting")

    def __init__(self, sm: int) -> None:
        self.sm, self.t, self.at, self.left, self.idle = sm, 0.0, 0, 0, True
        self.queue: list[tuple[float, float, int]] = []
        self.finished: list[tuple[float, int]] = []
        self.waiting: tuple[int, int] | None = None


class _Agent:
    __slots__ = (
        "bulk", "bulk_last", "copy", "cp", "cp_last", "events", "group", "last", "last_event", "name", "open", "pc", "piece", "ready",
        "sm", "t", "unit", "weight",
    )  # fmt: skip

    def __init__(self, events: list, sm: int, weight: float, copy: int, t: float, name: tuple[str, int]) -> None:
        self.events, self.sm, self.weight, self.copy, self.t, self.name = events, sm, weight, copy, t, name
        self.pc = self.piece = 0
        self.ready: dict[int, tuple[float, int]] = {}
        self.open: list[int] = []  # products up to the end of each committed group
        self.last = (0.0, -1)  # end of the newest tcgen05 product
        self.bulk: list[tuple[float, float]] = []
        self.bulk_last = (0.0, 0.0)
        self.cp: list[float] = []
        self.cp_last = 0.0
        self.last_event = -1


def run(
    trace: Trace, rates: Rates, costs: Costs, *, resident: int, rounds: int, weight: float = 1.0, log: bool = False,
    skip_ring: bool = False,
) -> Outcome:  # fmt: skip
    """Run `rounds` CTAs (of each rank of the cluster) on an SM that holds `resident` at once; each stands for `weight`. skip_ring: roles
    that copy in do not wait for anything. Raises Deadlock.
    """
    return _Simulation(trace, rates, costs, weight, log, skip_ring).run(resident, rounds)


class _Simulation:
    def __init__(self, trace: Trace, rates: Rates, costs: Costs, weight: float, log: bool, skip_ring: bool) -> None:
        self.trace, self.rates, self.costs, self.weight = trace, rates, costs, weight
        self.patient = [
            not (skip_ring and any(code.kind == Kind.COPY_IN for code, _, _, _ in a.events)) for a in trace.agents
        ]
        ranks = 1 + max(a.rank for a in trace.agents)
        self.sms = [_Sm() for _ in range(ranks)]
        self.agents: list[_Agent] = []
        self.engines: list[_Engine] = []
        self.left: list[int] = []  # agents of each copy that still run
        self.needs: list[list[int]] = []
        self.done: list[list[float]] = []
        self.latest: list[list[float]] = []
        self.by: list[list[int]] = []
        self.waiting: dict[tuple[int, int], list[int]] = {}
        self.heap: list[tuple[float, int]] = []
        self.log = Log() if log else None
        self.stalls: dict[str, float] = {}
        self.clocks = self.first = 0.0
        self.last = self.cause = -1
        self.to_start = 0
        self.started = 0.0

    def run(self, resident: int, rounds: int) -> Outcome:
        for i in range(min(resident, rounds)):
            self._start(i * self.costs.gap * self.weight)
        self.to_start = rounds - min(resident, rounds)
        heap, agents = self.heap, self.agents
        while heap:
            i = heapq.heappop(heap)[1]
            if i >= 0:
                self._step(i, agents[i])
            else:
                self._multiply(~i)
        if any(self.left):
            raise Deadlock
        self.clocks = max(self.clocks, *(max(sm.out, sm.hbm) for sm in self.sms))  # a launch ends when its stores have
        return Outcome(
            self.clocks,
            self.first,
            self.sms[0].busy,
            self.stalls,
            self.log,
            self.last,
            tuple(a.name for a in self.agents),
        )

    def _start(self, t: float) -> None:
        self.started = t
        copy = len(self.left)
        n = len(self.trace.needs)
        self.needs.append(list(self.trace.needs))
        self.done.append([-1.0] * n)
        self.latest.append([0.0] * n)
        self.by.append([-1] * n)
        self.left.append(len(self.trace.agents))
        for a in self.trace.agents:
            made = _Agent(a.events, a.rank, a.weight * self.weight, copy, t, (a.role.name, a.instance))
            self.agents.append(made)
            self.engines.append(_Engine(a.rank))
            heapq.heappush(self.heap, (t, len(self.agents) - 1))

    # ---- completions -------------------------------------------------------------------------------------------------

    def _arrive(self, copy: int, gate: int, t: float, event: int) -> None:
        if t >= self.latest[copy][gate]:
            self.latest[copy][gate] = t
            self.by[copy][gate] = event
        needs = self.needs[copy]
        needs[gate] -= 1
        if needs[gate] == 0:
            when = self.latest[copy][gate]
            self.done[copy][gate] = when
            for i in self.waiting.pop((copy, gate), ()):
                heapq.heappush(self.heap, (max(self.agents[i].t, when), i))

    # ---- an agent ----------------------------------------------------------------------------------------------------

    def _step(self, i: int, a: _Agent) -> None:
        """Run an agent until it blocks, ends, or is ahead of the others."""
        events, heap, sm, costs = a.events, self.heap, self.sms[a.sm], self.costs
        while a.pc < len(events):
            if heap and a.t > heap[0][0] + SLACK:
                heapq.heappush(heap, (a.t, i))
                return
            code, gates, part, mult = events[a.pc]
            kind, t, cause = code.kind, a.t, -1
            if a.piece == 0:
                for f in code.reads:
                    found = a.ready.pop(f, None)
                    if found is not None and found[0] > t:
                        t, cause = found
                if t > a.t:
                    self._stalled("load", t - a.t)
                    if heap and t > heap[0][0] + SLACK:
                        if self.log is not None:
                            self._record(i, a, code, a.t, t, mult, cause, waited=True)
                        a.t = t
                        heapq.heappush(heap, (t, i))
                        return
            begin = a.t
            if kind == Kind.WAIT:
                if not self.patient[i % len(self.patient)]:
                    gates = ()
                if gates and self.needs[a.copy][gates[0]] > 0:
                    self.waiting.setdefault((a.copy, gates[0]), []).append(i)
                    return
                when = self.done[a.copy][gates[0]] if gates else 0.0
                t = self._execute(sm, a, code, t) + (costs.passed if gates else 0.0)
                if when > t:
                    cause = self.by[a.copy][gates[0]]
                    self._stalled("barrier", when - t)
                    t = when
            elif kind == Kind.WGMMA_WAIT:
                if len(a.open) > code.k and self.costs.tensor:
                    engine, count = self.engines[i], a.open[-code.k - 1]
                    if len(engine.finished) < count:
                        engine.waiting = (count, i)
                        return
                    del a.open[: len(a.open) - code.k]
                    end, event = engine.finished[count - 1] if count else (0.0, -1)
                    if end + costs.wgmma > t:
                        self._stalled("product", end + costs.wgmma - t)
                        t, cause = end + costs.wgmma, event
                t = self._execute(sm, a, code, t)
            elif kind == Kind.SYNC:
                if a.piece == 0:
                    t = self._execute(sm, a, code, t)
                    a.piece, a.t = 1, t
                    hop = costs.cluster if code.far else costs.named
                    self._arrive(a.copy, gates[0], t + hop, len(self.log.agent) if self.log is not None else -1)
                    if self.log is not None:
                        self._record(i, a, code, begin, t, mult, cause)
                        begin, cause = t, -1
                if code.waits:
                    gate = gates[0]
                    if self.needs[a.copy][gate] > 0:
                        self.waiting.setdefault((a.copy, gate), []).append(i)
                        return
                    when = self.done[a.copy][gate]
                    if when > t:
                        self._stalled("barrier", when - t)
                        cause, t = self.by[a.copy][gate], when
                a.piece = 0
            else:
                pieces = 1
                if code.pipes and kind == Kind.EXEC and costs.queues:
                    pieces = int(max(c for _, c in code.pipes) * a.weight // QUANTUM) + 1
                t = self._execute(sm, a, code, t, pieces)
                a.piece += 1
                if a.piece < pieces:
                    a.t = t
                    if self.log is not None:
                        self._record(i, a, code, begin, t, mult, cause)
                    continue
                a.piece = 0
                self.cause = cause
                t = self._effect(sm, i, a, code, gates, part, t)
                cause = self.cause
            if self.log is not None:
                self._record(i, a, code, begin, t, mult, cause)
            a.t = t
            a.pc += 1
        self._ended(i, a)

    def _multiply(self, i: int) -> None:
        """One piece of the product that a warpgroup's engine is at."""
        e = self.engines[i]
        sm = self.sms[e.sm]
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
            if e.waiting is not None and len(e.finished) >= e.waiting[0]:
                heapq.heappush(self.heap, (max(self.agents[i].t, end), e.waiting[1]))
                e.waiting = None
        if e.at < len(e.queue):
            heapq.heappush(self.heap, (max(end, e.queue[e.at][1]), ~i))
        else:
            e.idle = True

    def _ended(self, i: int, a: _Agent) -> None:
        if a.t > self.clocks:
            self.clocks, self.last = a.t, a.last_event
        self.left[a.copy] -= 1
        if self.left[a.copy] == 0:
            end = max(b.t for b in self.agents if b.copy == a.copy)
            self.first = self.first or end
            if self.to_start > 0:
                self.to_start -= 1
                self._start(max(end + self.costs.turnaround, self.started + self.costs.gap * self.weight))

    def _record(
        self, i: int, a: _Agent, code: Code, begin: float, end: float, mult: float, cause: int, waited: bool = False
    ) -> None:
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

    def _stalled(self, what: str, clocks: float) -> None:
        self.stalls[what] = self.stalls.get(what, 0.0) + clocks

    # ---- servers -----------------------------------------------------------------------------------------------------

    def _execute(self, sm: _Sm, a: _Agent, code: Code, t: float, pieces: int = 1) -> float:
        """Issue a statement (one of `pieces` of it) from t on; when its last instruction is out."""
        costs = self.costs
        end = t
        if costs.pipes:
            end += code.own / pieces
            frees, weight = sm.pipes, a.weight / pieces
            for p, clocks in code.pipes:
                c = clocks * weight
                free = frees[p]
                f = (free if free > t else t) + c
                frees[p] = f
                sm.busy[PIPES[p]] += c
                if c > SMALL and f > end:
                    end = f
            if sm.tensor > t and code.kind != Kind.WGMMA:
                drag = code.drag * weight * costs.drag
                if drag <= sm.credit:
                    sm.credit -= drag
                else:
                    sm.tensor += drag - sm.credit
                    sm.credit = 0.0
        if code.smem and costs.smem and code.kind not in (Kind.WGMMA, Kind.COPY_IN, Kind.COPY_OUT, Kind.TC_MMA):
            c = code.smem * a.weight / pieces
            f = (sm.smem if sm.smem > t else t) + c
            sm.smem = f
            sm.busy["smem"] += c
            if f > end:
                end = f
        return end

    def _move(self, sm: _Sm, code: Code, part: float, t: float, weight: float, out: bool = False) -> float:
        """Bytes between the SM and memory, from t on; when the last has passed."""
        r, busy = self.rates, sm.busy
        amount = part * weight
        share = r.shares.get(code.site, 1.0)
        if out:
            l2 = code.l2 * amount * share / r.l2_write
            end = sm.out = max(sm.out, t) + l2
        else:
            # a line that several SMs ask for at once is read once and sent to each; CTAs drift, so fewer ask at once than share it
            l2 = amount * (code.port / r.port + code.l2 * math.sqrt(share) * max(0.0, 1 / r.l2 - 1 / r.port))
            end = sm.l2 = max(sm.l2, t) + l2
        busy["l2"] += l2
        miss = r.misses.get(code.site, 0.0)
        if miss:
            hbm = code.l2 * amount * miss / (r.hbm_write if out else r.hbm)
            sm.hbm = max(sm.hbm, t) + hbm
            busy["hbm"] += hbm
            if sm.hbm > end:
                end = sm.hbm
        if code.smem and self.costs.smem:
            c = code.smem * amount
            sm.smem = max(sm.smem, t) + c
            busy["smem"] += c
        return end

    def _effect(self, sm: _Sm, i: int, a: _Agent, code: Code, gates: tuple[int, ...], part: float, t: float) -> float:
        """What an issued statement starts; when the agent goes on."""
        kind, costs, r = code.kind, self.costs, self.rates
        event = len(self.log.agent) if self.log is not None else -1
        if kind == Kind.EXEC:
            return t
        if kind == Kind.LOCAL:
            return t + code.delay * (costs.local if code.name in ("sync", "fence_async") else 1.0)
        if kind == Kind.SHARED:
            for f in code.results:
                a.ready[f] = (t + costs.smem_load, event)
            return t
        if kind == Kind.LOAD:
            near = r.near.get(code.site, 0.0)
            end = self._move(sm, code, part * (1 - near), t, a.weight) if part and near < 1 else t
            if near and part and costs.smem:  # L1 and shared memory are one
                sm.smem = max(sm.smem, t) + near * code.port * part * a.weight / r.l1
                end = max(end, sm.smem)
            end += r.load_latency(code.site) if part else 0.0
            for f in code.results:
                a.ready[f] = (end, event)
            return t if code.results else end
        if kind == Kind.STORE:
            if part:
                end = self._move(sm, code, part, t, a.weight, out=True)
                if end - BACKLOG > t:
                    self._stalled("store", end - BACKLOG - t)
                    t = end - BACKLOG
            return t
        if kind == Kind.COPY_IN:
            end = self._move(sm, code, part, t, a.weight)
            end += r.copy_latency(code.site)
            for g in gates:
                self._arrive(a.copy, g, end, event)
            return t
        if kind == Kind.COPY_OUT:
            end = self._move(sm, code, part, t, a.weight, out=True)
            a.bulk_last = (max(a.bulk_last[0], end + 0.5 * r.copy_l2), max(a.bulk_last[1], end + r.copy_l2))
            return t
        if kind == Kind.WGMMA:
            engine = self.engines[i]
            sm.credit = min(sm.credit, costs.free * code.tensor) + costs.free * code.tensor
            engine.queue.append((code.tensor, t, event))
            if engine.idle and costs.tensor:
                engine.idle, engine.t, engine.left = False, max(engine.t, t), 0
                heapq.heappush(self.heap, (engine.t, ~i))
            return t
        if kind == Kind.WGMMA_COMMIT:
            a.open.append(len(self.engines[i].queue))
            return t
        if kind == Kind.ARRIVE:
            for g in gates:
                self._arrive(a.copy, g, t + (costs.far if code.far else costs.hop), event)
            return t
        if kind == Kind.BULK_COMMIT:
            a.bulk.append(a.bulk_last)
            return t
        if kind == Kind.BULK_WAIT:
            if len(a.bulk) > code.k:
                read, written = a.bulk[-code.k - 1]
                del a.bulk[: len(a.bulk) - code.k]
                end = read if code.sources else written
                if end > t:
                    self._stalled("store", end - t)
                    t = end
            return t
        return self._rest(sm, a, code, gates, part, t, event)

    def _rest(self, sm: _Sm, a: _Agent, code: Code, gates: tuple[int, ...], part: float, t: float, event: int) -> float:
        """The forms of sm_80, sm_100 and distributed shared memory."""
        kind, costs, r = code.kind, self.costs, self.rates
        if kind == Kind.CP_ASYNC:
            end = self._move(sm, code, part, t, a.weight)
            a.cp_last = max(a.cp_last, end + r.load_latency(code.site))
        elif kind == Kind.CP_COMMIT:
            a.cp.append(a.cp_last)
        elif kind == Kind.CP_WAIT:
            if len(a.cp) > code.k:
                end = a.cp[-code.k - 1]
                del a.cp[: len(a.cp) - code.k]
                if end > t:
                    self._stalled("load", end - t)
                    t = end
        elif kind == Kind.CP_ARRIVE:
            for g in gates:
                self._arrive(a.copy, g, max(t, a.cp_last) + costs.hop, event)
        elif kind == Kind.MMA:
            if costs.tensor:
                start = max(t, sm.tensor) if code.tensor * a.weight > SMALL else t
                sm.tensor = max(sm.tensor, t) + code.tensor * a.weight
                sm.busy["tensor"] += code.tensor * a.weight
                t = max(start + code.tensor * a.weight, t + code.tensor * 4)
                for f in code.results:
                    a.ready[f] = (t + costs.mma, event)
        elif kind == Kind.TC_MMA:
            start = max(t, sm.tensor)
            end = sm.tensor = start + (code.tensor if costs.tensor else 0.0)
            sm.busy["tensor"] += code.tensor if costs.tensor else 0.0
            a.last = (end, event)
        elif kind == Kind.TC_COMMIT:
            for g in gates:
                self._arrive(a.copy, g, max(t, a.last[0]) + costs.hop, event)
        elif kind == Kind.SEND:
            for g in gates:
                self._arrive(a.copy, g, t + costs.far, event)
        return t
