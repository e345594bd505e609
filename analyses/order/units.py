"""Executing units and barriers of the joint run, with their vector clocks.

A unit is a role instance, or one warp of it inside `warps()`. It knows two things separately: what all its lanes know
(`K`) and what its first thread knows (`KL`, at least as much). Its own accesses are counted by components: R
(accesses of all lanes), L (of the first thread alone), RF and LF (up to where the async proxy was fenced), one for
the waits that all lanes have passed (W), and one per asynchronous engine (cp.async groups, wgmma groups, tcgen05 ops,
tensor memory loads and stores, bulk groups).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cake_ir.bound import Barrier, Fragment
from cake_ir.skeleton import AgentTrace, BarAt, Event

Clock = NDArray[np.int32]

COMPONENTS = 13
"""Clock components of a unit."""
GLOBAL = 6
"""Further components of a unit in kernels that follow global memory: gmem fences (all lanes, first thread), finished bulk
writes (the same), flags polled, flags polled and fenced."""
PARTS = 8
"""Further components of one warp inside `warps()`: how far it has released its part of what the whole warpgroup did."""


class Clocks:
    """Numbers the clock components and says whose they are."""

    def __init__(self, capacity: int, tracks: bool) -> None:
        self.capacity = capacity
        self.tracks = tracks  # global memory is followed
        self.used = 0

    def take(self) -> int:
        """The next component. Raises OverflowError beyond the capacity, which the machine computes beforehand."""
        if self.used >= self.capacity:
            raise OverflowError("more clock components than planned")
        self.used += 1
        return self.used - 1

    def zero(self) -> Clock:
        """Knows nothing."""
        return np.zeros(self.capacity, dtype=np.int32)


class Group:
    """Commit groups of one owner: committed, done (waited for), whether ops follow the last commit."""

    __slots__ = ("at", "committed", "done", "last", "marks", "newest", "open", "wait", "written")

    def __init__(self) -> None:
        self.committed = 0
        self.done = 0
        self.written = 0  # groups whose writes are over as well
        self.open = False
        self.marks: list[int] = []  # the number that each commit closed; an arrival closes numbers of its own
        self.last: Event | None = None
        self.newest = 0  # number of the group of the last op; a commit behind it may close an empty group
        self.wait: tuple[Event, int] | None = None
        self.at = 0  # commits before the last wait

    @property
    def current(self) -> int:
        """Number of the group that an op issued now will belong to."""
        return self.committed + 1

    def issue(self, e: Event) -> int:
        self.open = True
        self.last = e
        self.newest = self.committed + 1
        return self.newest

    def commit(self) -> None:
        self.committed += 1
        self.marks.append(self.committed)
        self.open = False

    def split(self) -> None:
        """Ops from here on get another number, in the same group: an arrival covers what came before it only."""
        if self.open:
            self.committed += 1
            self.open = False

    def waited(self, k: int, e: Event) -> None:
        if len(self.marks) > k:
            self.done = max(self.done, self.marks[-k - 1])
            if e.node.name != "bulk_wait_read":
                self.written = self.done
        self.wait = (e, k)
        self.at = len(self.marks)

    def may_stay(self, number: int) -> int:
        """How many groups the last wait may leave pending so that the one of `number` is done; -1: not committed before it."""
        return sum(m >= number for m in self.marks[: self.at]) - 1


class Numbering:
    """The use numbers of one op of one unit. A number met again after others starts a new round, in which each slot's
    phase goes on counting; hardware sees only slot and parity, so such a program is right where the parities
    agree."""

    __slots__ = ("last", "round", "seen", "slots")

    def __init__(self) -> None:
        self.last: int | None = None
        self.seen: set[int] = set()
        self.round = 0
        self.slots: dict[int, tuple[int, int, int]] = {}

    def phase(self, bar: BarAt) -> tuple[int, bool]:
        """(phase meant, whether its parity contradicts the number)."""
        use = bar.use
        if use != self.last and use in self.seen:
            self.round += 1
            self.seen.clear()
        self.seen.add(use)
        self.last = use
        before = self.slots.get(bar.slot)
        if before is not None and before[:2] == (self.round, use):
            phase = before[2]
        elif self.round == 0 or before is None:
            phase = bar.phase
        else:
            phase = before[2] + 1
        self.slots[bar.slot] = (self.round, use, phase)
        return phase, (phase - bar.phase) % 2 != 0


class Unit:
    """One executing sequence with its clocks."""

    def __init__(
        self, clocks: Clocks, trace: AgentTrace, events: list[Event], parent: Unit | None = None, warp: int = 0
    ) -> None:
        self.trace, self.events, self.parent = trace, events, parent
        self.cta = trace.cta
        self.role = trace.role
        self.label = trace.label if parent is None else f"warp {warp} of {trace.label}"
        self.threads = (
            32
            if parent is not None
            else {"thread": 32 * trace.role.warps, "warp": 32, "warpgroup": 128}[trace.role.unit]
        )
        self.single = trace.role.unit == "thread"
        self.pc = 0
        self.R, self.RF, self.L, self.LF, self.CP, self.CPF = (clocks.take() for _ in range(6))
        self.WG, self.TC, self.TLD, self.TST, self.BR, self.BL, self.W = (clocks.take() for _ in range(7))
        self.tracks = clocks.tracks
        if self.tracks:
            self.GF, self.GLF, self.GW, self.GLW, self.P, self.PF = (clocks.take() for _ in range(GLOBAL))
        self.gfenced = self.gfenced_l = 0
        self.KL: Clock = clocks.zero()
        self.K: Clock = self.KL if self.single else clocks.zero()
        self.tick = self.tick_l = 1
        self.met = 0  # accesses of all lanes that the last sync(warp) of a whole warpgroup came after
        self.fenced = self.fenced_l = 0
        self.cp, self.wg, self.bulk, self.bulk_l = Group(), Group(), Group(), Group()
        if parent is not None and warp == 0:  # the first thread of the unit is that of its first warp
            self.bulk_l, self.BL = parent.bulk_l, parent.BL
            if self.tracks:
                self.GLW = parent.GLW
        self.cp_fenced = 0
        self.tc = 0
        self.commits: list[tuple[int, Event]] = []  # (tcgen05 ops before it, tcgen05_commit)
        self.tld = self.tld_done = self.tst = self.tst_done = 0
        self.dep = self.dep_l = False
        self.frags: dict[Fragment, tuple[str, int, Event]] = parent.frags if parent else {}
        # products with what nothing had written, by (accumulator, site)
        self.blanks: dict[Any, Any] = parent.blanks if parent else {}
        # (tick, first thread's tick, by one thread, op, loads waited for, tick of the warpgroup) of each release
        self.releases: list[tuple[int, int, bool, Event, int, int]] = []
        self.children: list[Unit] = []
        self.block: Any = None
        self.entered = False
        self.rounds: dict[Any, int] = {}
        self.phases: dict[int, Numbering] = {}
        # waits by all lanes, how many of them every lane is known to have passed, and that number per wgmma group
        self.passed = self.converged = 0
        self.wg_passed: list[int] = [0]
        # What a whole warpgroup did is over for others when each of its warps has released its own lanes' part of it:
        # per component of the warpgroup those of its four warps.
        self.warp = warp
        self.parts: dict[int, tuple[int, ...]] = {}
        self.part: tuple[int, ...] = tuple(clocks.take() for _ in range(PARTS)) if parent else ()
        self.part_fenced = 0  # the warpgroup's accesses that this warp's own fences cover

    @property
    def done(self) -> bool:
        return self.pc >= len(self.events) and self.block is None

    # ---- knowledge

    def over(self, known: Clock, comp: int, epoch: int) -> bool:
        """Whether a clock knows that this unit's component has come so far, at once or warp by warp."""
        if known[comp] >= epoch:
            return True
        parts = self.parts.get(comp)
        return parts is not None and all(known[c] >= epoch for c in parts)

    def acquire(self, clock: Clock, thread: bool) -> None:
        """Joins what a release published; by the first thread alone when `thread`."""
        np.maximum(self.KL, clock, out=self.KL)
        if not thread and not self.single:
            np.maximum(self.K, clock, out=self.K)

    def publish(self, thread: bool, e: Event | None) -> Clock:
        """The clock that a release carries: of the first thread, or of all lanes (each lane having released)."""
        if thread or self.single:
            v = self.KL.copy()
            v[self.L], v[self.LF], v[self.W] = self.tick_l, self.fenced_l, self.converged
            if self.tracks:
                v[self.GLF] = self.gfenced_l
        else:
            v = np.maximum(self.K, self.KL)
            for c in self.children:
                np.maximum(v, c.KL, out=v)
            self._own(v)
            self.tick += 1
        if e is not None:
            above = self.parent.tick if self.parent is not None else 0
            alone = thread or self.single
            self.releases.append((self.tick - (not alone), self.tick_l, alone, e, self.tld_done, above))
        self.tick_l += 1
        return v

    def _own(self, v: Clock) -> None:
        v[self.R], v[self.RF], v[self.L], v[self.LF] = self.tick, self.fenced, self.tick_l, self.fenced_l
        v[self.W] = self.passed
        v[self.CP], v[self.CPF] = self.cp.done, self.cp_fenced
        v[self.TLD], v[self.TST], v[self.BR] = self.tld_done, self.tst_done, self.bulk.done
        if self.tracks:
            v[self.GF], v[self.GLF], v[self.GW] = self.gfenced, self.gfenced_l, self.bulk.written
        if self.parent is not None:
            p = self.parent
            fenced = max(p.fenced, self.part_fenced)
            upto = (p.tick, fenced, p.tick_l, p.passed, p.cp.done, p.cp_fenced, p.tld_done, p.tst_done)
            v[list(self.part)] = upto
        for c in self.children:
            c._own(v)
            c.tick += 1
            c.tick_l += 1

    def synced(self, clock: Clock) -> None:
        """All lanes now know the clock."""
        self.converged = self.passed
        self.dep = self.dep or self.dep_l
        np.maximum(self.KL, clock, out=self.KL)
        np.maximum(self.K, self.KL, out=self.K)
        for c in self.children:
            c.synced(self.K)

    def warps_met(self) -> None:
        """The lanes of each warp of the warpgroup have met, no two warps."""
        self.met = self.tick
        self.tick += 1

    # ---- warps()

    def fork(self, clocks: Clocks, e: Event) -> list[Unit]:
        """The four warps start with what the warpgroup knows; their components persist between blocks."""
        if not self.children:
            self.children = [Unit(clocks, self.trace, [], self, w) for w in range(4)]
            mine = (self.R, self.RF, self.L, self.W, self.CP, self.CPF, self.TLD, self.TST)
            self.parts = {comp: tuple(c.part[i] for c in self.children) for i, comp in enumerate(mine)}
        for w, c in enumerate(self.children):
            c.events, c.pc, c.block, c.entered = e.children[w], 0, None, False
            np.maximum(c.K, self.K, out=c.K)
            np.maximum(c.KL, self.KL if w == 0 else self.K, out=c.KL)
            np.maximum(c.KL, c.K, out=c.KL)
            c.KL[c.part[2]] = c.K[c.part[2]] = self.tick_l  # each warp has passed what its warpgroup has passed
            c.dep, c.dep_l = self.dep, self.dep
        return self.children

    def fence(self, thread: bool) -> None:
        """What the unit (or its first thread) did so far is visible to the async proxy."""
        if not thread:
            self.fenced = self.tick
            self.tick += 1
            self.cp_fenced = self.cp.done
            if self.parent is not None:
                self.part_fenced = self.parent.tick
            for c in self.children:
                c.fence(False)
        self.fenced_l = self.tick_l
        self.tick_l += 1

    def fence_global(self, thread: bool) -> None:
        """The same for global memory."""
        if not thread:
            self.gfenced = self.tick
            self.tick += 1
            for c in self.children:
                c.fence_global(False)
        self.gfenced_l = self.tick_l
        self.tick_l += 1

    def join(self) -> None:
        """After the block the warpgroup knows what every one of its warps knows."""
        least = self.children[0].K
        for c in self.children[1:]:
            least = np.minimum(least, c.K)
        np.maximum(self.K, least, out=self.K)
        np.maximum(self.KL, self.children[0].KL, out=self.KL)
        self.tick += 1  # what comes now is not part of what the warps have released
        self.tick_l += 1


