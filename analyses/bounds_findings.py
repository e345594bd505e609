"""Findings and verdicts of the symbolic reading of global indices, views and 32-bit index arithmetic (`analyses.bounds`)."""

from __future__ import annotations

from typing import Any

from analyses.bounds import Decided, Goal, Witnessed, decide
from analyses.report import Property
from analyses.symbolic import freeze
from cake_ir.bound import BoundKernel
from cake_ir.derive.findings import contract
from cake_ir.diagnostics import Diagnostic, Subject
from cake_ir.facts import INT_MAX

OUTSIDE, OVERFLOW, VIEW = "data/global-out-of-bounds", "data/index-overflow", "data/view-out-of-bounds"
ENDLESS = "sync/endless-loop"
AXES = ("rows", "cols")
CONTRACTS = {
    OUTSIDE: "An index lies inside its dimension; a region starts at 0 or later (only its end is clipped).",
    VIEW: "An on-chip view has exact extents and lies inside its tile.",
    OVERFLOW: "Index expressions are computed in 32 bits and fit them for every shape that `where` admits.",
    ENDLESS: contract(ENDLESS),
}


def check_bounds(bound: BoundKernel) -> list[Diagnostic]:
    """At most one finding per rule, tensor and role; overflows that follow from an earlier one of the role are left out."""
    found: dict[tuple[str, str | None, str], Diagnostic] = {}
    for goal, w in decide(bound).refuted:
        if goal.view is not None:
            continue
        rule = {"overflow": OVERFLOW, "step": ENDLESS}.get(goal.kind, OUTSIDE)
        name = goal.region.tensor.name if goal.region is not None else ""
        found.setdefault((rule, goal.role, name), _finding(bound, rule, goal, w))
    return list(found.values())


def check_views(bound: BoundKernel) -> list[Diagnostic]:
    """On-chip views outside their tiles, for a shape that `where` admits; one finding per role and start, at the op that comes first."""
    found: dict[Any, Diagnostic] = {}
    for goal, w in decide(bound).refuted:
        if goal.view is not None:
            found.setdefault((goal.role, freeze(goal.value)), _finding(bound, VIEW, goal, w))
    return list(found.values())


def open_views(bound: BoundKernel) -> list[str]:
    """Views that the text alone does not bound, as `tile.rows at line N`."""
    found = [g for g in decide(bound).open if g.view is not None]
    return list(dict.fromkeys(f"{g.view.buffer.name}.{AXES[g.dim]} at line {g.span.line}" for g in found if g.view))


def _finding(bound: BoundKernel, rule: str, g: Goal, w: Witnessed) -> Diagnostic:
    op = g.op.name if g.op is not None else None
    tensor = g.region.tensor.name if g.region is not None else None
    if g.view is not None:
        tensor, count = g.view.buffer.name, (g.view.rows, g.view.cols)[g.dim]
        text = f".{AXES[g.dim]} of {tensor}: start {w.value} with {count} element(s) lies outside 0 .. {w.limit}"
    elif g.kind == "step":
        text = f"the step of this loop reaches {w.value}: it never ends" if not w.value else f"the step of this loop reaches {w.value}"
    elif g.kind == "overflow":
        text = f"an index expression reaches {w.value}, which 32 bits do not hold (at most {INT_MAX})"
    elif g.kind == "end":
        size = g.region.dims[g.dim].size if g.region is not None else 0
        text = (
            f"{op} copies {size} elements from {w.value} on in dimension {g.dim} of {tensor}, whose extent is {w.limit}, "
            "and does not clip"
        )
    elif g.region is not None and g.region.dims[g.dim].kind == "slice":
        text = f"{op} uses a region of {tensor} that starts at {w.value} in dimension {g.dim}"
    else:
        row = "a gathered index" if g.gathered else "index"
        text = f"{op} uses {row} {w.value} of dimension {g.dim} of {tensor}, whose extent is {w.limit}"
    at = ", ".join(f"{k}={v}" for k, v in (*w.shape.items(), *w.variables.items()) if k)
    return Diagnostic(
        rule=rule, family="safety" if rule == ENDLESS else "data", severity="error", message=f"{text} [{at}]",
        contract=CONTRACTS[rule], span=g.span,
        subject=Subject(kernel=bound.name, role=g.role, resource=tensor, op=op),
    )  # fmt: skip


def bounds_properties(bound: BoundKernel, refuted: bool, shapes: int) -> list[Property]:
    """Verdicts on indices and on 32-bit arithmetic. refuted: some reading found an index outside."""
    d = decide(bound)
    return [
        _property("global bounds", d, False, refuted, shapes),
        _property("index arithmetic", d, True, any(g.kind == "overflow" for g, _ in d.refuted), 0),
    ]


def _property(name: str, d: Decided, overflow: bool, refuted: bool, shapes: int) -> Property:
    rule = OVERFLOW if overflow else OUTSIDE
    left = [g for g in d.open if g.view is None and g.kind != "step" and (g.kind == "overflow") is overflow]
    if refuted:
        return Property(name, "refuted", "a shape that `where` admits", rule)
    if not left:
        reason = "what extents alone decide is checked by each launch" if overflow else ""
        return Property(name, "proved", "all shapes that `where` admits", reason)
    lines = ", ".join(dict.fromkeys(_place(g) for g in left[:6]))
    if overflow:
        return Property(name, "checked", "no overflowing shape was found among those tried", f"not bounded by the text: {lines}")
    unbounded = [g for g in left if g.gathered or g.masked]
    if unbounded or not shapes:
        return Property(name, "undecided", "all shapes", f"data decide the index, and no assume bounds it: {lines}")
    return Property(name, "checked", f"{shapes} witness shapes", f"not bounded by the text alone: {lines}")


def _place(g: Goal) -> str:
    if g.region is None:
        return f"line {g.span.line}"
    return f"{g.region.tensor.name} dimension {g.dim} at line {g.span.line}"
