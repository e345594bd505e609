"""Collects the faults of the runs, keeps one finding per cause, and names units, views and ops for messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analyses.order import findings as rule
from cake_ir.bound import BoundKernel, Let, Op, walk
from cake_ir.diagnostics import Diagnostic, Family, Related, Span, Step, Subject
from cake_ir.skeleton import Event, ViewAt, fragments, tracked_fragments
from cake_ir.witness import Witness

if TYPE_CHECKING:
    from analyses.order.units import Unit

MAX_RAW = 400
"""Faults of one run after which the run is cut short: one cause repeats in every iteration."""

INSIDE = (rule.CP_ASYNC_COUNT, rule.UNSYNCED_READ, rule.UNSYNCED_WRITE, rule.OVERWRITTEN, rule.LANE_RACE)
"""Guises of one missing sync or wait inside a role, the most telling first."""


REGISTERS = (rule.TMEM_LOAD_WAIT, rule.ACC_READ_EARLY, rule.UNINIT_REGISTER)
ROUNDS = (rule.NAMED_OPEN, rule.NAMED_OVERRUN)
PHASES = (rule.WAIT_AHEAD, rule.PHASE_MISSED, rule.PHASE_OVERRUN)
"""Doubts about phases that follow where the turns of a named barrier are confused."""
RING = (rule.SLOT_REUSE, rule.RELEASED_EARLY, rule.READ_BEFORE_ARRIVAL, rule.COMMIT_MISSING)
AFTER = (
    rule.WGMMA_RELEASE,
    rule.OVERWRITTEN,
    rule.UNSYNCED_READ,
    rule.UNSYNCED_WRITE,
    rule.WRITE_IN_FLIGHT,
    rule.LANE_RACE,
)
"""What shows besides on memory whose ring is broken in one of the first ways."""


class Log:
    """Collects faults over all witnesses. Classes: 'data' (certain faults), 'dead' (deadlock), 'late' (protocol
    doubts and end-of-kernel checks, reported only where nothing of the first two explains them)."""

    def __init__(self, bound: BoundKernel) -> None:
        self.bound = bound
        self.found: dict[str, dict[tuple[Any, ...], Diagnostic]] = {
            "data": {},
            "dead": {},
            "late": {},
            "warning": {},
            "holes": {},
        }
        self.more: dict[tuple[Any, ...], dict[Span, str]] = {}
        self.witness: Witness | None = None
        self.raw = 0
        self.early_reads: set[str] = set()
        self.across: set[tuple[Any, ...]] = set()
        self.raced: set[str] = set()
        self.reuse: dict[tuple[Any, ...], str] = {}
        self.pairs: dict[tuple[Any, ...], tuple[str, frozenset[Span]]] = {}  # buffer and the two ops of a conflict
        self.doubled = False  # two copies fill one place for one use, so another place stays empty

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
            severity="warning" if kind == "warning" else "error",
            message=message + at,
            contract=rule.CONTRACTS[name],
            span=span,
            related=tuple(Related(span=s, message=m) for s, m in related),
            evidence=tuple(Step(span=s, text=t) for s, t in steps),
            subject=Subject(kernel=self.bound.name, role=role, resource=resource, stage=stage, op=op),
        )
        return key

    def storage(self, d: Diagnostic) -> str | None:
        """The buffer that a finding is about; of buffers that share storage the one that owns it."""
        name = d.subject.resource
        for b in self.bound.buffers:
            if b.name == name:
                while b.over is not None:
                    b = b.over
                return b.name
        return name

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The findings: the deadlock, else the certain faults, else the late ones. Consequences of a finding are
        dropped: refills that only look unordered because nobody waited for the fill, missing contents where the real
        fault is at the same op, the later of two places that miss one wgmma_wait."""
        dead = dict(list(self.found["dead"].items())[:1])
        data = {
            k: d
            for k, d in self.found["data"].items()
            if self.reuse.get(k) is None or self.reuse[k] not in self.early_reads
        }
        faulty = [
            d.span for d in data.values() if d.rule not in (rule.UNINIT_MEMORY, rule.UNINIT_ACC, rule.OVERLAY_READ)
        ]
        data = {
            k: d
            for k, d in data.items()
            if d.rule not in (rule.UNINIT_MEMORY, rule.OVERLAY_READ)
            or (d.span not in faulty and d.subject.resource not in self.raced and not self.doubled)
        }
        # a missing sync inside one role shows at several ops and in several guises
        for role in {d.subject.role for d in data.values()}:
            inside = [k for k, d in data.items() if d.subject.role == role and d.rule in INSIDE]
            for k in sorted(inside, key=lambda k: INSIDE.index(data[k].rule))[1:]:
                if k not in self.across:
                    del data[k]
        # a ring that is refilled or read too early shows at every other op on that memory
        broken = {self.storage(d) for d in data.values() if d.rule in RING}
        early = {self.storage(d) for d in data.values() if d.rule == rule.RELEASED_EARLY}
        data = {
            k: d
            for k, d in data.items()
            if not (d.rule in AFTER and self.storage(d) in broken)
            and not (d.rule == rule.SLOT_REUSE and self.storage(d) in early)
        }
        pending = [k for k, d in data.items() if d.rule in (rule.ACC_READ_EARLY, rule.WGMMA_RELEASE)]
        for k in sorted(pending, key=lambda k: data[k].span.line)[1:]:
            del data[k]
        seen: dict[tuple[str, frozenset[Span]], tuple[Any, ...]] = {}
        for k in list(data):  # the same two ops, met the other way round: the early write is the fault
            pair = self.pairs.get(k)
            if pair is not None and pair in seen:
                early = data[k].rule == rule.OVERWRITTEN
                del data[seen[pair] if early else k]
                seen[pair] = k if early else seen[pair]
            elif pair is not None:
                seen[pair] = k
        at: dict[Span, tuple[Any, ...]] = {}
        for k in sorted(data, key=lambda k: data[k].rule not in REGISTERS):  # several faults of one op: one is enough
            if at.setdefault(data[k].span, k) != k:
                del data[k]
        drifted = {k: d for k, d in data.items() if d.rule == rule.PHASE_DRIFT}
        if drifted:  # everything after the first confused phase follows from it
            data = dict(list(drifted.items())[:1])
        late = list(self.found["late"].values())
        if any(d.rule in ROUNDS for d in late):
            late = [d for d in late if d.rule not in PHASES]
        chosen = dead or data or {(d.subject.resource or d.rule,): d for d in reversed(late)}
        out = []
        for key, d in (chosen or self.found["warning"]).items():
            extra = list(self.more.get(key, {}).items())[:5]
            out.append(
                d.model_copy(update={"related": d.related + tuple(Related(span=s, message=m) for s, m in extra)})
                if extra
                else d
            )
        return tuple(out)

    @property
    def decided(self) -> bool:
        """A witness has shown a certain fault; larger ones would repeat it in other guises. An accumulator read early is
        not enough: where the ring is refilled, the same missing wait shows at the release, which comes first."""
        return bool(self.found["dead"]) or any(d.rule != rule.ACC_READ_EARLY for d in self.found["data"].values())


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