class Bucket:
    """One phase of a barrier slot while it fills: missing arrivals, bytes still to come, the clock it will publish."""

    __slots__ = ("arrivals", "clock", "copies", "pending", "tx", "units")

    def __init__(self, pending: int, clock: Clock) -> None:
        self.pending = pending
        self.tx = 0
        self.clock = clock
        self.units: set[Any] = set()
        self.copies: list[tuple[Unit, Event]] = []
        self.arrivals: list[tuple[Unit, Event]] = []


class Slot:
    """One mbarrier: `done` phases have completed. Arrivals of later phases wait in their own bucket, so that one
    overrun does not distort the rest of the run; it is reported where it happens."""

    __slots__ = ("barrier", "buckets", "clocks", "comp", "count", "cta", "done", "index", "waiters", "zero")

    def __init__(self, barrier: Barrier, cta: int, index: int, count: int, comp: int, zero: Any) -> None:
        self.barrier, self.cta, self.index, self.count, self.comp, self.zero = barrier, cta, index, count, comp, zero
        self.done = 0
        self.buckets: dict[int, Bucket] = {}
        self.clocks: dict[int, Clock] = {}
        self.waiters: dict[int, list[tuple[Unit, int, int, Event]]] = {}

    def bucket(self, phase: int) -> Bucket:
        b = self.buckets.get(phase)
        if b is None:
            b = self.buckets[phase] = Bucket(self.count, self.zero())
        return b

    def name(self, phase: int) -> str:
        """The use as the author writes it."""
        return f"{self.barrier.name}[{phase * self.barrier.stages + self.index}]"


class Round:
    """One round of a rendezvous: threads still missing, joined clock, units inside."""

    __slots__ = ("clock", "complete", "first", "inside", "missing")

    def __init__(self, missing: int, clock: Clock, first: Event) -> None:
        self.missing, self.clock, self.first = missing, clock, first
        self.inside: list[tuple[Unit, bool]] = []
        self.complete = False
