"""The events of all agents in one order that the barriers admit.

The program has no race on this shape (the order reading has said so), so every such order moves the same tiles: each op is
carried out when it is issued. Only who waits for whom matters; clocks, proxies and engines do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from analyses.order.units import Numbering
from cake_ir.bound import BoundKernel, Fragment, Op, WarpsBlock
from cake_ir.derive import Derived
from cake_ir.derive.arrivals import arrival_weight, copy_bytes, receivers
from cake_ir.events import AgentTrace, BarAt, Event


class Agent:
    """One role instance, or one warp of it. frags: what its registers hold."""

    def __init__(self, trace: AgentTrace, events: list[Event], parent: Agent | None = None, warp: int = 0) -> None:
        self.trace, self.events, self.parent, self.warp = trace, events, parent, warp
        self.cta, self.role = trace.cta, trace.role
        self.label: str = parent.label if parent else trace.label
        unit = self.role.unit
        self.threads = 32 if parent or unit == "warp" else 128 if unit == "warpgroup" else 32 * self.role.warps
        self.frags: dict[Fragment, Any] = dict(parent.frags) if parent else {}
        self.pc = 0
        self.block: Any = None
        self.phases: dict[int, Numbering] = parent.phases if parent else {}
        self.rounds: dict[Any, int] = {}

    @property
    def done(self) -> bool:
        return self.pc >= len(self.events)


class _Phase:
    """What one phase of a barrier has got."""

    __slots__ = ("bytes", "count")

    def __init__(self) -> None:
        self.count = self.bytes = 0


class Stuck(Exception):
    """The agents wait for each other: the order reading knows more, this one says nothing."""


class Order:
    """Iterates (agent, event) over the ops and assignments of all agents; raises Stuck."""

    def __init__(self, bound: BoundKernel, derived: Derived, traces: list[AgentTrace]) -> None:
        self.derived, self.cluster = derived, bound.launch.cluster
        self.agents = [Agent(t, t.events) for t in traces]
        self.all_threads: dict[int, int] = {}
        for a in self.agents:
            self.all_threads[a.cta] = self.all_threads.get(a.cta, 0) + a.threads
        self.phases: dict[Any, dict[int, _Phase]] = {}
        self.completed: dict[Any, int] = {}
        self.meetings: dict[Any, list[int]] = {}

    def __iter__(self) -> Iterator[tuple[Agent, Event]]:
        while True:
            moved = False
            for a in list(self.agents):
                for step in self._drive(a):
                    moved = True
                    if step is not None:
                        yield step
            self.agents = [a for a in self.agents if not a.done]
            if not self.agents:
                return
            if not moved:
                raise Stuck

    def _drive(self, a: Agent) -> Iterator[tuple[Agent, Event] | None]:
        """Steps until the agent blocks or ends; None stands for a synchronisation step."""
        events = a.events
        while a.pc < len(events):
            if a.block is not None:
                if not a.block():
                    return
                a.block = None
                a.pc += 1
                yield None
                continue
            e = events[a.pc]
            node = e.node
            if isinstance(node, WarpsBlock):
                children = [Agent(a.trace, part, a, w) for w, part in enumerate(e.children)]
                self.agents.extend(children)
                a.block = lambda children=children: all(c.done for c in children)
                yield None
                continue
            if isinstance(node, Op):
                if (node.decl.syncs or node.decl.completion == "mbarrier") and self._sync(a, e, node):
                    continue
                if node.decl.accesses or node.results:
                    yield a, e
            else:
                yield a, e
            a.pc += 1
            yield None

    # ---- synchronisation

    def _sync(self, a: Agent, e: Event, op: Op) -> bool:
        """Carries out a synchronisation op; True when the agent has to wait (`block` is set)."""
        if op.name == "sync" or op.name == "named_arrive":
            return self._meet(a, e, op)
        bar = e.vals.get("bar") or e.vals.get("signal")
        if not isinstance(bar, BarAt) or bar.use < 0:
            return False
        phase = a.phases.setdefault(op.site, Numbering()).phase(bar)[0]
        key = (bar.barrier, bar.slot)
        base = a.cta - a.cta % self.cluster
        if op.name == "wait":
            slot = (*key, bar.cta)
            if self.completed.get(slot, 0) > phase:
                return False
            a.block = lambda: self.completed.get(slot, 0) > phase
            return True
        if op.decl.completion == "mbarrier":
            view = e.vals.get("view")
            size = copy_bytes(view) if view is not None else 0
            for cta in receivers(e, bar.cta, base, self.cluster):
                self._add((*key, cta), phase, 0, -size)
        elif op.name == "expect":
            self._add((*key, bar.cta), phase, 1, self.derived.expect_bytes.get(op.site, 0))
        elif op.name == "tcgen05_commit":
            for cta in receivers(e, bar.cta, base, self.cluster):
                self._add((*key, cta), phase, 1, 0)
        else:
            self._add((*key, bar.cta), phase, arrival_weight(e, a.trace), 0)
        return False

    def _add(self, slot: Any, phase: int, count: int, size: int) -> None:
        phases = self.phases.setdefault(slot, {})
        p = phases.setdefault(phase, _Phase())
        p.count += count
        p.bytes += size
        need = self.derived.arrivals.get(slot[0], 1)
        at = self.completed.get(slot, 0)
        while (p := phases.get(at)) is not None and p.count >= need and p.bytes == 0:
            at += 1
        self.completed[slot] = at

    def _meet(self, a: Agent, e: Event, op: Op) -> bool:
        scope = op.attrs.get("scope")
        if scope == "warp" or (scope == "warpgroup" and a.parent is None):
            return False
        base = a.cta - a.cta % self.cluster
        if scope == "role":
            role = op.operands["role"]
            key, need = ("role", role.name, a.cta), 32 * role.warps
        elif scope == "warpgroup":
            key, need = ("warpgroup", a.role.name, a.trace.instance, a.cta), 128
        elif scope == "cluster":
            key = ("cluster", base)
            need = sum(n for c, n in self.all_threads.items() if base <= c < base + self.cluster)
        elif scope == "grid":
            key, need = ("grid",), sum(self.all_threads.values())
        elif scope == "cta":
            key, need = ("cta", a.cta), self.all_threads[a.cta]
        else:
            bar: BarAt = e.vals["bar"]
            key = ("named", bar.barrier, bar.slot, a.cta)
            need = self.derived.named.get(("named", bar.barrier, bar.slot), (0, a.threads))[1]
        number = a.rounds.get(key, 0)
        a.rounds[key] = number + 1
        rounds = self.meetings.setdefault(key, [])
        while len(rounds) <= number:
            rounds.append(need)
        rounds[number] -= a.threads
        if op.name == "named_arrive" or rounds[number] <= 0:
            return False
        a.block = lambda: rounds[number] <= 0
        return True
