"""From a fault in the run to one finding: which rule, at which op, with whom, and how it came about."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from analyses.order import findings as rule
from analyses.order.shadow import subtract
from cake_ir.bound import BoundKernel, Let, Op, walk
from cake_ir.derive.arrivals import receivers
from cake_ir.diagnostics import Diagnostic, Family, Related, Span, Step, Subject
from cake_ir.skeleton import BarAt, Event, RegionAt, ViewAt, fragments, tracked_fragments
from cake_ir.witness import Witness, iter_events

if TYPE_CHECKING:
    from analyses.order.machine import Machine
    from analyses.order.shadow import Access, Cell
    from analyses.order.units import Bucket, Group, Round, Slot, Unit

MAX_RAW = 400
"""Faults of one run after which the run is cut short: one cause repeats in every iteration."""


INSIDE = (rule.CP_ASYNC_COUNT, rule.UNSYNCED_READ, rule.UNSYNCED_WRITE, rule.OVERWRITTEN, rule.LANE_RACE)
"""Guises of one missing sync or wait inside a role, the most telling first."""


class Log:
    """Collects faults over all witnesses. Classes: 'data' (certain faults), 'dead' (deadlock), 'late' (protocol doubts and
    end-of-kernel checks, reported only where nothing of the first two explains them)."""

    def __init__(self, bound: BoundKernel) -> None:
        self.bound = bound
        self.found: dict[str, dict[tuple[Any, ...], Diagnostic]] = {"data": {}, "dead": {}, "late": {}}
        self.more: dict[tuple[Any, ...], dict[Span, str]] = {}
        self.witness: Witness | None = None
        self.raw = 0
        self.early_reads: set[str] = set()
        self.across: set[tuple[Any, ...]] = set()
        self.raced: set[str] = set()
        self.reuse: dict[tuple[Any, ...], str] = {}

    def begin(self, witness: Witness) -> None:
        self.witness = witness
        self.raw = 0

    @property
    def full(self) -> bool:
        return self.raw > MAX_RAW

    def add(
        self,
        kind: str,
        name: str,
        span: Span,
        message: str,
        *,
        role: str | None = None,
        resource: str | None = None,
        op: str | None = None,
        stage: int | None = None,
        related: tuple[tuple[Span, str], ...] = (),
        steps: tuple[tuple[Span, str], ...] = (),
        group: tuple[Any, ...] = (),
    ) -> tuple[Any, ...]:
        """Files one fault; faults of one (rule, role, group) are one finding at the place met first."""
        self.raw += 1
        key = (name, role, *group)
        store = self.found[kind]
        if key in store:
            if store[key].span != span:
                self.more.setdefault(key, {}).setdefault(span, f"also here: {op}" if op else "also here")
            return key
        at = f" [{self.witness.describe()}]" if self.witness is not None and self.witness.describe() else ""
        family: Family = name.split("/")[0] if name.split("/")[0] in ("data", "schedule") else "safety"  # type: ignore[assignment]
        store[key] = Diagnostic(
            rule=name,
            family=family,
            severity="error",
            message=message + at,
            contract=rule.CONTRACTS[name],
            span=span,
            related=tuple(Related(span=s, message=m) for s, m in related),
            evidence=tuple(Step(span=s, text=t) for s, t in steps),
            subject=Subject(kernel=self.bound.name, role=role, resource=resource, stage=stage, op=op),
        )
        return key

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The findings: certain ones, else the deadlock, else the late ones. Consequences of a finding are dropped: refills
        that only look unordered because nobody waited for the fill, missing contents where the real fault is at the same
        op, and the later of two places that miss one wgmma_wait."""
        dead = dict(list(self.found["dead"].items())[:1])
        data = {
            k: d
            for k, d in self.found["data"].items()
            if self.reuse.get(k) is None or self.reuse[k] not in self.early_reads
        }
        faulty = {d.span for d in data.values() if d.rule not in (rule.UNINIT_MEMORY, rule.UNINIT_ACC, rule.OVERLAY_READ)}
        data = {
            k: d
            for k, d in data.items()
            if d.rule not in (rule.UNINIT_MEMORY, rule.OVERLAY_READ) or (d.span not in faulty and d.subject.resource not in self.raced)
        }
        # a missing sync inside one role shows at several ops and in several guises
        for role in {d.subject.role for d in data.values()}:
            inside = [k for k, d in data.items() if d.subject.role == role and d.rule in INSIDE]
            for k in sorted(inside, key=lambda k: INSIDE.index(data[k].rule))[1:]:
                if k not in self.across:
                    del data[k]
        pending = sorted(
            (d.span.line, k) for k, d in data.items() if d.rule in (rule.ACC_READ_EARLY, rule.WGMMA_RELEASE)
        )
        for _, k in pending[1:]:
            del data[k]
        drifted = {k: d for k, d in data.items() if d.rule == rule.PHASE_DRIFT}
        if drifted:  # everything after the first confused phase follows from it
            data = dict(list(drifted.items())[:1])
        chosen = dead or data or {(d.subject.resource or d.rule,): d for d in reversed(self.found["late"].values())}
        out = []
        for key, d in chosen.items():
            extra = list(self.more.get(key, {}).items())[:5]
            out.append(
                d.model_copy(update={"related": d.related + tuple(Related(span=s, message=m) for s, m in extra)})
                if extra
                else d
            )
        return tuple(out)

    @property
    def decided(self) -> bool:
        """A witness has shown a certain fault; larger ones would repeat it in other guises."""
        return bool(self.found["data"] or self.found["dead"])


