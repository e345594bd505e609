"""What is missing between two accesses, by the engine that made the first one: copies, products, groups, plain code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analyses.order import findings as rule
from analyses.order.log import name_of, root, view_name
from analyses.order.releases import early_release, known_release
from cake_ir.skeleton import Event

if TYPE_CHECKING:
    from analyses.order.accesses import Accesses
    from analyses.order.shadow import Access
    from analyses.order.units import Unit


def _signal(x: Access) -> tuple[Any, ...] | None:
    """The use of a barrier that a copy signals, and its iteration. A second copy into one place for one use is no refill,
    whoever issues it."""
    bar = x.event.vals.get("signal")
    return None if bar is None else (bar.barrier, bar.use, x.event.path)


def _released_unfilled(m: Accesses, p: Access, a: Access) -> tuple[Event, Unit] | None:
    """The arrival that the copy `a` waited for although it came before the fill `p` was waited for, with its unit. The
    wait that belongs to a copy is the last one before it, with no other barrier's traffic in between."""
    mine = a.event.vals["signal"].barrier
    for e in reversed(a.unit.events[: a.unit.pc]):
        bar = e.vals.get("bar", e.vals.get("signal"))
        if bar is None or bar.barrier is mine:
            continue
        if e.node.name != "wait" or bar.use != p.use:
            return None
        known = a.unit.KL if a.thread else a.unit.K
        for u in m.units:
            for _, tick_l, _, r, *_ in u.releases:
                to = r.vals.get("bar")
                if r.node.name == "arrive" and to is not None and to[:4] == bar[:4] and tick_l <= known[u.L]:
                    return r, u
        return None
    return None


def _tma(m: Accesses, p: Access, a: Access, what: str, before: str, mode: str) -> tuple[str, Event, Unit, str]:
    an = name_of(a.event)
    if a.engine != "tma" and p.use != a.use:
        return (
            rule.SLOT_REUSE,
            p.event,
            p.unit,
            f"{name_of(p.event)} refills the slot of {what} with use {p.use} while {a.unit.label} may still use it "
            f"({an}): no wait for its release comes before the copy",
        )
    if a.engine == "tma" and _signal(p) is not None and _signal(p) == _signal(a):
        m.log.doubled = True
        return (
            rule.WRITE_IN_FLIGHT,
            a.event,
            a.unit,
            f"{an} fills {what}, which {name_of(p.event)} already fills for the same use of its barrier: one of the two "
            "goes to the wrong place",
        )
    if a.engine == "tma" and (found := _released_unfilled(m, p, a)) is not None:
        release, unit = found
        return (
            rule.RELEASED_EARLY,
            release,
            unit,
            f"{what}: use {p.use} is released here before {name_of(p.event)} is known to have filled it, and {an} refills it",
        )
    if a.engine == "tma":
        return (
            rule.SLOT_REUSE,
            a.event,
            a.unit,
            f"{an} refills {what} while use {p.use} of the slot is still being filled or read: "
            "nothing orders this copy after the release of that use",
        )
    if mode == "read":
        only = " (only the first thread has waited; the other lanes have not)" if a.unit.KL[p.comp] >= p.epoch else ""
        bar = p.event.vals["signal"]
        return (
            rule.READ_BEFORE_ARRIVAL,
            a.event,
            a.unit,
            f"{an} reads {what} before {name_of(p.event)} has filled it: no wait for "
            f"{bar.barrier.name}[{bar.use}] comes before it{only}",
        )
    return rule.WRITE_IN_FLIGHT, a.event, a.unit, f"{an} writes {what} while {name_of(p.event)} may still be filling it"


def _wgmma(m: Accesses, p: Access, a: Access, what: str, before: str, mode: str) -> tuple[str, Event, Unit, str]:
    an = name_of(a.event)
    if root(p.unit) is root(a.unit):
        return (
            rule.WGMMA_RELEASE,
            a.event,
            a.unit,
            f"{an} overwrites {what} that a pending wgmma of the same unit still reads; no wgmma_wait covers it",
        )
    release = known_release(p, a)
    if release is not None:
        depth = (
            f"; {p.unit.wg.committed - p.unit.wg.done} groups stay pending"
            if p.unit.wg.wait
            else "; there is no wgmma_wait"
        )
        return (
            rule.WGMMA_RELEASE,
            release,
            p.unit,
            f"{what} is released while the wgmma that reads use {p.use} is still pending, and {an} "
            f"overwrites it{depth}",
        )
    return _not_released(p, a, what)


