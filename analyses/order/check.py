"""`check_order`: runs the witness shapes and gives findings, a verdict per property, and what was covered."""

from __future__ import annotations

from dataclasses import dataclass

from analyses.order import findings
from analyses.order.contents import settle
from analyses.order.cutoff import QUICK, THOROUGH, Cutoff, decide
from analyses.order.log import Log
from analyses.order.machine import Machine
from analyses.report import Property, Verdict
from cake_ir.bound import BoundKernel, Op, Region, WarpsBlock, While, walk
from cake_ir.derive import Derived
from cake_ir.diagnostics import Diagnostic
from cake_ir.skeleton import AssumeViolated, SkeletonLimit, compile_skeleton
from cake_ir.witness import Witness, traces

_ASPECTS: tuple[tuple[str, frozenset[str]], ...] = (
    ("progress", frozenset({findings.DEADLOCK})),
    (
        "barrier protocol",
        frozenset(
            {
                findings.PHASE_OVERRUN,
                findings.PHASE_DRIFT,
                findings.PHASE_MISSED,
                findings.WAIT_AHEAD,
                findings.OVER_ARRIVAL,
                findings.NEGATIVE_USE,
                findings.NAMED_OVERRUN,
                findings.NAMED_OPEN,
                findings.COPY_UNAWAITED,
            }
        ),
    ),
    ("cluster lifetime", frozenset({findings.CLUSTER_EXIT, findings.BULK_AT_EXIT})),
    ("dependent launch", frozenset({findings.GRIDDEP})),
)


@dataclass(frozen=True)
class OrderResult:
    """Findings, and a verdict for each property the reading decides. coverage: what was run, what is modelled loosely.
    events: nodes executed over all witnesses. cutoff: whether the runs decide all shapes; None where findings come first."""

    diagnostics: tuple[Diagnostic, ...]
    properties: tuple[Property, ...]
    coverage: tuple[str, ...] = ()
    events: int = 0
    cutoff: Cutoff | None = None


def check_order(bound: BoundKernel, derived: Derived, prove: bool | None = False) -> OrderResult:
    """Runs all witnesses of `derived`. Meaningless while derive has errors: the caller skips it then.

    prove: also spend the seconds that the runs of a proof for all shapes may take; without it only cheap proofs are made,
    and with None none: the witness shapes alone are run.
    """
    log = Log(bound)
    ran, events, undecided = [], 0, list(derived.unmet_goals)
    for w in derived.witnesses:
        try:
            events += _read(bound, derived, w, log)
        except (SkeletonLimit, AssumeViolated):
            undecided.append(f"{w.describe()}: the run is longer than the limit")
            continue
        settle(bound, w, log)
        ran.append(w)
        if log.decided:
            break
    diagnostics = log.diagnostics()
    clean = ran and len(ran) == len(derived.witnesses) and not any(d.severity == "error" for d in diagnostics)
    cutoff = decide(bound, derived, THOROUGH if prove else QUICK) if clean and prove is not None else None
    if cutoff is not None and cutoff.shown is not None:
        events += _read(bound, derived, cutoff.shown, log)
        settle(bound, cutoff.shown, log)
        ran.append(cutoff.shown)
        diagnostics = log.diagnostics()
    if cutoff is not None and cutoff.busy:  # a goal that no shape can meet leaves nothing open
        empty = "0 uses of a ring"
        why = f"never: `where` gives the loop of line {cutoff.busy} at least one round"
        excluded = [f"{text} {why}" for text in undecided if text.startswith(empty)]
        undecided = [text for text in undecided if not text.startswith(empty)]
    else:
        excluded = []
    covered = _coverage(bound, len(ran), [*undecided, *excluded])
    if cutoff is not None:
        covered = (*covered, f"order: {cutoff.reason}" if cutoff.holds else f"order: not proved: {cutoff.reason}")
    return OrderResult(
        diagnostics,
        _properties(bound, derived, diagnostics, len(ran), undecided, cutoff),
        covered,
        events,
        cutoff,
    )


def _read(bound: BoundKernel, derived: Derived, w: Witness, log: Log) -> int:
    """Runs one shape; the number of events."""
    found = traces(bound, w)
    log.begin(w)
    Machine(bound, derived, w, found, log).run()
    return sum(len(t.events) for t in found)


