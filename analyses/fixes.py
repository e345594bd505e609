"""Machine-applicable repairs: for common findings, candidate edits are applied to a copy of the text, which is parsed, bound
and verified again. Only a copy in which the finding is gone and nothing new appeared makes a fix, so every offered fix is
`verified`. Among several the narrowest comes first: repairs never synchronise wider than needed.

Limits: a fix makes the program right with respect to the rules; what it computes is unchecked, and whether it is the program the
author meant is theirs to judge. Work is bounded by `budget_s` and by `MAX_TRIES` candidates per finding.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analyses.fixrules import Candidate, candidates
from analyses.fixtext import Source, apply, places
from cake_ir.diagnostics import Diagnostic, Fix

MAX_TRIES = 24
MAX_FINDINGS = 4


def with_fixes(
    diagnostics: Sequence[Diagnostic],
    text: str,
    *,
    bindings: Mapping[str, Any] | None = None,
    target: str | None = None,
    kernel: str | None = None,
    budget_s: float = 3.0,
    most: int = 1,
) -> tuple[Diagnostic, ...]:
    """The diagnostics, each with its contract, the first errors among them with verified fixes (at most `most` each).

    Args:
        diagnostics: the findings on `text`, as verify or verify_text gave them; order is kept.
        bindings, target, kernel: what the findings were obtained with.
        budget_s: seconds of this thread's processor time for all candidates together; what is not tried in time is not
            offered. Processor time, so that a busy machine does not change what is offered.
    """
    from analyses.verifier import verify_text, with_contract

    diagnostics = [with_contract(d) for d in diagnostics]
    source = Source(text)
    until = time.thread_time() + budget_s
    errors = [d for d in diagnostics if d.severity == "error"]
    have = _signature(errors)
    found: dict[int, tuple[Fix, ...]] = {}
    for d in errors[:MAX_FINDINGS]:
        fixes: list[Fix] = []
        tried: set[str] = {text}
        for candidate in candidates(source, d):
            if time.thread_time() > until or len(tried) > MAX_TRIES or len(fixes) >= most:
                break
            new = apply(text, candidate.edits)
            if new in tried:
                continue
            tried.add(new)
            if _repairs(d, have, verify_text(new, bindings, target, kernel).diagnostics):
                fixes.append(_fix(source, candidate))
        if fixes:
            found[id(d)] = tuple(fixes)
        if time.thread_time() > until:
            break
    return tuple(d.model_copy(update={"fixes": d.fixes + found[id(d)]}) if id(d) in found else d for d in diagnostics)


def _fix(source: Source, candidate: Candidate) -> Fix:
    """The candidate with its places in the title: two fixes may do the same thing at different lines."""
    title = f"{candidate.title} ({places(source, candidate.edits)})"
    return Fix(title=title, edits=candidate.edits, verified=True)


def _key(d: Diagnostic) -> tuple[Any, ...]:
    return (d.rule, d.subject.role, d.subject.resource)


def _signature(errors: Iterable[Diagnostic]) -> Counter[tuple[Any, ...]]:
    return Counter(_key(d) for d in errors)


def _repairs(d: Diagnostic, have: Counter[tuple[Any, ...]], after: Iterable[Diagnostic]) -> bool:
    """Whether the finding is gone (one fewer of its kind) and no kind of error appeared or became more frequent."""
    left = _signature(x for x in after if x.severity == "error")
    return left[_key(d)] < have[_key(d)] and all(n <= have[k] for k, n in left.items())