def _not_released(p: Access, a: Access, what: str) -> tuple[str, Event, Unit, str]:
    an = name_of(a.event)
    early = early_release(p, a)
    if early is not None:
        return (
            rule.RELEASED_EARLY,
            early,
            p.unit,
            f"{what}: use {p.use} is released here, but {name_of(p.event)} still reads it afterwards, and {an} "
            "overwrites it",
        )
    if a.engine == "tma":
        other = p.view.view.buffer
        whose = (
            f"use {p.use}"
            if other is a.view.view.buffer
            else f"{other.name}, which shares its storage ({name_of(p.event)})"
        )
        return (
            rule.SLOT_REUSE,
            a.event,
            a.unit,
            f"{an} refills {what} while {p.unit.label} may still use {whose}: no wait for its release comes before the copy",
        )
    return (
        rule.OVERWRITTEN,
        a.event,
        a.unit,
        f"{an} overwrites {what} while {p.unit.label} may still read it ({name_of(p.event)})",
    )


def _round_known(p: Access, a: Access) -> bool:
    """Whether the reader of `a` has waited for a commit behind the last product of its own round."""
    mine = a.event.path[:1]
    products = [i for i, e in enumerate(p.unit.events) if e.node is p.event.node and e.path[:1] == mine]
    if not products:
        return False
    waited = [e.vals["bar"] for e in a.unit.events[: a.unit.pc] if getattr(e.node, "name", "") == "wait"]
    behind = (
        e.vals["bar"] for e in p.unit.events[products[-1] + 1 :] if getattr(e.node, "name", "") == "tcgen05_commit"
    )
    return any(w.barrier is c.barrier and w.use == c.use for c in behind for w in waited)


def _tc(m: Accesses, p: Access, a: Access, what: str, before: str, mode: str) -> tuple[str, Event, Unit, str]:
    an = name_of(a.event)
    release = known_release(p, a)
    if a.engine == "tma" and release is None:
        early = next((e for tc, e in p.unit.commits if tc < p.epoch and e.vals["bar"].use == p.use), None)
        if early is not None:
            return (
                rule.COMMIT_MISSING,
                early,
                p.unit,
                f"this tcgen05_commit covers only what was issued before it, not the {name_of(p.event)} that reads {what} "
                f"afterwards, and {an} overwrites it",
            )
        return _not_released(p, a, what)
    if release is not None and release.node.name == "arrive":
        return (
            rule.COMMIT_MISSING,
            release,
            p.unit,
            f"{what} is released by a plain arrive while {name_of(p.event)} is still pending; only a "
            f"tcgen05_commit arrives when it is done, and {an} touches it",
        )
    if mode == "read" and before != "read" and p.event.path[:1] > a.event.path[:1] and _round_known(p, a):
        return (  # this run has the product of a later round first
            rule.OVERWRITTEN,
            p.event,
            p.unit,
            f"{name_of(p.event)} of a later round writes {what} while {a.unit.label} may still read it ({an})",
        )
    return (
        rule.COMMIT_MISSING,
        a.event,
        a.unit,
        f"{an} touches {what} before the product that uses it is known to be done: no wait on a barrier of a "
        "tcgen05_commit after it",
    )