# ---- naming


def where(u: Unit, e: Event) -> str:
    """Who did what, in which iteration."""
    name = e.node.name if isinstance(e.node, Op) else "assignment"
    path = f" in iteration {', '.join(map(str, e.path))}" if e.path else ""
    return f"{u.label}: {name}{path}"


def view_name(v: ViewAt) -> str:
    """The view as the author names it."""
    b = v.view.buffer
    base = f"{b.name}[{v.use}]" if b.staged else b.name
    if (v.row0, v.row1, v.col0, v.col1) == (0, b.rows, 0, b.cols):
        return base
    return (
        f"{base} rows {v.row0}..{v.row1}, columns {v.col0}..{v.col1}"
        if b.rows > 1
        else f"{base} columns {v.col0}..{v.col1}"
    )


def name_of(e: Event) -> str:
    return e.node.name if isinstance(e.node, Op) else "assignment"


def root(u: Unit) -> Unit:
    return u.parent or u


def fragment_reads(bound: BoundKernel) -> tuple[dict[int, tuple[Any, ...]], dict[Let, tuple[Any, ...]]]:
    """Tracked fragments read by each op (by site; accumulators apart) and by each assignment."""
    tracked = tracked_fragments(bound)
    ops: dict[int, tuple[Any, ...]] = {}
    lets: dict[Let, tuple[Any, ...]] = {}
    for s in walk(bound.body):
        if isinstance(s, Op):
            reads: set[Any] = set()
            for name, value in s.operands.items():
                if name != "acc":
                    reads |= fragments(value) & tracked
            if reads:
                ops[s.site] = tuple(reads)
        elif isinstance(s, Let):
            lets[s] = tuple(fragments(s.value) & tracked)
    return ops, lets


# ---- conflicts of accesses


def conflict(m: Machine, p: Access, a: Access, v: ViewAt, before: str, mode: str, fault: str) -> None:
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
    release = _release(p)
    if release is not None:
        steps.append((release.node.span, f"{where(p.unit, release)}: what this unit releases next"))
    steps.append((a.event.node.span, f"{where(a.unit, a.event)} {'reads' if mode == 'read' else 'writes'} {what}"))
    m.log.raced.add(buffer)
    group: tuple[Any, ...] = ()
    if name == rule.READ_BEFORE_ARRIVAL:
        signal = p.event.vals.get("signal", a.event.vals.get("signal"))
        group = (signal.barrier,) if signal is not None else ()
        m.log.early_reads.add(buffer)
    elif name == rule.FENCE_WRITE:
        group = (buffer,)
    key = m.log.add(
        "data",
        name,
        primary.node.span,
        text,
        role=owner.role.name,
        resource=buffer,
        op=name_of(primary),
        stage=v.slot if v.view.buffer.staged else None,
        related=tuple(related),
        steps=tuple(steps),
        group=group,
    )
    if root(p.unit).role is not root(a.unit).role:
        m.log.across.add(key)
    if name == rule.SLOT_REUSE and p.engine == "tma":
        m.log.reuse.setdefault(key, buffer)


def _verb(p: Access, before: str) -> str:
    return {"tma": "starts to fill", "bulk": "starts to read", "wgmma": "starts to read", "tc": "starts to use"}.get(
        p.engine, "reads" if before == "read" else "writes"
    )


