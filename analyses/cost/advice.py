"""Advice: neighbours that the model puts clearly ahead, verified in full on the edited copy before they are offered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from analyses.cost.changes import Value
from analyses.cost.estimate import Estimate
from analyses.cost.sensitivity import Neighbour, Subject
from analyses.fixtext import apply
from analyses.verifier import verify_text
from cake_ir.diagnostics import Diagnostic, Fix
from cake_ir.diagnostics import Subject as About

RESOLUTION = 0.03
"""Predictions closer than this (as a fraction) are not told apart where no evidence says how close they may be."""
OFFERED = 3
MOST = 5
"""Neighbours that are verified in full, some 0.2 s each."""
CONTRACT = "Advice is a prediction: the offered copy passes the verifier, but neither its results nor its time have been measured."


@dataclass(frozen=True)
class Advice:
    """A change that should pay. bindings: all to send, those given with the changed ones; fix: the edits, none where only bindings change.
    `diagnostic` is the same as a finding of severity advice."""

    title: str
    why: str
    time_us: float
    saves_us: float
    bindings: Mapping[str, Value]
    fix: Fix
    diagnostic: Diagnostic


def advise(
    subject: Subject, now: Estimate, neighbours: tuple[Neighbour, ...], costs: Mapping[str, float],
    resolution: float | None = None,
) -> tuple[tuple[Advice, ...], tuple[Neighbour, ...]]:  # fmt: skip
    """At most three, best first, one of each tunable or place, and the neighbours with what full verification said of them: one that
    fails is rejected after all.

    costs: microseconds by term, of the program as it is. resolution: how far apart predictions must lie to count (`analyses.cost.history`).
    """
    apart = RESOLUTION if resolution is None else resolution
    offered: list[Advice] = []
    out: list[Neighbour] = []
    taken: list[Neighbour] = []
    asked = 0
    for n in neighbours:
        better = n.time_us is not None and n.time_us * (1 + apart) < now.time_us
        if not better or len(offered) >= OFFERED or asked >= MOST or any(_same_dial(n, x) for x in taken):
            out.append(n)
            continue
        asked += 1
        text, values = apply(subject.text, n.edits), subject.with_values(n.bindings)
        report = verify_text(text, values, subject.target, subject.kernel.name)
        if report.accepted:
            out.append(replace(n, verified=True))
            taken.append(n)
            offered.append(_advice(subject, now, n, values, costs))
        else:
            first = next(d for d in report.diagnostics if d.severity == "error")
            out.append(replace(n, time_us=None, saves_us=None, rule=first.rule, message=first.message, verified=False))
    return tuple(offered), tuple(sorted(out, key=lambda n: n.time_us is None))


def _same_dial(a: Neighbour, b: Neighbour) -> bool:
    """Whether two changes turn the same."""
    return bool(a.bindings.keys() & b.bindings.keys()) or any(x.span == y.span for x in a.edits for y in b.edits)


def _advice(
    subject: Subject, now: Estimate, n: Neighbour, values: Mapping[str, Value], costs: Mapping[str, float]
) -> Advice:  # fmt: skip
    assert n.time_us is not None and n.saves_us is not None
    shrinks = _shrinks(subject, n, costs)
    why = f"predicted {n.time_us:.4g} us instead of {now.time_us:.4g} ({n.saves_us / now.time_us:.0%} less)"
    if n.effect:
        why += f"; {n.effect}"
    if shrinks:
        term, before, after = shrinks
        why += f"; {term} then costs {after:.3g} us instead of {before:.3g}"
    fix = Fix(title=n.what, edits=n.edits, verified=True)
    # where the edit is, or the changed tunable
    place = n.edits[0].span if n.edits else next(t.span for t in subject.kernel.tunables if t.name in n.bindings)
    diagnostic = Diagnostic(
        rule=f"advice/{n.kind.replace(' ', '-')}", family="advice", severity="advice", message=f"{n.what}: {why}", contract=CONTRACT,
        span=place, subject=About(kernel=subject.kernel.name), fixes=(fix,) if n.edits else (),
    )  # fmt: skip
    return Advice(n.what, why, n.time_us, n.saves_us, dict(values), fix, diagnostic)


def _shrinks(subject: Subject, n: Neighbour, costs: Mapping[str, float]) -> tuple[str, float, float] | None:
    """The dear term of the program that the change makes cheaper by most, with its costs before and after: of the three dearest."""
    from analyses.cost.changes import Change
    from cake_ir.bound import BoundKernel

    bound = subject.bind(Change(n.what, n.kind, n.bindings, n.edits, ""))
    assert isinstance(bound, BoundKernel) and n.time_us is not None
    best: tuple[str, float, float] | None = None
    for term in sorted(costs, key=lambda t: -costs[t])[:3]:
        after = max(0.0, n.time_us - subject.estimate(bound, frozenset((term,))).time_us)
        if best is None or costs[term] - after > best[1] - best[2]:
            best = (term, costs[term], after)
    return best if best is not None and best[1] > best[2] else None
