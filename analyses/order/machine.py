"""The joint run: every unit and every asynchronous engine of the traced CTAs, stepped greedily until all have finished.

Greedy order suffices for progress because barrier operations are monotone; races need no luck because every access is
compared by vector clocks, not by when it happened to run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from analyses.order import explain
from analyses.order.accesses import Accesses
from analyses.order.log import Log, fragment_reads
from analyses.order.shadow import Storage
from analyses.order.units import COMPONENTS, GLOBAL, PARTS, Clock, Clocks, Numbering, Round, Slot, Unit
from cake_ir.bound import BoundKernel, Op, WarpsBlock, walk
from cake_ir.derive import Derived
from cake_ir.derive.arrivals import arrival_weight, copy_bytes, receivers
from cake_ir.skeleton import AgentTrace, BarAt, Event
from cake_ir.witness import Witness, iter_events


class Machine(Accesses):
    """One run over one witness. Findings collect in `log`."""

    def __init__(
        self, bound: BoundKernel, derived: Derived, witness: Witness, traces: list[AgentTrace], log: Log
    ) -> None:
        self.bound, self.derived, self.witness, self.log = bound, derived, witness, log
        self.cluster = bound.launch.cluster
        ctas = sorted({t.cta for t in traces})
        # a slot is made by an event that names it, in each CTA that the event reaches at most
        named = sum(1 for t in traces for _ in iter_events(t.events)) * len(ctas)
        bars = min(sum(b.stages for b in bound.barriers) * len(ctas), named)
        has_warps = any(isinstance(s, WarpsBlock) for s in walk(bound.body))
        units = sum(5 if has_warps and t.role.unit == "warpgroup" else 1 for t in traces)
        parts = 4 * PARTS * len(traces) if has_warps else 0
        tracks = any(t.direction == "InOut" for t in bound.tensors)
        self.clocks = Clocks(units * (COMPONENTS + tracks * GLOBAL) + parts + bars + 1, tracks)
        self.begin_globals()
        self.units = [Unit(self.clocks, t, t.events) for t in traces]
        self.roots = list(self.units)
        self.storage = Storage(bound.buffers, derived)
        self.slots: dict[tuple[Any, int, int], Slot] = {}
        self.named_comp: dict[Any, int] = {}
        self.rendezvous: dict[Any, list[Round]] = {}
        self.remote: list[tuple[int, list[tuple[int, int]], Event, Unit]] = []
        self.pdl = derived.launch.pdl
        self.threads = {c: sum(u.threads for u in self.roots if u.cta == c) for c in ctas}
        self.progress = True
        self.frag_reads, self.let_reads = fragment_reads(bound)
        self.handlers: dict[str, Any] = {
            "wait": self.on_wait,
            "arrive": self.on_arrive,
            "expect": self.on_expect,
            "named_arrive": self.on_named_arrive,
            "sync": self.on_sync,
            "fence_async": self.on_fence,
            "griddep_wait": self.on_griddep,
            "tcgen05_commit": self.on_tcommit,
            "cp_async_arrive": self.on_cp_arrive,
            "tma_load": self.on_copy_in,
            "bulk_load": self.on_copy_in,
            "store_async": self.on_copy_in,
            **self.access_handlers(),
        }
        self.steps = {
            s.site: (self.handlers.get(s.name), self.frag_reads.get(s.site), s.unit == "W" and converges(s))
            for s in walk(bound.body)
            if isinstance(s, Op)
        }

    # ---- running

    def run(self) -> None:
        """Steps all units until none can move, then judges how the run ended."""
        while self.progress and not self.log.full:
            self.progress = False
            for u in list(self.units):
                if not u.done:
                    self.drive(u)
        if self.log.full:
            return
        stuck = [u for u in self.units if not u.done]
        if stuck:
            explain.deadlock(self, stuck)
        else:
            self.check_end()

    def drive(self, u: Unit) -> None:
        """Runs a unit until it blocks or ends."""
        events = u.events
        while True:
            if u.block is not None:
                if not self.unblock(u):
                    return
                u.block = None
                u.entered = False
                u.pc += 1
                self.progress = True
                continue
            if u.pc >= len(events):
                return
            e = events[u.pc]
            node = e.node
            if isinstance(node, Op):
                handler, reads, aligned = self.steps[node.site]
                if aligned:
                    u.converged = u.passed
                if reads:
                    self.check_registers(u, e, reads)
                if handler is not None and handler(u, e):
                    continue
            elif isinstance(node, WarpsBlock):
                children = u.fork(self.clocks, e)
                self.units.extend(c for c in children if c not in self.units)
                u.block = ("warps", e)
                for c in children:
                    self.drive(c)
                continue
            else:
                self.on_let(u, e)
            u.pc += 1
            self.progress = True

    def unblock(self, u: Unit) -> bool:
        kind = u.block[0]
        if kind == "bar":
            _, slot, phase, e = u.block
            if slot.done <= phase:
                return False
            self.pass_wait(u, slot, phase, e)
            return True
        if kind == "round":
            return u.block[1].complete
        if all(c.done for c in u.children):
            u.join()
            return True
        return False

    # ---- mbarriers

    def slot(self, bar: BarAt, cta: int) -> Slot:
        key = (bar.barrier, cta, bar.slot)
        found = self.slots.get(key)
        if found is None:
            found = self.slots[key] = Slot(
                bar.barrier,
                cta,
                bar.slot,
                self.derived.arrivals.get(bar.barrier, 1),
                self.clocks.take(),
                self.clocks.zero,
            )
        return found

    def phase_of(self, u: Unit, e: Event, bar: BarAt) -> tuple[int, bool]:
        """(phase meant, whether restarted numbers disagree with it). Hardware sees only slot and parity, so numbers
        that begin again are taken modulo two phases; where that fits, the program is right."""
        st = u.phases.get(e.node.site)
        if st is None:
            st = u.phases[e.node.site] = Numbering()
        return st.phase(bar)

    def on_wait(self, u: Unit, e: Event) -> bool:
        bar: BarAt = e.vals["bar"]
        if bar.use < 0:
            return False
        slot = self.slot(bar, bar.cta)
        phase, drift = self.phase_of(u, e, bar)
        if drift:
            explain.drift(self, u, e, slot, phase)
            return False  # parity of a completed phase: the test passes at once and acquires nothing new
        known = int((u.KL if e.thread else u.K)[slot.comp])
        if known < phase:
            explain.wait_ahead(self, u, e, slot, phase, known)
        if slot.done > phase + 1:
            explain.missed(self, u, e, slot, phase, None)
        if slot.done > phase:
            self.pass_wait(u, slot, phase, e)
            return False
        u.block = ("bar", slot, phase, e)
        return True

    def pass_wait(self, u: Unit, slot: Slot, phase: int, e: Event) -> None:
        u.acquire(slot.clocks[phase], e.thread)
        everyone = not (e.thread or u.single)
        u.passed += everyone
        slot.waiters.setdefault(phase, []).append((u, u.tick_l, u.passed if everyone else 0, e))

    def arrive(
        self, u: Unit, e: Event, bar: BarAt, cta: int, weight: int, clock: Clock, engine: bool, tx: int = 0
    ) -> tuple[Slot, int]:
        """Adds arrivals and expected bytes to the use's phase."""
        slot = self.slot(bar, cta)
        phase, drift = self.phase_of(u, e, bar) if cta == bar.cta else (self.last_phase(u, e, bar), False)
        if bar.use < 0:
            explain.negative(self, u, e, slot, bar.use)
            return slot, 0
        if drift:
            explain.drift(self, u, e, slot, phase)
        known = int(u.KL[slot.comp])
        if known < phase == slot.done and self.follows(u, e, slot, phase - 1):
            known = phase
            u.KL[slot.comp] = max(u.KL[slot.comp], phase)
        if phase != slot.done or known < phase:
            explain.overrun(self, u, e, slot, phase, known)
        if phase < slot.done:
            return slot, phase
        b = slot.bucket(phase)
        b.pending -= weight
        b.tx += tx
        b.units.add(None if engine else u)
        b.arrivals.append((u, e))
        np.maximum(b.clock, clock, out=b.clock)
        if b.pending < 0:
            explain.over_arrival(self, u, e, slot, phase)
        self.complete(slot)
        return slot, phase

    def follows(self, u: Unit, e: Event, slot: Slot, phase: int) -> bool:
        """Whether all arrivals of a completed phase happened before this op of the unit (a rendezvous lies between, say):
        then the phase is complete for it without a wait. Bytes of copies complete on their own and prove nothing."""
        b = slot.buckets.get(phase)
        if b is None or b.copies or None in b.units or phase not in slot.clocks:
            return False
        ahead = slot.clocks[phase] > (u.KL if e.thread or u.single else u.K)
        ahead[slot.comp] = False
        ahead[[u.R, u.RF, u.L, u.LF, u.CP, u.CPF, u.WG, u.TC, u.TLD, u.TST, u.BR, u.BL, u.W]] = False
        return not ahead.any()

    def last_phase(self, u: Unit, e: Event, bar: BarAt) -> int:
        st = u.phases.get(e.node.site)
        return st.slots[bar.slot][2] if st is not None and bar.slot in st.slots else bar.phase

    def complete(self, slot: Slot) -> None:
        while True:
            b = slot.buckets.get(slot.done)
            if b is None or b.pending > 0 or b.tx != 0:
                return
            phase = slot.done
            b.clock[slot.comp] = phase + 1
            slot.clocks[phase] = b.clock
            slot.done += 1
            self.progress = True
            if len(b.units) == 1 and not b.copies:
                (only,) = b.units
                if only is not None:  # who alone completes a phase knows that it is complete
                    only.KL[slot.comp] = phase + 1
            for u, tick, passed, e in slot.waiters.get(phase - 1, ()):
                if not u.over(b.clock, u.L, tick):
                    explain.missed(self, u, e, slot, phase - 1, b)
                elif not u.over(b.clock, u.W, passed):
                    explain.straggler(self, u, e, slot, phase - 1)

    def on_arrive(self, u: Unit, e: Event) -> bool:
        bar: BarAt = e.vals["bar"]
        clock = u.publish(e.thread, e)
        if not e.thread and (u.parent is not None or u.role.unit == "warp"):
            u.synced(clock)
        epoch = u.tick_l - 1
        slot, phase = self.arrive(u, e, bar, bar.cta, arrival_weight(e, u.trace), clock, False)
        if bar.cta != u.cta:
            self.remote.append((bar.cta, [(u.L, epoch), (slot.comp, phase + 1)], e, u))
        return False

    def on_expect(self, u: Unit, e: Event) -> bool:
        bar: BarAt = e.vals["bar"]
        clock = u.publish(True, e)
        self.arrive(u, e, bar, bar.cta, 1, clock, False, self.derived.expect_bytes.get(e.node.site, 0))
        return False

    def on_tcommit(self, u: Unit, e: Event) -> bool:
        bar: BarAt = e.vals["bar"]
        clock = u.KL.copy()
        clock[u.L], clock[u.LF], clock[u.TC], clock[u.W] = u.tick_l, u.fenced_l, u.tc, u.converged
        u.tick_l += 1
        u.commits.append((u.tc, e))
        base = u.cta - u.cta % self.cluster
        targets = receivers(e, bar.cta, base, self.cluster)
        for cta in sorted(targets, key=lambda c: c != bar.cta):
            slot, phase = self.arrive(u, e, bar, cta, 1, clock, True)
            if cta != u.cta:
                self.remote.append((cta, [(slot.comp, phase + 1)], e, u))
        return False

    def on_cp_arrive(self, u: Unit, e: Event) -> bool:
        bar: BarAt = e.vals["bar"]
        clock = u.publish(False, e)
        u.cp.split()
        clock[u.CP] = u.cp.committed
        self.arrive(u, e, bar, bar.cta, arrival_weight(e, u.trace), clock, True)
        return False

    def on_copy_in(self, u: Unit, e: Event) -> bool:
        """A copy into shared memory: bytes on the barrier of every receiver, which also learns what the issuer knew."""
        bar: BarAt = e.vals["signal"]
        base = u.cta - u.cta % self.cluster
        self.check_global(u, e, "region", e.thread)
        targets = receivers(e, bar.cta, base, self.cluster)
        local = e.vals.get("multicast") is None
        size = copy_bytes(e.vals["view"])
        thread = e.thread
        clock = u.KL.copy()
        clock[u.L], clock[u.W] = u.tick_l, u.converged
        u.tick_l += 1
        for cta in sorted(targets, key=lambda c: c != bar.cta):
            slot = self.slot(bar, cta)
            phase = self.phase_of(u, e, bar)[0] if cta == bar.cta else self.last_phase(u, e, bar)
            view = e.vals["view"] if local else e.vals["view"]._replace(cta=cta)
            self.touch(u, e, view, "write", "tma", thread, slot.comp, phase + 1, -1, None)
            if u.tracks and cta == bar.cta and "region" in e.vals:
                self.touch_global(u, e, "region", "read", "tma", thread, slot.comp, phase + 1)
                self.announced(u, e, thread)
            known = int(u.KL[slot.comp])
            if phase != slot.done or known < phase:
                explain.overrun(self, u, e, slot, phase, known)
            if cta != u.cta:
                self.remote.append((cta, [(slot.comp, phase + 1)], e, u))
            if phase < slot.done:
                continue
            b = slot.bucket(phase)
            b.tx -= size
            b.copies.append((u, e))
            np.maximum(b.clock, clock, out=b.clock)
            self.complete(slot)
        return False

    # ---- rendezvous

    def enter(self, u: Unit, e: Event, key: Any, threads: int, need: int, waits: bool) -> bool:
        rounds = self.rendezvous.setdefault(key, [])
        number = u.rounds.get(key, 0)
        u.rounds[key] = number + 1
        comp = self.named_comp.get(key)
        if comp is not None and int(u.K[comp]) < number:
            explain.named_overrun(self, u, e, key, number)
        while len(rounds) <= number:
            rounds.append(Round(need, self.clocks.zero(), e))
        r = rounds[number]
        np.maximum(r.clock, u.publish(e.thread and not u.single, e if key[0] == "named" else None), out=r.clock)
        r.missing -= threads
        r.inside.append((u, waits))
        if r.missing <= 0:
            r.complete = True
            self.progress = True
            if comp is not None:
                r.clock[comp] = number + 1
            for other, waiting in r.inside:
                if waiting:
                    other.synced(r.clock)
        if not waits or r.complete:
            return False
        u.block = ("round", r, e, key)
        return True

    def on_sync(self, u: Unit, e: Event) -> bool:
        scope = e.node.attrs.get("scope")
        if scope == "warp" and u.role.unit == "warpgroup" and u.parent is None:
            u.warps_met()  # each warp by itself: nobody learns of another warp, the first thread of its own warp's part alone
            return False
        if scope == "warp" or (scope == "warpgroup" and u.parent is None):
            u.synced(u.publish(False, None))
            return False
        if scope == "named":
            return self.on_named(u, e, True)
        if scope == "role":
            role = e.node.operands["role"]
            return self.enter(u, e, ("role", role.name, u.cta), u.threads, 32 * role.warps, True)
        if scope == "warpgroup":
            return self.enter(u, e, ("warpgroup", u.role.name, u.trace.instance, u.cta), u.threads, 128, True)
        if scope == "cluster":
            base = u.cta - u.cta % self.cluster
            need = sum(n for c, n in self.threads.items() if base <= c < base + self.cluster)
            return self.enter(u, e, ("cluster", base), u.threads, need, True)
        if scope == "grid":
            return self.enter(u, e, ("grid",), u.threads, sum(self.threads.values()), True)
        return self.enter(u, e, ("cta", u.cta), u.threads, self.threads[u.cta], True)

    def on_named_arrive(self, u: Unit, e: Event) -> bool:
        return self.on_named(u, e, False)

    def on_named(self, u: Unit, e: Event, waits: bool) -> bool:
        bar: BarAt = e.vals["bar"]
        key = ("named", bar.barrier, bar.slot, u.cta)
        if key not in self.named_comp:
            self.named_comp[key] = self.clocks.take()
        need = self.derived.named.get(("named", bar.barrier, bar.slot), (0, u.threads))[1]
        return self.enter(u, e, key, u.threads, need, waits)

    def on_fence(self, u: Unit, e: Event) -> bool:
        if e.node.attrs.get("space", "shared") == "shared":
            u.fence(e.thread)
        elif u.tracks:
            self.fence_global(u, e.thread)
        return False

    def on_griddep(self, u: Unit, e: Event) -> bool:
        u.dep_l = True
        u.dep = u.dep or not e.thread or u.single
        return False

    # ---- the end

    def check_end(self) -> None:
        """Open rounds, unawaited copies, unread bulk sources, and reaches into CTAs that may be gone."""
        for key, rounds in self.rendezvous.items():
            if key[0] == "named" and rounds and not rounds[-1].complete:
                explain.named_open(self, key, rounds[-1])
        for slot in self.slots.values():
            for phase, b in slot.buckets.items():
                if b.copies and not any(u.KL[slot.comp] > phase for u in self.units if u.cta == slot.cta):
                    explain.unawaited(self, slot, phase, b)
                    break
        for u in self.units:
            for group in (u.bulk, u.bulk_l):
                if group.last is not None and group.done < group.newest:
                    explain.bulk_at_exit(self, u, group)
        for cta, ways, e, u in self.remote:
            if not any(int(v.KL[comp]) >= epoch for comp, epoch in ways for v in self.units if v.cta == cta):
                explain.cluster_exit(self, u, e, cta)


def converges(op: Op) -> bool:
    """Whether the lanes of a warp run the op together, so that none of them is still in an earlier wait."""
    return op.name in ("mma", "ldmatrix", "stmatrix") or op.decl.family == "registers"