def _release(p: Access) -> Event | None:
    """The first release by p's unit after p."""
    for tick, tick_l, thread, e, _ in p.unit.releases:
        if (tick_l >= p.ticks[1]) if thread else (tick >= p.ticks[0]):
            return e
    return None


def _known_release(p: Access, a: Access) -> Event | None:
    """A release by p's unit, after p was issued, that a's unit has learned of."""
    known = a.unit.KL if a.thread else a.unit.K
    u = p.unit
    for tick, tick_l, thread, e, _ in u.releases:
        if thread:
            if p.ticks[1] <= tick_l <= known[u.L]:
                return e
        elif p.ticks[0] <= tick <= known[u.R]:
            return e
    return None


def _early_release(p: Access, a: Access) -> Event | None:
    """A release of p's very use by p's unit, before p, that a's unit has learned of."""
    known = a.unit.KL if a.thread else a.unit.K
    u = p.unit
    for _, tick_l, _, e, _ in reversed(u.releases):
        bar = e.vals.get("bar")
        if (
            tick_l < p.ticks[1]
            and tick_l <= known[u.L]
            and bar is not None
            and bar.use == p.use
            and e.node.name == "arrive"
        ):
            return e
    return None


def _classify(
    m: Machine, p: Access, a: Access, what: str, before: str, mode: str, fault: str
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
        and root(p.unit) is not root(a.unit)
        and (p.blank or (p.use == a.use and p.use > 0))
    ):
        return _too_early(p, a, what)
    if p.engine in _ENGINES:
        return _ENGINES[p.engine](m, p, a, what, before, mode)
    return _generic(m, p, a, what, before, mode)


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
    return rule.UNSYNCED_READ, p.event, p.unit, f"{pn} reads {what}; nothing orders it after {an} by {a.unit.label}"


