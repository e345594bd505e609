"""Two accesses that nothing orders: which thing is missing, and at which op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analyses.order import findings as rule
from analyses.order.engines import ENGINES, generic
from analyses.order.log import name_of, root, view_name, where
from analyses.order.releases import first_release
from cake_ir.skeleton import Event, ViewAt

if TYPE_CHECKING:
    from analyses.order.accesses import Accesses
    from analyses.order.shadow import Access
    from analyses.order.units import Unit


def conflict(m: Accesses, p: Access, a: Access, v: ViewAt, before: str, mode: str, fault: str) -> None:
    """p came first (a write or read); a, just issued, meets it without order or without a fence."""
    what = view_name(v)
    name, primary, owner, text = _classify(m, p, a, what, before, mode, fault)
    buffer = v.view.buffer.name
    other = p.event if primary is a.event else a.event
    other_unit = p.unit if primary is a.event else a.unit
    related = [(other.node.span, f"{where(other_unit, other)}")]
    if primary is not a.event and primary is not p.event:
        related = [(p.event.node.span, where(p.unit, p.event)), (a.event.node.span, where(a.unit, a.event))]
    steps = [
        (
            p.event.node.span,
            f"{where(p.unit, p.event)} {_verb(p, before)} {buffer}"
            + (f" (use {p.use})" if v.view.buffer.staged else ""),
        )
    ]
    release = first_release(p)
    if release is not None:
        steps.append((release.node.span, f"{where(p.unit, release)}: what this unit releases next"))
    steps.append((a.event.node.span, f"{where(a.unit, a.event)} {'reads' if mode == 'read' else 'writes'} {what}"))
    m.log.raced.add(buffer)
    group: tuple[Any, ...] = ()
    if name == rule.READ_BEFORE_ARRIVAL:
        signal = p.event.vals.get("signal", a.event.vals.get("signal"))
        group = (signal.barrier,) if signal is not None else ()
        m.log.early_reads.add(m.storage.root[v.view.buffer].name)
    elif name == rule.FENCE_WRITE:
        group = (a.event.node.span.line,)
    key = m.log.add(
        "data",
        name,
        primary.node.span,
        text,
        role=owner.role.name,
        # what a copy fills, also where another name of the storage meets it
        resource=p.view.view.buffer.name if name == rule.CP_ASYNC_COUNT else buffer,
        op=name_of(primary),
        stage=v.slot if v.view.buffer.staged else None,
        related=tuple(related),
        steps=tuple(steps),
        group=group,
    )
    m.log.pairs.setdefault(key, (buffer, frozenset((p.event.node.span, a.event.node.span))))
    if root(p.unit).role is not root(a.unit).role:
        m.log.across.add(key)
    if name == rule.SLOT_REUSE and p.engine == "tma":
        m.log.reuse.setdefault(key, m.storage.root[v.view.buffer].name)


def _verb(p: Access, before: str) -> str:
    return {"tma": "starts to fill", "bulk": "starts to read", "wgmma": "starts to read", "tc": "starts to use"}.get(
        p.engine, "reads" if before == "read" else "writes"
    )


def _classify(
    m: Accesses, p: Access, a: Access, what: str, before: str, mode: str, fault: str
) -> tuple[str, Event, Unit, str]:
    """(rule, primary event, its unit, message)."""
    an, pn = name_of(a.event), name_of(p.event)
    if fault == "fence":
        if before == "write":
            return (
                rule.FENCE_WRITE,
                p.event,
                p.unit,
                f"{pn} writes {what} through the generic proxy and {an} {'reads' if mode == 'read' else 'overwrites'} "
                "it through the async proxy, with no fence_async by the writer before its release",
            )
        return (
            rule.FENCE_RELEASE,
            p.event,
            p.unit,
            f"{pn} reads {what} through the generic proxy and {an} overwrites it through the async proxy, "
            "with no fence_async by the reader before it releases the memory",
        )
    if (
        before == "read"
        and mode == "write"
        and (
            root(p.unit) is not root(a.unit)
            or (p.blank and None not in (p.unit.parent, a.unit.parent) and p.unit is not a.unit)
        )
        and (p.blank or (p.use == a.use and (p.use > 0 or _earlier_text(p, a))))
    ):
        return _too_early(p, a, what)
    if before == "write" and mode == "read" and root(p.unit) is not root(a.unit) and _aliased(m, p, a):
        return (
            rule.SLOT_REUSE if p.engine == "tma" else rule.OVERWRITTEN,
            p.event,
            p.unit,
            f"{pn} overwrites {what}, whose storage {p.view.view.buffer.name} shares, while {a.unit.label} may still read it ({an})",
        )
    if p.engine in ENGINES:
        return ENGINES[p.engine](m, p, a, what, before, mode)
    return generic(m, p, a, what, before, mode)


def _earlier_text(p: Access, a: Access) -> bool:
    """Whether the write `a` stands before the read `p` in the text of one iteration: the read is meant to come later."""
    return p.event.path == a.event.path and p.event.node.span.line > a.event.node.span.line


def _aliased(m: Accesses, p: Access, a: Access) -> bool:
    """Whether p writes through another name over contents that were written under the name that a reads."""
    mine = a.view.view.buffer
    return p.view.view.buffer is not mine and any(mine in cell.writers for cell, _ in m.storage.locate(a.view))


def _too_early(p: Access, a: Access, what: str) -> tuple[str, Event, Unit, str]:
    """The read came first in this run, but what it meets is the very write that it needs."""
    pn, an = name_of(p.event), name_of(a.event)
    if a.engine == "tma":
        bar = a.event.vals["signal"]
        return (
            rule.READ_BEFORE_ARRIVAL,
            p.event,
            p.unit,
            f"{pn} reads {what} before {an} has filled it: no wait for {bar.barrier.name}[{bar.use}] comes before it",
        )
    if a.engine == "tc":
        return (
            rule.COMMIT_MISSING,
            p.event,
            p.unit,
            f"{pn} touches {what} before the product that fills it is known to be done: no wait on a barrier of "
            "a tcgen05_commit after it",
        )
    inside = root(p.unit) is root(a.unit)
    name = rule.LANE_RACE if inside else rule.UNSYNCED_READ
    return name, p.event, p.unit, f"{pn} reads {what}; nothing orders it after {an} by {a.unit.label}"
