"""Machine-applicable repairs: for common findings, candidate edits are applied to a copy of the text, which is parsed, bound
and verified again. Only a copy in which the finding is gone and nothing new appeared makes a fix, so every offered fix is
`verified`. Among several the narrowest comes first: repairs never synchronise wider than needed.

Limits: a fix makes the program right with respect to the rules; what it computes is unchecked, and whether it is the program the
author meant is theirs to judge. Work is bounded by `budget` and by `MAX_TRIES` candidates per finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analyses.attempts import Attempts
from analyses.fixrules import Candidate, candidates
from analyses.fixtext import Source, apply, places
from cake_ir.bound import BoundKernel
from cake_ir.collector import seldom_collected
from cake_ir.diagnostics import Diagnostic, Fix
from cake_ir.effort import spent

MAX_TRIES = 20
"""Of 66 findings of mutants that were repaired, none needed more than 15 candidates, and 60 at most 5; of the planted faults one needs
18 (tests/e2e)."""
MAX_FINDINGS = 4
BUDGET = 200_000
"""Steps (`cake_ir.effort`) of all candidates of one text together: about three seconds."""


@seldom_collected
def with_fixes(
    diagnostics: Sequence[Diagnostic],
    text: str,
    *,
    bindings: Mapping[str, Any] | None = None,
    target: str | None = None,
    kernel: str | None = None,
    bound: Sequence[BoundKernel] = (),
    budget: int = BUDGET,
    most: int = 1,
) -> tuple[Diagnostic, ...]:
    """The diagnostics, each with its contract, the first errors among them with verified fixes (at most `most` each).

    Args:
        diagnostics: the findings on `text`, as verify or verify_text gave them; order is kept.
        bindings, target, kernel: what the findings were obtained with. bound: the kernels that were verified, if at hand.
        budget: steps of work for all candidates together; what is not tried within them is not offered. Steps, not
            seconds, so that neither a slow nor a busy machine changes what is offered.
    """
    from analyses.verifier import with_contract

    diagnostics = [with_contract(d) for d in diagnostics]
    source = Source(text)
    until = spent() + budget
    errors = [d for d in diagnostics if d.severity == "error"]
    have = _signature(errors)
    attempts = Attempts(text, errors, bindings, target, kernel, bound)
    found: dict[int, tuple[Fix, ...]] = {}
    for d in errors[:MAX_FINDINGS]:
        fixes: list[Fix] = []
        tried: set[str] = {text}
        for candidate in candidates(source, d):
            if spent() >= until or len(tried) > MAX_TRIES or len(fixes) >= most:
                break
            new = apply(text, candidate.edits)
            if new in tried:
                continue
            tried.add(new)
            if attempts.passes(new, lambda after, d=d: _repairs(d, have, after)):
                fixes.append(_fix(source, candidate))
        if fixes:
            found[id(d)] = tuple(fixes)
        if spent() >= until:
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
