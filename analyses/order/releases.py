"""What a unit releases after an access, and what another unit has learned of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cake_ir.skeleton import Event

if TYPE_CHECKING:
    from analyses.order.shadow import Access
    from analyses.order.units import Unit


def first_release(p: Access) -> Event | None:
    """The first release by p's unit after p."""
    return next((r[3] for _, r in _later_releases(p)), None)


def known_release(p: Access, a: Access) -> Event | None:
    """A release by p's unit, after p was issued, that a's unit has learned of: the one of p's own use if there is one,
    for that is what the refill waits for; a turn passed to a neighbour also comes after p, but frees nothing."""
    known = a.unit.KL if a.thread else a.unit.K
    first = None
    for u, (tick, tick_l, thread, e, *_) in _later_releases(p):
        learned = tick_l <= known[u.L] if thread else tick <= known[u.R]
        if not learned:
            continue
        bar = e.vals.get("bar")
        if e.node.name == "arrive" and bar is not None and bar.use == p.use:
            return e
        first = first or e
    return first


def _later_releases(p: Access) -> Iterator[tuple[Unit, tuple[Any, ...]]]:
    """(unit, release): what p's unit releases after p; also its warps for it one by one, and its warpgroup for a warp."""
    u = p.unit
    for r in u.releases:
        if (p.ticks[1] <= r[1]) if r[2] else (p.ticks[0] <= r[0]):
            yield u, r
    for c in u.children:
        yield from ((c, r) for r in c.releases if r[5] >= p.ticks[0])
    if u.parent is not None:
        yield from ((u.parent, r) for r in u.parent.releases if r[1] >= p.above)


def early_release(p: Access, a: Access) -> Event | None:
    """A release of p's very use by p's unit, before p, that a's unit has learned of. An arrival at which the unit then meets
    the others is none: it hands over what came before it. Named barriers have no use numbers; there the iteration tells."""
    known = a.unit.KL if a.thread else a.unit.K
    u = p.unit
    if p.view.view.buffer is not a.view.view.buffer:
        return None
    for _, tick_l, _, e, *_ in reversed(u.releases):
        bar = e.vals.get("bar")
        if (
            tick_l < p.ticks[1]
            and tick_l <= known[u.L]
            and bar is not None
            and (
                (e.node.name == "arrive" and bar.use == p.use and not _met(u, e, p.event))
                or (e.node.name == "named_arrive" and e.path == p.event.path)
            )
        ):
            return e
    return None


def _met(u: Unit, arrival: Event, until: Event) -> bool:
    """Whether the unit waits for the completion that it arrived for, before `until`."""
    bar, begun = arrival.vals["bar"], False
    for e in u.events[: u.pc + 1]:
        if e is until:
            return False
        begun = begun or e is arrival
        if (
            begun
            and getattr(e.node, "name", "") == "wait"
            and e.vals["bar"].barrier is bar.barrier
            and e.vals["bar"].use == bar.use
        ):
            return True
    return False