def _coverage(bound: BoundKernel, ran: int, undecided: list[str]) -> tuple[str, ...]:
    """One line per limit of this reading that the kernel touches."""
    ops = {s.name for s in walk(bound.body) if isinstance(s, Op)}
    lines = [f"order: {ran} witness shapes run to the end, all agents of the traced clusters"]
    lines += [f"order: {text}" for text in undecided]
    if "cp_async" in ops and any(isinstance(s, WarpsBlock) for s in walk(bound.body)):
        lines.append(
            "order: inside warps(), cp.async rows of the whole warpgroup count as the warp's own after sync(warp)"
        )
    unmodelled = sorted(n for n in ops if n.startswith("atomic_"))
    if unmodelled or any(t.direction == "InOut" for t in bound.tensors):
        lines.append("order: races on global memory between CTAs are not decided here")
    return tuple(lines)


def _properties(
    bound: BoundKernel,
    derived: Derived,
    diagnostics: tuple[Diagnostic, ...],
    ran: int,
    undecided: list[str],
    cutoff: Cutoff | None,
) -> tuple[Property, ...]:
    diagnostics = tuple(d for d in diagnostics if d.severity == "error")
    rules = {d.rule for d in diagnostics}
    scope = f"{ran} witness shapes"
    ops = [s for s in walk(bound.body) if isinstance(s, Op)]
    # barrier arrivals are monotone, so one greedy run decides a shape; rounds and data-dependent control are not
    free = any(s.name == "named_arrive" for s in ops) or bool(compile_skeleton(bound).data_control)
    polls = any(
        isinstance(o, Op)
        and o.name == "load_scalar"
        and getattr(o.operands.get("src"), "tensor", None) is not None
        and o.operands["src"].tensor.direction == "InOut"
        for s in walk(bound.body)
        if isinstance(s, While)
        for o in walk(s.prelude + s.body)
    )
    out = []
    aspects = [
        *_ASPECTS,
        (
            "data order",
            frozenset(r for r in findings.CONTRACTS if r.startswith("data/") or r == findings.RELEASE_MISSES_LANES),
        ),
    ]
    for name, ids in aspects:
        hit = sorted(rules & ids)
        reason = ""
        verdict: Verdict = "checked"
        if hit:
            verdict, reason = "refuted", ", ".join(hit)
        elif name == "progress" and polls:
            verdict, reason = "undecided", "a while polls global memory; that its flag comes is not modelled"
        elif not _relevant(name, bound, ops, derived):
            if name == "data order" and any(t.direction == "InOut" for t in bound.tensors):
                reason = "nothing on chip is shared; races on global memory between CTAs are not decided"
                out.append(Property(name, verdict, "on-chip memory", reason))
                continue
            out.append(Property(name, "proved", "all shapes", "the kernel has nothing of the kind"))
            continue
        elif not ran or diagnostics:
            verdict, reason = (
                "undecided",
                "other findings come first" if diagnostics else _not_run(derived),
            )
        elif name == "dependent launch":
            if waits_first(bound):
                verdict, scope = "proved", "all shapes that `where` admits"
                reason = "griddep_wait stands before every access of memory that another grid may touch"
        elif cutoff is not None and cutoff.holds:
            out.append(proved(name, cutoff))
            continue
        else:
            parts = [f"goals not met: {'; '.join(undecided[:3])}"] if undecided else []
            if free and name == "progress":
                parts.append("one schedule per shape: named rounds or data-dependent control are not monotone")
            parts += [f"not proved: {cutoff.reason}"] if cutoff is not None else []
            reason = "; ".join(parts)
        out.append(Property(name, verdict, scope, reason))
    return tuple(out)


def waits_first(bound: BoundKernel) -> bool:
    """Whether every unit runs a griddep_wait, unconditionally, before it touches global memory other than `Const`."""
    for top in bound.body:
        if isinstance(top, Op) and top.name == "griddep_wait":
            return True
        if any(
            isinstance(v, Region) and v.tensor.direction != "Const"
            for s in walk((top,))
            if isinstance(s, Op)
            for v in s.operands.values()
        ):
            return False
    return False


def proved(name: str, cutoff: Cutoff) -> Property:
    """A property that the runs of the cutoff argument decide for all shapes."""
    what = (
        "on-chip memory, all shapes that `where` admits" if name == "data order" else "all shapes that `where` admits"
    )
    return Property(name, "proved", what, cutoff.reason)


def _not_run(derived: Derived) -> str:
    return "no witness shape could be run" + (f": {derived.no_shape}" if derived.no_shape else "")


def _relevant(name: str, bound: BoundKernel, ops: list[Op], derived: Derived) -> bool:
    """Whether the kernel has anything the property is about."""
    if name == "progress":
        return any(s.decl.completion == "blocks" for s in ops)
    if name == "barrier protocol":
        return bool(bound.barriers)
    if name == "cluster lifetime":
        return bound.launch.cluster > 1 or any(s.decl.completion == "group:bulk" for s in ops)
    if name == "dependent launch":
        return derived.launch.pdl
    return bool(bound.buffers) or any(s.decl.completion.startswith("group:") for s in ops)