def _bulk(m: Accesses, p: Access, a: Access, what: str, before: str, mode: str) -> tuple[str, Event, Unit, str]:
    an = name_of(a.event)
    group = p.unit.bulk_l if p.thread else p.unit.bulk
    if p.epoch > group.committed:
        return (
            rule.BULK_DEPTH,
            a.event,
            a.unit,
            f"{an} overwrites {what} while {name_of(p.event)} reads it; its bulk group is not even committed",
        )
    release = known_release(p, a)
    if p.epoch <= group.done and release is not None and group.wait is not None and root(p.unit) is not root(a.unit):
        e, k = group.wait  # it has waited by now, but had not when it released
        return (
            rule.BULK_DEPTH,
            e,
            p.unit,
            f"{name_of(e)}({k}) leaves the bulk group pending that reads {what}, which is released next and which {an} "
            "overwrites; wait for it before the release",
        )
    if p.epoch <= group.done:
        return (
            rule.UNSYNCED_WRITE,
            a.event,
            a.unit,
            f"{an} overwrites {what}; {p.unit.label} has waited for the bulk read, but no sync carries that to "
            f"every thread of {a.unit.label}",
        )
    need = group.committed - p.epoch
    if group.wait is not None and group.wait[1] <= need:
        e, k = group.wait
        return (
            rule.BULK_DEPTH,
            a.event,
            a.unit,
            f"{an} overwrites {what} while {name_of(p.event)} may still read it; the wait of its thread, {name_of(e)}({k}), "
            "comes before the group that reads it was committed",
        )
    if group.wait is not None:
        e, k = group.wait
        return (
            rule.BULK_DEPTH,
            e,
            p.unit,
            f"{name_of(e)}({k}) leaves the bulk group pending that still reads {what}, which {an} overwrites; at most "
            f"{need} may stay pending there",
        )
    for other in m.units:
        for g in (other.bulk, other.bulk_l):
            if g.wait is not None and g.last is None and (root(other) is not root(p.unit) or g is not group):
                return (
                    rule.GROUP_OWNER,
                    g.wait[0],
                    other,
                    f"this waits for groups of {other.label}, but {what} is read by a bulk group that "
                    f"{p.unit.label} issued; {an} overwrites it",
                )
    return (
        rule.BULK_DEPTH,
        a.event,
        a.unit,
        f"{an} overwrites {what} while {name_of(p.event)} may still read it; its thread has no bulk_wait_read before",
    )


def _cp(m: Accesses, p: Access, a: Access, what: str, before: str, mode: str) -> tuple[str, Event, Unit, str]:
    an, group = name_of(a.event), p.unit.cp
    if p.view.view.buffer is not a.view.view.buffer:
        what = f"{what}, which shares storage with {view_name(p.view)},"
    verb = "reads" if mode == "read" else "overwrites"
    signal = next((r[3] for r in reversed(p.unit.releases) if r[3].node.name == "cp_async_arrive"), None)
    if signal is not None:  # the copies arrive on a barrier instead of being waited for in groups
        bar = signal.vals["bar"].barrier.name
        if mode == "read" and p.use > a.use:
            return (
                rule.SLOT_REUSE,
                p.event,
                p.unit,
                f"cp_async refills the slot of {what} with use {p.use} while {a.unit.label} may still use it ({an}): no wait "
                "for its release comes before the copy",
            )
        if mode == "read":
            return (
                rule.READ_BEFORE_ARRIVAL,
                a.event,
                a.unit,
                f"{an} reads {what} before cp_async has filled it: no wait for its use of {bar} comes before it",
            )
        return (
            rule.SLOT_REUSE,
            a.event,
            a.unit,
            f"{an} refills {what} while use {p.use} of the slot is still being filled or read: nothing orders it after the "
            "release of that use",
        )
    if mode == "read" and root(p.unit) is not root(a.unit) and (p.use > a.use or _later(p, a)):
        return (
            rule.OVERWRITTEN,
            p.event,
            p.unit,
            f"cp_async overwrites {f'the slot of {what} with use {p.use}' if p.use > a.use else what} while {a.unit.label} may "
            f"still read it ({an})",
        )
    if p.epoch > group.committed:
        return (
            rule.CP_ASYNC_COUNT,
            a.event,
            a.unit,
            f"{an} {verb} {what} while its cp_async is not even committed to a group",
        )
    known = a.unit.KL if a.thread else a.unit.K
    own = root(p.unit) is root(a.unit)
    # another unit may have run ahead: what counts is what it had waited for when it last synchronised with the reader
    if p.epoch > group.done if own else known[p.unit.R] >= p.ticks[0]:
        if group.wait is not None:
            e, k = group.wait
            allowed = group.may_stay(p.epoch)
            return (
                rule.CP_ASYNC_COUNT,
                e,
                p.unit,
                f"cp_async_wait({k}) leaves the group pending that fills {what}, which {an} {verb}; at most {allowed} may stay "
                "pending here"
                if allowed >= 0
                else f"cp_async_wait({k}) comes before the group is committed that fills {what}, which {an} {verb}",
            )
        return (
            rule.CP_ASYNC_COUNT,
            a.event,
            a.unit,
            f"{an} {verb} {what} and no cp_async_wait covers the group that fills it",
        )
    return (
        (rule.UNSYNCED_READ if mode == "read" else rule.UNSYNCED_WRITE),
        a.event,
        a.unit,
        f"{an} {verb} {what}; its cp_async is done for the thread that waited, "
        f"but no sync carries that to the other threads",
    )


