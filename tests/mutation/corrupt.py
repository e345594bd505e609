"""The judge judged: one effect of one op is corrupted at a time, and the engine must then report false accepts.

Two kinds. `value:OP`: the op loses its effect in the value machine (a wait does not wait, a fence fences nothing). The verifier
still accepts the unmutated program, the judge must now call it wrong. `verify:OP`: the verifier is blind to what a mutation of the op
breaks, so that it accepts the mutants that drop the op; the judge must call some of them wrong. An op whose corruption shows
nowhere would mean that the judge cannot see that op at all; those known are listed with the reason in `BLIND`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from analyses.value import compile as value_compile
from tests.mutation.evaluate import evaluate
from tests.mutation.judge import judge
from tests.mutation.mutants import entries
from tests.mutation.operators import SYNC_OPS, Editor
from tests.mutation.subjects import Subject, subjects
from tests.mutation.tree import called, nodes

BLIND = {
    "griddep_wait": "there is no predecessor grid in one launch; the order reading alone decides",
    "griddep_launch": "a hint without effect on values",
    "tmem_store_wait": "no subject stores to tensor memory",
    "tmem_store": "no subject stores to tensor memory",
    "bulk_wait": "no subject uses it (bulk_wait_read is used)",
    "cp_async_arrive": "no subject uses it",
}
"""Synchronisation ops that no corruption can be shown for, and why."""


def users(op: str) -> list[Subject]:
    """Subjects that use an op, as a statement or inside an expression."""
    found = []
    for s in subjects():
        ed = Editor(s.tree)
        if any(ed.op(p.node) == op for p in ed.places) or (
            op not in SYNC_OPS and any(called(n) == SPELLING.get(op, op) for _, n in nodes(s.tree))
        ):
            found.append(s)
    return found


SPELLING = {"load_scalar": "load", "store_scalar": "store"}


def _silent(c: Any, op: Any) -> tuple[bool, Callable[[Any], Any]]:
    return False, lambda agent: None


@contextmanager
def value_without(op: str) -> Iterator[None]:
    """The value machine in which the op does nothing (arrivals and expects included: then every waiter hangs)."""
    table = value_compile.HANDLERS
    before = table[op]
    table[op] = _silent
    try:
        yield
    finally:
        table[op] = before


@contextmanager
def verifier_blind() -> Iterator[None]:
    """A verifier that accepts whatever binds."""
    from tests.mutation import evaluate as module

    before = module._verify
    module._verify = lambda record, bound: []  # type: ignore[assignment]
    try:
        yield
    finally:
        module._verify = before


@dataclass(frozen=True)
class Trial:
    """What one corruption showed. found: false accepts. tried: programs judged. example: the first false accept."""

    name: str
    found: int
    tried: int
    example: str = ""


def try_value(op: str) -> Trial:
    """The unmutated users of an op in the value machine without it: each one called wrong is a false accept (the verifier
    accepts it)."""
    tried = 0
    for s in users(op):
        tried += 1
        with value_without(op):
            j = judge(s.bound(s.bindings[0]), s.launches[:1], ordered=s.ordered)
        if j.fails:
            return Trial(f"value:{op}", 1, tried, f"{s.name}: {j.state} {j.kind} under {j.first}: {j.message[:120]}")
    return Trial(f"value:{op}", 0, tried)


def try_verifier(op: str, most: int = 12) -> Trial:
    """Mutants that drop (or weaken) the op, with a verifier that sees nothing of it."""
    tried = 0
    for s in users(op):
        for e in entries(s):
            if e.op != op or e.kind not in ("drop", "count"):
                continue
            tried += 1
            with verifier_blind():
                r = evaluate(s.name, e.index, e.id, fixes=False)
            if r.outcome in ("false accept", "other function"):
                return Trial(
                    f"verify:{op}", 1, tried, f"{s.name}: {r.what}: {r.judge} {r.judge_kind} under {r.judge_first}"
                )
            if tried >= most:
                return Trial(f"verify:{op}", 0, tried)
    return Trial(f"verify:{op}", 0, tried)


__all__ = ["BLIND", "Trial", "try_value", "try_verifier", "users", "value_without"]
