"""Barriers of the value reading: mbarrier rings with phases by use number, named barriers, rendezvous."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from analyses.value.faults import ValueFault
from cake_ir.bound import Barrier
from cake_ir.diagnostics import Span


class Slot:
    """One mbarrier: `phase` completed phases, arrivals and transaction bytes of the current one."""

    __slots__ = ("pending", "phase", "tx")

    def __init__(self, count: int) -> None:
        self.phase, self.pending, self.tx = 0, count, 0


class Ring:
    """An mbarrier ring of one CTA. `count` arrivals complete a phase together with balanced bytes (PTX ISA:
    mbarrier)."""

    def __init__(self, barrier: Barrier, count: int, cta: int) -> None:
        self.barrier, self.count, self.cta = barrier, count, cta
        self.slots = [Slot(count) for _ in range(barrier.stages)]

    def locate(self, use: int, what: str, span: Span, agent: str) -> Slot:
        """The slot of a use whose current phase must be that use's."""
        if use < 0:
            raise ValueFault("phase", f"{what} on {self.barrier.name}[{use}]: negative use number", span, agent)
        slot = self.slots[use % self.barrier.stages]
        if slot.phase != use // self.barrier.stages:
            now = slot.phase * self.barrier.stages + use % self.barrier.stages
            raise ValueFault(
                "phase", f"{what} names use {use} of {self.barrier.name} but its slot is at use {now}", span, agent
            )
        return slot

    def arrive(self, use: int, n: int, span: Span, agent: str, tx: int = 0) -> None:
        """n arrivals for `use`, after adding tx expected bytes."""
        slot = self.locate(use, "arrival", span, agent)
        slot.tx += tx
        if slot.pending < n:
            raise ValueFault(
                "arrivals",
                f"{self.barrier.name}[{use}] gets more than its {self.count} arrivals (waiting for {slot.tx} bytes)",
                span,
                agent,
            )
        slot.pending -= n
        self._close(slot)

    def complete_tx(self, use: int, nbytes: int, span: Span, agent: str) -> None:
        """Bytes of a copy have landed."""
        slot = self.locate(use, f"a copy of {nbytes} bytes", span, agent)
        slot.tx -= nbytes
        if slot.pending == 0 and slot.tx < 0:
            raise ValueFault("tx", f"{self.barrier.name}[{use}] gets {-slot.tx} bytes more than expected", span, agent)
        self._close(slot)

    def _close(self, slot: Slot) -> None:
        if slot.pending == 0 and slot.tx == 0:
            slot.phase += 1
            slot.pending = self.count


@dataclass(slots=True)
class WaitPhase:
    """Blocked on a completion of a ring."""

    ring: Ring
    use: int
    span: Span
    agent: str

    def ready(self) -> bool:
        if self.use < 0:
            return True
        s = self.ring.barrier.stages
        phase = self.ring.slots[self.use % s].phase
        need = self.use // s + 1
        if phase > need:
            raise ValueFault(
                "lag",
                f"wait for {self.ring.barrier.name}[{self.use}] comes when its slot has completed use "
                f"{(phase - 1) * s + self.use % s}: "
                "the parity is ambiguous",
                self.span,
                self.agent,
            )
        if phase < need - 1:
            raise ValueFault(
                "lag",
                f"wait for {self.ring.barrier.name}[{self.use}] comes when its slot is still at use "
                f"{phase * s + self.use % s}: the parity of an earlier use lets it pass",
                self.span,
                self.agent,
            )
        return phase == need

    def describe(self) -> str:
        slot = self.ring.slots[self.use % self.ring.barrier.stages]
        now = slot.phase * self.ring.barrier.stages + self.use % self.ring.barrier.stages
        return (
            f"waits for {self.ring.barrier.name}[{self.use}] (slot at use {now}, {slot.pending} of "
            f"{self.ring.count} arrivals missing, {slot.tx} bytes open)"
        )


class Meeting:
    """A rendezvous with rounds: named barriers (weights are warps) and sync scopes (weights are agents)."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total = name, total
        self.round, self.inside = 0, 0
        self.members: set[Any] = set()

    def enter(self, member: Any, weight: int, span: Span, agent: str) -> int:
        """Counts a member in; returns the round it belongs to."""
        if member in self.members:
            raise ValueFault("named-barrier", f"{agent} enters {self.name} twice in one round", span, agent)
        self.members.add(member)
        self.inside += weight
        mine = self.round
        if self.inside > self.total:
            raise ValueFault(
                "named-barrier", f"{self.name}: {self.inside} warps entered a round of {self.total}", span, agent
            )
        if self.inside == self.total:
            self.round, self.inside = mine + 1, 0
            self.members.clear()
        return mine


@dataclass(slots=True)
class WaitRound:
    """Blocked until a meeting's round is complete."""

    meeting: Meeting
    round: int

    def ready(self) -> bool:
        return self.meeting.round > self.round

    def describe(self) -> str:
        return f"waits in {self.meeting.name} ({self.meeting.inside} of {self.meeting.total} are there)"


@dataclass(slots=True)
class WaitUntil:
    """Blocked on a predicate (engine groups, joined children)."""

    test: Any
    text: str

    def ready(self) -> bool:
        return bool(self.test())

    def describe(self) -> str:
        return f"waits for {self.text}"