def _tma(m: Machine, p: Access, a: Access, what: str, before: str, mode: str) -> tuple[str, Event, Unit, str]:
    an = name_of(a.event)
    if a.engine != "tma" and p.use != a.use:
        return (
            rule.SLOT_REUSE,
            p.event,
            p.unit,
            f"{name_of(p.event)} refills the slot of {what} with use {p.use} while {a.unit.label} may still use it "
            f"({an}): no wait for its release comes before the copy",
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


def _wgmma(m: Machine, p: Access, a: Access, what: str, before: str, mode: str) -> tuple[str, Event, Unit, str]:
    an = name_of(a.event)
    if root(p.unit) is root(a.unit):
        return (
            rule.WGMMA_RELEASE,
            a.event,
            a.unit,
            f"{an} overwrites {what} that a pending wgmma of the same unit still reads; no wgmma_wait covers it",
        )
    release = _known_release(p, a)
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
    early = _early_release(p, a)
    if early is not None:
        return (
            rule.RELEASED_EARLY,
            early,
            p.unit,
            f"{what}: use {p.use} is released here, but {name_of(p.event)} still reads it afterwards, and {an} "
            "overwrites it",
        )
    if a.engine == "tma":
        return (
            rule.SLOT_REUSE,
            a.event,
            a.unit,
            f"{an} refills {what} while {p.unit.label} may still read use {p.use}: no wait for its release "
            "comes before the copy",
        )
    return (
        rule.OVERWRITTEN,
        a.event,
        a.unit,
        f"{an} overwrites {what} while {p.unit.label} may still read it ({name_of(p.event)})",
    )


def _tc(m: Machine, p: Access, a: Access, what: str, before: str, mode: str) -> tuple[str, Event, Unit, str]:
    an = name_of(a.event)
    release = _known_release(p, a)
    if a.engine == "tma" and release is None:
        return _not_released(p, a, what)
    if release is not None and release.node.name == "arrive":
        return (
            rule.COMMIT_MISSING,
            release,
            p.unit,
            f"{what} is released by a plain arrive while {name_of(p.event)} is still pending; only a "
            f"tcgen05_commit arrives when it is done, and {an} touches it",
        )
    return (
        rule.COMMIT_MISSING,
        a.event,
        a.unit,
        f"{an} touches {what} before the product that uses it is known to be done: no wait on a barrier of a "
        "tcgen05_commit after it",
    )


def _bulk(m: Machine, p: Access, a: Access, what: str, before: str, mode: str) -> tuple[str, Event, Unit, str]:
    an = name_of(a.event)
    group = p.unit.bulk_l if p.thread else p.unit.bulk
    if p.epoch > group.committed:
        return (
            rule.BULK_DEPTH,
            a.event,
            a.unit,
            f"{an} overwrites {what} while {name_of(p.event)} reads it; its bulk group is not even committed",
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


def _cp(m: Machine, p: Access, a: Access, what: str, before: str, mode: str) -> tuple[str, Event, Unit, str]:
    an, group = name_of(a.event), p.unit.cp
    verb = "reads" if mode == "read" else "overwrites"
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
            return (
                rule.CP_ASYNC_COUNT,
                e,
                p.unit,
                f"cp_async_wait({k}) leaves the group pending that fills {what}, which {an} {verb}; at most "
                f"{group.committed - p.epoch} may stay pending by then",
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
        f"{an} {verb} {what}; its cp_async is done for the thread that waited, but no sync carries that to the other threads",
    )


def _tld(m: Machine, p: Access, a: Access, what: str, before: str, mode: str) -> tuple[str, Event, Unit, str]:
    an = name_of(a.event)
    release = _known_release(p, a)
    if release is not None:
        done = next(d for _, _, _, e, d in p.unit.releases if e is release)
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


def _tst(m: Machine, p: Access, a: Access, what: str, before: str, mode: str) -> tuple[str, Event, Unit, str]:
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


_ENGINES = {"tma": _tma, "wgmma": _wgmma, "tc": _tc, "bulk": _bulk, "cp_async": _cp, "tld": _tld, "tst": _tst}


def _generic(m: Machine, p: Access, a: Access, what: str, before: str, mode: str) -> tuple[str, Event, Unit, str]:
    an, pn = name_of(a.event), name_of(p.event)
    if root(p.unit) is root(a.unit):
        return (
            rule.LANE_RACE,
            a.event,
            a.unit,
            f"{an} {'reads' if mode == 'read' else 'writes'} {what} that other lanes of {root(a.unit).label} "
            f"{'wrote' if before == 'write' else 'read'} ({pn}) with no sync in between",
        )
    release = _known_release(p, a)
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
    if mode == "read":
        return rule.UNSYNCED_READ, a.event, a.unit, f"{an} reads {what}; nothing orders it after {pn} by {p.unit.label}"
    if a.engine == "tma":
        return _not_released(p, a, what)
    return rule.UNSYNCED_WRITE, a.event, a.unit, f"{an} writes {what}; nothing orders it with {pn} by {p.unit.label}"


# ---- memory and registers without contents


def uninitialised(m: Any, u: Unit, e: Event, v: ViewAt) -> None:
    what = view_name(v)
    name = rule.UNINIT_ACC if e.node.name == "tcgen05_mma" and v.view.buffer.space == "tmem" else rule.UNINIT_MEMORY
    text = (
        f"tcgen05_mma accumulates onto {what}, which nothing has filled; the first product needs init"
        if name == rule.UNINIT_ACC
        else f"{e.node.name} reads {what}, part of which nothing has written"
    )
    m.log.add(
        "data",
        name,
        e.node.span,
        text,
        role=u.role.name,
        resource=v.view.buffer.name,
        op=e.node.name,
        group=(v.view.buffer.name,),
        steps=((v.view.buffer.span, "declared here, contents undefined"), (e.node.span, where(u, e))),
    )


def overlay(m: Any, a: Access, cell: Cell) -> None:
    """A read that meets contents which another buffer of the same storage wrote last."""
    met = [p for p in cell.writes.values() if subtract(a.box, p.box) != [a.box]]
    if not met or any(p.view.view.buffer is a.view.view.buffer for p in met):
        return
    p = met[-1]
    mine, other = a.view.view.buffer, p.view.view.buffer
    m.log.add(
        "data", rule.OVERLAY_READ, a.event.node.span,
        f"{name_of(a.event)} reads {view_name(a.view)}, but the memory holds {view_name(p.view)} ({where(p.unit, p.event)})",
        role=a.unit.role.name, resource=mine.name, op=name_of(a.event),
        related=((p.event.node.span, f"{other.name} is written here"), (mine.span, "they share storage")), group=(mine.name,),
    )  # fmt: skip


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
        group=(t.name,),
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
    bar = e.vals.get("bar", e.vals.get("signal"))
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

    first = next((u for u in blocked if hopeless(u)), None) or next(
        (u for u in blocked if u.block[0] == "bar"), blocked[0] if blocked else stuck[0]
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
        f"{group.committed + group.open - group.done} groups are not waited for",
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
