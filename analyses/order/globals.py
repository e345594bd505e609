"""Accesses of `InOut` tensors, ordered by the same clocks as those of on-chip memory, and data that polled flags announce.

Flags carry no clock: a kernel that polls global memory orders accesses of different units in a way that is not followed, so
there only accesses of one unit, and the proxy fences, are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analyses.order import findings as rule
from analyses.order.log import name_of, root, where
from analyses.regions import distinct_data, region_facts
from cake_ir.bound import BoundKernel, Op, Region, Tensor, While, walk
from cake_ir.skeleton import Event, RegionAt
from cake_ir.witness import Witness

if TYPE_CHECKING:
    from analyses.order.log import Log
    from analyses.order.units import Unit

Spans = tuple[tuple[int, int], ...]


class Touch:
    """One access of a region. mode: read | write | update; engine: generic | cp_async | tma | bulk. comp, epoch, fence: as
    in `shadow.Access`."""

    __slots__ = ("at", "box", "comp", "engine", "epoch", "event", "fence", "mode", "thread", "unit")

    def __init__(
        self,
        unit: Unit,
        event: Event,
        at: RegionAt,
        box: Spans,
        mode: str,
        engine: str,
        thread: bool,
        comp: int,
        epoch: int,
        fence: int,
    ) -> None:
        self.unit, self.event, self.at, self.box, self.mode, self.engine = unit, event, at, box, mode, engine
        self.thread, self.comp, self.epoch, self.fence = thread, comp, epoch, fence

    @property
    def lanes(self) -> Any:
        """Equal keys: the same lane touches each element of the region in both accesses."""
        op: Op = self.event.node
        value: Any = op.results[0] if op.name == "load" and op.results else op.operands.get("x")
        tile = getattr(value, "type", None)
        if self.engine != "generic" or tile is None:
            return None
        return (str(tile.layout), tile.rows, tile.cols, tile.axis, tile.threads, self.at.region.transposed)


def tracked(bound: BoundKernel) -> frozenset[Tensor]:
    """Tensors whose accesses may meet: written and read in the kernel. Flags that a `while` polls are not data."""
    flags = {t for _, t in polls(bound)}
    return frozenset(t for t in bound.tensors if t.direction == "InOut" and t not in flags)


def polls(bound: BoundKernel) -> list[tuple[int, Tensor]]:
    """(site, tensor) of each scalar load of an InOut tensor inside a `while`."""
    found: list[tuple[int, Tensor]] = []
    for w in walk(bound.body):
        if isinstance(w, While):
            for s in walk((*w.prelude, *w.body)):
                src = s.operands.get("src") if isinstance(s, Op) and s.name == "load_scalar" else None
                if isinstance(s, Op) and isinstance(src, Region) and src.tensor.direction == "InOut":
                    found.append((s.site, src.tensor))
    return found


class Globals:
    """The part of the machine that handles global memory."""

    bound: BoundKernel
    log: Log
    units: list[Unit]
    witness: Witness

    def begin_globals(self) -> None:
        """Sets up what is followed; nothing is where no tensor is InOut."""
        self.tracked = tracked(self.bound)
        self.distinct = distinct_data(self.bound, self.witness)
        flags = polls(self.bound)
        self.poll_sites = frozenset(site for site, _ in flags)
        self.flags = frozenset(t for _, t in flags)
        self.memory: dict[Tensor, dict[Any, Touch]] = {t: {} for t in self.tracked}

    def touch_global(
        self, u: Unit, e: Event, name: str, mode: str, engine: str, thread: bool, comp: int, epoch: int, fence: int = -1
    ) -> None:
        """One access of a region of a followed tensor: compared with what it meets, then recorded."""
        at = e.vals.get(name)
        if not isinstance(at, RegionAt):
            return
        tensor = at.region.tensor
        if tensor in self.flags and mode != "read":
            self.raised(u, e, thread)
        if tensor not in self.memory:
            return
        if not self.distinct and not region_facts(self.bound).certain(e.node, at.region):
            return  # elements that data choose; a contract may keep them apart
        spans = at.dims
        if any(d is None for d in spans):
            return  # gathered rows are the data's
        box: Spans = tuple(d for d in spans if d is not None)
        if any(a >= b for a, b in box):
            return
        a = Touch(u, e, at, box, mode, engine, thread, comp, epoch, fence)
        store = self.memory[tensor]
        for p in list(store.values()):
            if (
                (mode == p.mode != "write")  # two reads, or two reductions
                or p.event is e
                or any(x1 <= y0 or y1 <= x0 for (x0, x1), (y0, y1) in zip(p.box, box, strict=True))
            ):
                continue
            fault = self.global_fault(u, thread, p, a)
            if fault == "fence":
                self.unfenced(p, a)
            elif fault and not (self.flags and root(p.unit) is not root(u)):
                self.unordered(p, a)
        if mode == "write" and e.node.operands.get("when") is None:
            for k in [
                k
                for k, p in store.items()
                if all(x0 <= y0 and y1 <= x1 for (x0, x1), (y0, y1) in zip(box, p.box, strict=True))
            ]:
                del store[k]
        store[(comp, mode, box)] = a

    @staticmethod
    def global_fault(u: Unit, thread: bool, p: Touch, a: Touch) -> str | None:
        """As `Accesses.fault`, for global memory."""
        known = u.KL if thread else u.K
        own = p.unit is u
        if known[p.comp] < p.epoch and not p.unit.over(known, p.comp, p.epoch):
            same = own and (
                (p.comp == u.L and thread)
                or (p.comp == u.R and not thread and p.lanes is not None and p.lanes == a.lanes and p.box == a.box)
            )
            if not same:
                return "order"
        if p.fence < 0 or a.engine not in ("tma", "bulk") or known[p.fence] >= p.epoch:
            return None
        return None if own and thread and p.comp == u.L and u.gfenced_l >= p.epoch else "fence"

    # ---- flags

    def polled(self, u: Unit, e: Event) -> None:
        """A flag is looked at: what it announces came through the generic proxy."""
        number = max(int(u.KL[u.P]), int(u.K[u.P])) + 1
        u.KL[u.P] = number
        if not e.thread:
            u.K[u.P] = number

    def announced(self, u: Unit, e: Event, thread: bool) -> None:
        """A copy of data that a flag announced, seen here or by whoever released this unit."""
        at = e.vals.get("region")
        if not self.flags or not isinstance(at, RegionAt) or at.region.tensor.direction != "InOut":
            return
        known = u.KL if thread else u.K
        for other in self.units:
            if known[other.P] > known[other.PF]:
                seen = "" if other is u else f" by {other.label}"
                self.log.add(
                    "data",
                    rule.FENCE_GLOBAL,
                    e.node.span,
                    f"{name_of(e)} reads {at.region.tensor.name} through the async proxy after a flag was polled with plain "
                    f"loads{seen}; no fence_async(space=gmem) stands between",
                    role=u.role.name,
                    resource=at.region.tensor.name,
                    op=name_of(e),
                    related=tuple((s.span, "the flag is polled here") for s in self._polling(other)),
                )
                return

    def raised(self, u: Unit, e: Event, thread: bool) -> None:
        """A polled flag is set: what this unit wrote before must be over."""
        known = u.KL if thread else u.K
        for store in self.memory.values():
            for p in store.values():
                if p.mode == "read" or root(p.unit) is not root(u) or p.unit.over(known, p.comp, p.epoch):
                    continue
                if p.unit is u and p.engine == "generic" and (not thread or p.thread):
                    continue
                self.unordered(p, Touch(u, e, p.at, p.box, "flag", "generic", thread, 0, 0, -1))
                return

    def _polling(self, u: Unit) -> list[Op]:
        return [
            s
            for s in walk(self.bound.body)
            if isinstance(s, Op) and s.site in self.poll_sites and s.role in (u.role.name, None)
        ][:2]

    def fence_global(self, u: Unit, thread: bool) -> None:
        """fence_async(space=gmem): own accesses so far, and the flags seen so far."""
        u.fence_global(thread)
        polls, fenced = [x.P for x in self.units], [x.PF for x in self.units]
        for known in (u.KL,) if thread or u.single else (u.KL, u.K):
            known[fenced] = known[polls]

    # ---- findings

    def unfenced(self, p: Touch, a: Touch) -> None:
        tensor = p.at.region.tensor
        self.log.add(
            "data",
            rule.FENCE_GLOBAL,
            p.event.node.span,
            f"{name_of(p.event)} writes {tensor.name} through the generic proxy and {name_of(a.event)} "
            f"{'reads' if a.mode == 'read' else 'overwrites'} it through the async proxy, with no fence_async(space=gmem) by "
            "the writer before its release",
            role=p.unit.role.name,
            resource=tensor.name,
            op=name_of(p.event),
            related=((a.event.node.span, where(a.unit, a.event)),),
            steps=((p.event.node.span, where(p.unit, p.event)), (a.event.node.span, where(a.unit, a.event))),
        )

    def unordered(self, p: Touch, a: Touch) -> None:
        tensor = p.at.region.tensor
        pn, an = name_of(p.event), name_of(a.event)
        verb = {"read": "reads", "write": "writes", "update": "updates", "flag": "announces"}
        name, first, other = rule.GLOBAL_RACE, a, p
        if p.engine == "bulk":
            group = p.unit.bulk_l if p.thread else p.unit.bulk
            name = rule.BULK_WRITE
            if p.epoch <= group.written:
                text = "the thread that issued it has waited, but no sync carries that to this access"
            elif p.epoch <= group.done:
                text = "bulk_wait_read says only that its source has been read; bulk_wait waits for the write"
            else:
                text = "no bulk_wait of its thread covers it"
            text = f"{an} {verb[a.mode]} {tensor.name} while {pn} may still be writing it: {text}"
        else:
            if p.mode == "read" and p.event.node.span.line > a.event.node.span.line:
                # met the wrong way round: who reads what stands earlier in the text comes too early
                first, other = p, a
            text = (
                f"{an} announces what {pn} writes to {tensor.name}, but one thread sets the flag and no sync of "
                f"{p.unit.label} comes before"
                if a.mode == "flag"
                else f"{name_of(first.event)} {verb[first.mode]} elements of {tensor.name} that {other.unit.label} "
                f"{verb[other.mode]} ({name_of(other.event)}); nothing orders the two"
            )
        self.log.add(
            "data",
            name,
            first.event.node.span,
            text,
            role=first.unit.role.name,
            resource=tensor.name,
            op=name_of(first.event),
            related=((other.event.node.span, where(other.unit, other.event)),),
            steps=((p.event.node.span, where(p.unit, p.event)), (a.event.node.span, where(a.unit, a.event))),
            group=(tensor.name,),
        )
