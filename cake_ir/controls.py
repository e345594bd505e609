"""What the text of a kernel says about its unknowns: which scalars decide its control flow, and the constants they meet."""

from __future__ import annotations

from typing import Any

from cake_ir.bound import Assume, BoundKernel, If, SConst, SetScalar, SOp, SVar, sx_vars, walk

DIM_LIMIT = 8192
"""No witness has a larger extent, so larger constants are not looked at."""
FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}
"""Comparisons, and what they become with their sides exchanged."""


def divisors_of(bound: BoundKernel) -> list[int]:
    """Constants that the kernel divides by: the tile sizes."""
    found: set[int] = set()

    def visit(x: Any) -> None:
        if isinstance(x, SOp):
            if x.op in ("//", "ceil_div", "%") and isinstance(x.args[1], SConst):
                found.add(int(x.args[1].value))
            for a in x.args:
                visit(a)

    visit(bound.launch.ctas)
    for s in walk(bound.body):
        for attr in ("start", "stop", "step", "cond", "value"):
            visit(getattr(s, attr, None))
        for attr in ("step",):
            x = getattr(s, attr, None)
            if isinstance(x, SConst):
                found.add(int(x.value))
        operands = getattr(s, "operands", None)
        for v in (operands or {}).values():
            for d in getattr(v, "dims", ()):
                visit(getattr(d, "start", None))
    return sorted(d for d in found if 1 < d <= DIM_LIMIT)


def controlling(bound: BoundKernel) -> set[Any]:
    """Scalars that loop bounds and conditions name, through the values of others too."""
    defs: dict[Any, list[Any]] = {}
    used: set[Any] = set()
    for s in walk(bound.body):
        if isinstance(s, SetScalar):
            defs.setdefault(s.var, []).append(s.value)
        for attr in ("start", "stop", "step", "cond"):
            x = getattr(s, attr, None)
            if not isinstance(s, Assume) and isinstance(x, (SConst, SOp, SVar)):
                used |= sx_vars(x)
    todo = list(used)
    while todo:
        for x in defs.get(todo.pop(), ()):
            new = sx_vars(x) - used
            used |= new
            todo += new
    return used


def thresholds(bound: BoundKernel, unknown: dict[Any, str]) -> list[tuple[Any, int]]:
    """(variable, value): the values next to each constant that a comparison has on its other side."""
    found: dict[tuple[Any, int], None] = {}

    def visit(x: Any) -> None:
        if not isinstance(x, SOp):
            return
        if x.op in FLIPPED:
            (a, b), op = x.args, x.op
            if isinstance(a, SConst):
                a, b, op = b, a, FLIPPED[op]
            if isinstance(a, SVar) and a.var in unknown and isinstance(b, SConst) and 0 <= b.value <= DIM_LIMIT:
                c = int(b.value) - (op in ("<", ">="))
                found.update({(a.var, v): None for v in (c, c + 1) if v >= 0})
        for arg in x.args:
            visit(arg)

    for s in walk(bound.body):
        if not isinstance(s, Assume):
            for attr in ("start", "stop", "step", "cond", "value"):
                visit(getattr(s, attr, None))
    return list(found)


def guarded_by_cta(bound: BoundKernel) -> bool:
    """Whether a condition or a remainder of the CTA's number decides what a CTA does, beyond which tile it takes."""
    return any(
        isinstance(s, If) and any(v.kind in ("cta", "cluster_id") for v in sx_vars(s.cond)) for s in walk(bound.body)
    )