def _tld(m: Accesses, p: Access, a: Access, what: str, before: str, mode: str) -> tuple[str, Event, Unit, str]:
    an = name_of(a.event)
    release = known_release(p, a)
    if release is not None:
        done = next((d for _, _, _, e, d, _ in p.unit.releases if e is release), p.unit.tld_done)
        if p.epoch <= done:
            return (
                rule.RELEASE_MISSES_LANES,
                release,
                p.unit,
                f"one thread releases {what}, but {name_of(p.event)} was executed by all warps of "
                f"{p.unit.label} and no sync of the unit comes before the release; {an} overwrites it",
            )
        return (
            rule.TMEM_LOAD_WAIT,
            release,
            p.unit,
            f"{what} is released while {name_of(p.event)} may still read it: no tmem_load_wait comes before "
            f"the release, and {an} overwrites it",
        )
    return _not_released(p, a, what)


def _tst(m: Accesses, p: Access, a: Access, what: str, before: str, mode: str) -> tuple[str, Event, Unit, str]:
    an = name_of(a.event)
    if p.epoch > p.unit.tst_done:
        return (
            rule.TMEM_STORE_WAIT,
            a.event,
            a.unit,
            f"{an} uses {what} while {name_of(p.event)} is pending; no tmem_store_wait covers it",
        )
    return (
        (rule.UNSYNCED_READ if mode == "read" else rule.UNSYNCED_WRITE),
        a.event,
        a.unit,
        f"{an} uses {what}; nothing orders it after {name_of(p.event)}",
    )


ENGINES = {"tma": _tma, "wgmma": _wgmma, "tc": _tc, "bulk": _bulk, "cp_async": _cp, "tld": _tld, "tst": _tst}


def _later(p: Access, a: Access) -> bool:
    """Whether p, which ran first, comes later in the program that both instances of one role run."""
    if root(p.unit).role is not root(a.unit).role or p.unit.parent is not None or a.unit.parent is not None:
        return False
    ahead, behind = p.unit.events, a.unit.events
    return len(ahead) == len(behind) and any(e is p.event for e in ahead[a.unit.pc + 1 :])


def generic(m: Accesses, p: Access, a: Access, what: str, before: str, mode: str) -> tuple[str, Event, Unit, str]:
    an, pn = name_of(a.event), name_of(p.event)
    if root(p.unit) is root(a.unit):
        return (
            rule.LANE_RACE,
            a.event,
            a.unit,
            f"{an} {'reads' if mode == 'read' else 'writes'} {what} that other lanes of {root(a.unit).label} "
            f"{'wrote' if before == 'write' else 'read'} ({pn}) with no sync in between",
        )
    release = known_release(p, a)
    if release is not None and not p.thread:
        return (
            rule.RELEASE_MISSES_LANES,
            release,
            p.unit,
            f"one thread releases {what}, but {pn} was executed by all lanes of {p.unit.label} and no sync "
            f"of the unit comes before the release; {an} {'reads' if mode == 'read' else 'overwrites'} it",
        )
    if before == "read":
        return _not_released(p, a, what)
    if mode == "read" and (p.use > a.use or _later(p, a)):
        return (
            rule.OVERWRITTEN,
            p.event,
            p.unit,
            f"{pn} overwrites {f'the slot of {what} with use {p.use}' if p.use > a.use else what} while "
            f"{a.unit.label} may still read it ({an})",
        )
    if mode == "read":
        return rule.UNSYNCED_READ, a.event, a.unit, f"{an} reads {what}; nothing orders it after {pn} by {p.unit.label}"
    if a.engine == "tma":
        return _not_released(p, a, what)
    return rule.UNSYNCED_WRITE, a.event, a.unit, f"{an} writes {what}; nothing orders it with {pn} by {p.unit.label}"
