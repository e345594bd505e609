"""From a fault in the run to one finding: which rule, at which op, with whom, and how it came about."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from analyses.order import findings as rule
from analyses.order.log import name_of, view_name, where
from analyses.order.shadow import subtract
from cake_ir.bound import Op, walk
from cake_ir.derive.arrivals import receivers
from cake_ir.diagnostics import Span
from cake_ir.skeleton import BarAt, Event, RegionAt, ViewAt
from cake_ir.witness import iter_events

if TYPE_CHECKING:
    from analyses.order.machine import Machine
    from analyses.order.shadow import Access, Cell
    from analyses.order.units import Bucket, Group, Round, Slot, Unit

# ---- memory and registers without contents


def uninitialised(m: Any, u: Unit, e: Event, v: ViewAt, holes: bool = False) -> None:
    """A read of what nothing has written; holes: of what only stores under a mask have written, which is a fault where the
    value reading says so."""
    what = view_name(v)
    name = rule.UNINIT_ACC if e.node.name == "tcgen05_mma" and v.view.buffer.space == "tmem" else rule.UNINIT_MEMORY
    text = (
        f"tcgen05_mma accumulates onto {what}, which nothing has filled; the first product needs init"
        if name == rule.UNINIT_ACC
        else f"{e.node.name} reads {what}, part of which nothing has written"
    )
    m.log.add(
        "holes" if holes else "data",
        name,
        e.node.span,
        text,
        role=u.role.name,
        resource=v.view.buffer.name,
        op=e.node.name,
        steps=((v.view.buffer.span, "declared here, contents undefined"), (e.node.span, where(u, e))),
    )


def overlay(m: Any, a: Access, cell: Cell) -> None:
    """A read that meets contents which another buffer of the same storage wrote last."""
    mine = a.view.view.buffer
    r0, r1, c0, c1 = a.box
    met = (  # the latest first
        p for p in reversed(cell.writes.values()) if (q := p.box)[0] < r1 and r0 < q[1] and q[2] < c1 and c0 < q[3]
    )
    if mine not in cell.writers:
        met = list(met)
        if all(_same_form(mine, p.view.view.buffer) for p in met):
            return  # another name of the same tile: nothing of its own was there that could be stale
    rest = [a.box]
    for p in met:
        left = [piece for r in rest for piece in subtract(r, p.box)]
        masked = p.event.node.operands.get("when") is not None
        if left != rest and p.view.view.buffer is not mine and not masked:
            break
        if not masked:
            rest = left
            if not rest:
                return
    else:
        return
    other = p.view.view.buffer
    m.log.add(
        "data",
        rule.OVERLAY_READ,
        a.event.node.span,
        f"{name_of(a.event)} reads {view_name(a.view)}, but the memory holds "
        f"{view_name(p.view)} ({where(p.unit, p.event)})",
        role=a.unit.role.name,
        resource=mine.name,
        op=name_of(a.event),
        related=((p.event.node.span, f"{other.name} is written here"), (mine.span, "they share storage")),
        group=(mine.name,),
    )


def _same_form(a: Any, b: Any) -> bool:
    """Whether two buffers of one storage put each element at the same bytes."""
    return (a.dtype, a.dims, a.stages, a.swizzle, a.pad) == (b.dtype, b.dims, b.stages, b.swizzle, b.pad)


def poison(m: Any, u: Unit, e: Event, frag: Any, born: Event) -> None:
    m.log.add(
        "data",
        rule.UNINIT_REGISTER,
        e.node.span,
        f"{frag.name} is read, but has no contents: it was made without fill",
        role=u.role.name,
        resource=frag.name,
        op=name_of(e),
        related=((born.node.span, "made here"),),
        group=(frag.name,),
    )


def poison_acc(m: Any, u: Unit, e: Event, frag: Any, born: Event) -> None:
    m.log.add(
        "data",
        rule.UNINIT_ACC,
        e.node.span,
        f"{name_of(e)} accumulates onto {frag.name}, which has no contents: use init on the first product or a fill",
        role=u.role.name,
        resource=frag.name,
        op=name_of(e),
        related=((born.node.span, "made here without fill"),),
        group=(frag.name,),
    )


def early(m: Any, u: Unit, e: Event, frag: Any, state: tuple[str, int, Event], verb: str) -> None:
    kind, number, source = state
    if kind == "wgmma":
        left = u.wg.committed - number if not (number > u.wg.committed) else 0
        why = (
            "its group is not committed" if number > u.wg.committed else f"wgmma_wait({left}) or less is needed before"
        )
        m.log.add(
            "data",
            rule.ACC_READ_EARLY,
            e.node.span,
            f"{frag.name} is {verb} while the wgmma that uses it is pending; {why}",
            role=u.role.name,
            resource=frag.name,
            op=name_of(e),
            related=((source.node.span, where(u, source)),),
            group=(frag.name,),
            steps=((source.node.span, where(u, source)), (e.node.span, where(u, e))),
        )
    else:
        m.log.add(
            "data",
            rule.TMEM_LOAD_WAIT,
            e.node.span,
            f"{frag.name} is {verb} before tmem_load_wait",
            role=u.role.name,
            resource=frag.name,
            op=name_of(e),
            related=((source.node.span, where(u, source)),),
            group=(frag.name,),
        )


def griddep(m: Any, u: Unit, e: Event, at: RegionAt) -> None:
    t = at.region.tensor
    m.log.add(
        "data",
        rule.GRIDDEP,
        e.node.span,
        f"{u.label} touches {t.name} before its griddep_wait, while the predecessor grid may still run",
        role=u.role.name,
        resource=t.name,
        op=e.node.name,
        related=((t.span, f"{t.name}: {t.direction}"),),
    )


# ---- barrier protocol


def overrun(m: Machine, u: Unit, e: Event, slot: Slot, phase: int, known: int) -> None:
    now = (
        f"meets phase {slot.done} of the slot, not its own phase {phase}"
        if slot.done != phase
        else f"is not ordered after the completion of phase {phase - 1} of the slot"
    )
    m.log.add(
        "late",
        rule.PHASE_OVERRUN,
        e.node.span,
        f"{name_of(e)} for {slot.name(phase)} {now}",
        role=u.role.name,
        resource=slot.barrier.name,
        op=name_of(e),
        stage=slot.index,
        related=((slot.barrier.span, f"{slot.barrier.stages} stages"),),
        steps=((e.node.span, where(u, e)),),
    )


def drift(m: Machine, u: Unit, e: Event, slot: Slot, phase: int) -> None:
    bar = e.vals["bar"] if "bar" in e.vals else e.vals["signal"]
    m.log.add(
        "data",
        rule.PHASE_DRIFT,
        e.node.span,
        f"{name_of(e)} uses number {bar.use} of {slot.barrier.name} again: it means parity {bar.phase % 2}, but the "
        f"slot is in phase {phase} (parity {phase % 2})",
        role=u.role.name,
        resource=slot.barrier.name,
        op=name_of(e),
        stage=slot.index,
        steps=((e.node.span, where(u, e)),),
        group=(slot.barrier.name,),
    )


def wait_ahead(m: Machine, u: Unit, e: Event, slot: Slot, phase: int, known: int) -> None:
    m.log.add(
        "late",
        rule.WAIT_AHEAD,
        e.node.span,
        f"the wait for {slot.name(phase)} may pass at once: {u.label} does not know that "
        f"{slot.name(phase - 1)} has completed, and a slot {phase - known} phases behind shows the same parity",
        role=u.role.name,
        resource=slot.barrier.name,
        op="wait",
        stage=slot.index,
        related=((slot.barrier.span, f"{slot.barrier.stages} stages"),),
    )


def missed(m: Machine, u: Unit, e: Event, slot: Slot, phase: int, b: Bucket | None) -> None:
    by = f" ({where(*b.arrivals[-1])})" if b is not None and b.arrivals else ""
    m.log.add(
        "late",
        rule.PHASE_MISSED,
        e.node.span,
        f"the wait for {slot.name(phase)} can be overtaken: {slot.name(phase + 1)} may complete{by} before "
        f"{u.label} has passed, and the parity then looks pending",
        role=u.role.name,
        resource=slot.barrier.name,
        op="wait",
        stage=slot.index,
    )


def straggler(m: Machine, u: Unit, e: Event, slot: Slot, phase: int) -> None:
    """All lanes wait, one goes on and lets the barrier complete again; a late lane may miss the phase."""
    m.log.add(
        "warning",
        rule.WAIT_STRAGGLER,
        e.node.span,
        f"all lanes of {u.label} wait for {slot.name(phase)}, but one thread goes on without a sync and {slot.name(phase + 1)} "
        "may complete before a late lane has looked; let that thread wait alone, or add a sync",
        role=u.role.name,
        resource=slot.barrier.name,
        op="wait",
        stage=slot.index,
    )


def over_arrival(m: Machine, u: Unit, e: Event, slot: Slot, phase: int) -> None:
    m.log.add(
        "data",
        rule.OVER_ARRIVAL,
        e.node.span,
        f"{slot.name(phase)} of CTA {slot.cta} gets more than its {slot.count} arrivals",
        role=u.role.name,
        resource=slot.barrier.name,
        op=name_of(e),
        related=((slot.barrier.span, "declared here"),),
    )


def negative(m: Machine, u: Unit, e: Event, slot: Slot, use: int) -> None:
    m.log.add(
        "data",
        rule.NEGATIVE_USE,
        e.node.span,
        f"{name_of(e)} names use {use} of {slot.barrier.name}",
        role=u.role.name,
        resource=slot.barrier.name,
        op=name_of(e),
    )


def negative_view(m: Any, u: Unit, e: Event, v: ViewAt, mode: str) -> None:
    """A slot below the first. What reads there mostly reads what nothing has written, which says more."""
    name = v.view.buffer.name
    m.log.add(
        "late" if mode == "read" else "data",
        rule.NEGATIVE_USE,
        e.node.span,
        f"{name_of(e)} names use {v.use} of {name}",
        role=u.role.name,
        resource=name,
        op=name_of(e),
    )


def named_overrun(m: Machine, u: Unit, e: Event, key: Any, number: int) -> None:
    name = f"{key[1].name}[{key[2]}]"
    m.log.add(
        "late",
        rule.NAMED_OVERRUN,
        e.node.span,
        f"{u.label} enters round {number} of {name} without knowing that round {number - 1} is complete",
        role=u.role.name,
        resource=key[1].name,
        op=name_of(e),
    )


def named_open(m: Machine, key: Any, r: Round) -> None:
    u = r.inside[0][0]
    m.log.add(
        "late",
        rule.NAMED_OPEN,
        r.first.node.span,
        f"the last round of {key[1].name}[{key[2]}] is left open: {r.missing} threads never come",
        role=u.role.name,
        resource=key[1].name,
        op=name_of(r.first),
    )


# ---- the end of the run


def deadlock(m: Machine, stuck: list[Unit]) -> None:
    """Names the wait that nothing can satisfy any more, and everybody else who is stuck."""
    blocked = [u for u in stuck if u.block is not None and u.block[0] != "warps"]
    lines = [(_event(u).node.span, f"{u.label} {_waits(m, u)}") for u in blocked]
    coming = _still_to_come(m)

    def hopeless(u: Unit) -> bool:
        if u.block[0] != "bar":
            return False
        _, slot, phase, _ = u.block
        b = slot.buckets.get(phase)
        key = (slot.barrier, slot.cta, phase * slot.barrier.stages + slot.index)
        return ((b is None or b.pending > 0) and ("arrive", key) not in coming) or (
            b is not None and b.tx > 0 and ("copy", key) not in coming
        )

    def skipped(u: Unit) -> bool:
        """All of the use is there, but a use before it never was: the arrivals met another phase, which is reported."""
        if u.block[0] != "bar":
            return False
        _, slot, phase, _ = u.block
        b = slot.buckets.get(phase)
        overrun = any(
            d.rule == rule.PHASE_OVERRUN and d.subject.resource == slot.barrier.name
            for d in m.log.found["late"].values()
        )
        return overrun and b is not None and b.pending <= 0 and not b.tx and slot.done < phase

    plain = _released_by_hand(m)
    lost = next((u for u in blocked if hopeless(u)), None)
    if lost is None and any(skipped(u) for u in blocked):
        return
    first = (
        lost
        # in a circle, the wait for a release is the one that a ring must be able to pass at its start
        or next((u for u in blocked if u.block[0] == "bar" and u.block[1].barrier in plain), None)
        or next((u for u in blocked if u.block[0] == "bar"), blocked[0] if blocked else stuck[0])
    )
    e = _event(first)
    related: list[tuple[Span, str]] = []
    resource = None
    ending = ""
    if first.block is not None and first.block[0] == "bar":
        bar = first.block[1].barrier
        resource = bar.name
        if hopeless(first):
            ending = "; no op that is still to run arrives there"
            for s in walk(m.bound.body):
                if (
                    isinstance(s, Op)
                    and s.name != "wait"
                    and getattr(s.operands.get("bar", s.operands.get("signal")), "barrier", None) is bar
                ):
                    related.append((s.span, f"{s.name} on {bar.name}"))
    seen = Counter(lines)
    related += [(span, text) for span, text in seen if span != e.node.span]
    m.log.add(
        "dead",
        rule.DEADLOCK,
        e.node.span,
        f"no agent can step: {first.label} {_waits(m, first)}{ending}",
        role=first.role.name,
        resource=resource,
        op=name_of(e),
        related=tuple(related[:8]),
        steps=tuple(seen)[:12],
    )


def _released_by_hand(m: Machine) -> set[Any]:
    """Barriers that only plain arrivals complete."""
    kinds: dict[Any, set[str]] = {}
    for s in walk(m.bound.body):
        if isinstance(s, Op) and s.name != "wait":
            use = s.operands.get("bar", s.operands.get("signal"))
            kinds.setdefault(getattr(use, "barrier", None), set()).add(s.name)
    return {bar for bar, names in kinds.items() if names == {"arrive"}}


def _still_to_come(m: Machine) -> set[tuple[str, tuple[Any, int, int]]]:
    """(arrive | copy, (barrier, CTA, use)) of every op that stuck units have not executed."""
    found: set[tuple[str, tuple[Any, int, int]]] = set()
    for u in m.units:
        for e in iter_events(u.events[u.pc :]):
            kind, name = ("copy", "signal") if "signal" in e.vals else ("arrive", "bar")
            bar = e.vals.get(name)
            if isinstance(bar, BarAt) and e.node.name != "wait":
                for cta in receivers(e, bar.cta, u.cta - u.cta % m.cluster, m.cluster):
                    found.add((kind, (bar.barrier, cta, bar.use)))
    return found


def _event(u: Unit) -> Event:
    return u.events[min(u.pc, len(u.events) - 1)]


def _waits(m: Machine, u: Unit) -> str:
    block = u.block
    if block is None:
        return "is not started"
    if block[0] == "bar":
        _, slot, phase, _ = block
        b = slot.buckets.get(phase)
        have = slot.count - b.pending if b else 0
        owed = (
            f", {b.tx} B outstanding"
            if b and b.tx > 0
            else f", {-b.tx} B that nobody expected"
            if b and b.tx < 0
            else ""
        )
        late = f"; the slot is still in phase {slot.done}" if slot.done < phase else ""
        return f"waits for {slot.name(phase)} of CTA {slot.cta} ({have} of {slot.count} arrivals{owed}{late})"
    if block[0] == "round":
        key = block[3]
        name = {"named": lambda: f"{key[1].name}[{key[2]}]", "role": lambda: f"sync({key[1]})"}.get(
            key[0], lambda: f"sync({key[0]})"
        )()
        return f"waits in {name} for {block[1].missing} more threads"
    return "waits for its warps"


def unawaited(m: Machine, slot: Slot, phase: int, b: Bucket) -> None:
    u, e = b.copies[0]
    m.log.add(
        "late",
        rule.COPY_UNAWAITED,
        e.node.span,
        f"nobody in CTA {slot.cta} waits for {slot.name(phase)}, so this copy may still be writing when the CTA exits",
        role=u.role.name,
        resource=slot.barrier.name,
        op=name_of(e),
        related=((slot.barrier.span, "declared here"),),
    )


def bulk_at_exit(m: Machine, u: Unit, group: Group) -> None:
    e = group.last
    assert e is not None
    m.log.add(
        "late",
        rule.BULK_AT_EXIT,
        e.node.span,
        f"{u.label} ends while {name_of(e)} may still read shared memory: "
        f"{group.newest - group.done} groups are not waited for",
        role=u.role.name,
        op=name_of(e),
        steps=((e.node.span, where(u, e)),),
    )


def cluster_exit(m: Machine, u: Unit, e: Event, cta: int) -> None:
    m.log.add(
        "late",
        rule.CLUSTER_EXIT,
        e.node.span,
        f"{where(u, e)} reaches into CTA {cta}, which may have exited: nothing there waits for it",
        role=u.role.name,
        op=name_of(e),
        steps=((e.node.span, where(u, e)),),
    )
