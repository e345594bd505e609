"""Whether loops end that the control skeleton cannot run: those whose condition follows from data.

A `while` on data is run by the value reading, on small witness shapes, with random numbers in the tensors. Where all that
its condition follows from is the same in two rounds, no later round differs: it never ends. Where it is still running after
`ROUNDS` rounds, its end is undecided. A condition that no round can change needs no run.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cake_ir.arithmetic import compile_sx
from cake_ir.bound import (
    BoundKernel,
    For,
    Op,
    Region,
    SConst,
    SetScalar,
    SOp,
    SVar,
    Tensor,
    While,
    sx_vars,
    walk,
)
from cake_ir.derive import Derived
from cake_ir.derive.findings import contract
from cake_ir.diagnostics import Diagnostic, Span, Subject, error
from cake_ir.skeleton import compile_skeleton
from cake_ir.witness import Witness

RULE = "sync/endless-loop"
ROUNDS = 300
"""Rounds of one execution of a loop that a run waits for."""
SIGNS = ("any", "positive", "negative", "infinite")
"""What the numbers are like: a condition that compares with zero, or with what nothing exceeds, may depend on it."""
SMALL = 1 << 14
"""Bytes of shared memory up to which a kernel is small enough to be run with all of them."""
ELEMENTS = 1 << 18
"""Elements of the tensors of all runs together; shapes are run, the smallest first, until every loop has been entered."""


def check_loops(bound: BoundKernel, derived: Derived) -> tuple[list[Diagnostic], str]:
    """Findings, at most one per loop, and why the end of a loop stays undecided ("" where it does not)."""
    from analyses.value.carried import carried

    away = [s for s in walk(bound.body) if isinstance(s, While) and _moves_away(s)]
    if away:
        text = "this loop never ends once it is entered: each round moves its condition further from its end"
        return [_finding(bound, s.span, text) for s in away], ""
    loops = [s for s in compile_skeleton(bound).data_control if isinstance(s, While) and not _polls(s)]
    fixed = [s for s in loops if carried(s).fixed]
    if fixed:
        text = "this loop never ends once it is entered: no round changes anything that its condition follows from"
        return [_finding(bound, s.span, text) for s in fixed], ""
    return _run(bound, derived, loops) if loops else ([], "")


def _run(bound: BoundKernel, derived: Derived, loops: list[Any]) -> tuple[list[Diagnostic], str]:
    from analyses.value.faults import ValueFault
    from analyses.value.interpret import interpret

    spans, entered = {s.span for s in loops}, set()
    shapes = sorted(derived.witnesses, key=lambda w: _elements(bound, w))
    left = ELEMENTS
    for signs in SIGNS if derived.smem_used <= SMALL else SIGNS[:1]:
        entered.clear()
        for w in shapes:
            left -= _elements(bound, w)
            if left < 0 or entered >= spans:
                break
            try:
                interpret(
                    bound, _tensors(bound, w, signs), _scalars(bound, w), sms=w.sms, rounds=ROUNDS, entered=entered
                )
            except ValueFault as fault:
                if fault.span not in spans:
                    continue  # another reading's business, or data that the kernel does not admit
                if fault.kind == "endless":
                    text = f"this loop never ends: its rounds come to repeat with the condition still true [{w.describe()}]"
                    return [_finding(bound, fault.span, text)], ""
                if fault.kind == "deadlock":
                    return [], f"the while of line {fault.span.line} has not ended after {ROUNDS} rounds on random data"
    return [], ""


def _moves_away(s: While) -> bool:
    """Whether a condition `v < limit` (or >) is over a counter that each assignment moves down (up), below a limit that stays."""
    c = s.cond
    if not isinstance(c, SOp) or c.op not in ("<", "<=", ">", ">="):
        return False
    inside = [x for x in walk(s.prelude + s.body) if isinstance(x, (SetScalar, Op, For))]
    changed = {x.var for x in inside if not isinstance(x, Op)} | {
        r for x in inside if isinstance(x, Op) for r in x.results
    }
    for v, limit, up in ((c.args[0], c.args[1], c.op[0] == "<"), (c.args[1], c.args[0], c.op[0] == ">")):
        if isinstance(v, SVar) and v.var in changed and not sx_vars(limit) & changed:
            moves = [_move(x) if isinstance(x, SetScalar) else None for x in inside if v.var in _sets(x)]
            return all(k is not None and (k <= 0 if up else k >= 0) for k in moves)
    return False


def _sets(s: Any) -> tuple[Any, ...]:
    return s.results if isinstance(s, Op) else (s.var,)


def _move(s: SetScalar) -> int | None:
    """k of `v = v + k`."""
    x = s.value
    if isinstance(x, SOp) and x.op in ("+", "-") and x.dtype == "i32":
        for a, b in (x.args, x.args[::-1]) if x.op == "+" else (x.args,):
            if isinstance(a, SVar) and a.var is s.var and isinstance(b, SConst):
                return int(b.value) if x.op == "+" else -int(b.value)
    return None


def _polls(s: While) -> bool:
    """Whether a loop looks at memory that others write meanwhile."""
    return any(
        isinstance(v, Region) and v.tensor.direction == "InOut"
        for o in walk(s.prelude + s.body)
        if isinstance(o, Op) and o.name == "load_scalar"
        for v in o.operands.values()
    )


def _finding(bound: BoundKernel, at: Span, text: str) -> Diagnostic:
    return error(RULE, "safety", text, at, contract=contract(RULE), subject=Subject(kernel=bound.name))


def _shape(bound: BoundKernel, t: Tensor, w: Witness) -> tuple[int, ...]:
    env = compile_skeleton(bound).environment(w.shape, {}, w.sms)
    return tuple(int(compile_sx(e)(env)) for e in t.extents)


def _elements(bound: BoundKernel, w: Witness) -> int:
    return sum(math.prod(_shape(bound, t, w)) for t in bound.tensors)


def _scalars(bound: BoundKernel, w: Witness) -> dict[str, Any]:
    return {**{a.name: 1 for a in bound.args}, **w.shape}


def _tensors(bound: BoundKernel, w: Witness, signs: str) -> dict[str, np.ndarray]:
    """Random numbers; integers as the witness chooses them, so that what the kernel assumes of them holds."""
    from analyses.value.formats import np_dtype

    found = {}
    chance = np.random.default_rng(0)
    for number, t in enumerate(bound.tensors):
        shape, form = _shape(bound, t, w), np_dtype(t.dtype)
        if t.dtype.name.startswith(("i", "u")):
            row = [w.oracle.value(i, shape[-1], number) for i in range(shape[-1])] if shape else 0
            found[t.name] = np.broadcast_to(np.array(row), shape).astype(form)
        else:
            x = chance.standard_normal(shape)
            drawn = {"any": x, "positive": abs(x), "negative": -abs(x), "infinite": np.full(shape, np.inf)}[signs]
            found[t.name] = drawn.astype(form)
    return found
