"""The critical path of a simulated run: from the last event back, each time to what it waited for.

An event that waited leads to the event that ended its wait (an arrival, a copy, a load, a product); one that did not, to the one before it
of the same role. Events of cut loops count as often as they stand for. What is left is which role did or waited for what, in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from analyses.cost.code import Code, Kind
from analyses.cost.sm import Log, Outcome

LEAST = 0.01
"""Steps with a smaller share of the time are left out."""
_WAITING = {
    Kind.WAIT: "waits for {subject}", Kind.SYNC: "waits at {name}", Kind.WGMMA_WAIT: "waits for products",
    Kind.BULK_WAIT: "waits for stores",
    Kind.CP_WAIT: "waits for copies",
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A stretch of the critical path: what the role's instance did at a line of the program (`why` is "executes"), or what it waited
    for there; us: of the kernel's time, `share` of the whole."""

    role: str
    instance: int
    what: str
    line: int
    col: int
    us: float
    share: float
    why: str


def critical_path(outcome: Outcome, inside_us: float, outside_us: float) -> tuple[Step, ...]:
    """Steps from first to last, equal ones merged. inside_us: what the kernel takes from its first CTA to the end of its last, shared
    out over the steps; outside_us: the launch, the first step. The outcome has a log."""
    log = outcome.log
    assert log is not None
    found: dict[tuple[str, int, str, int, int, str], float] = {}
    e = outcome.last
    until = outcome.clocks
    while e >= 0:
        code, (role, instance), cause = log.code[e], outcome.names[log.agent[e]], log.cause[e]
        if cause >= 0:
            begin, why = min(log.end[cause], until), _why(code, log, cause)
        else:
            begin, why = min(log.begin[e], until), "executes"
        key = (role, instance, code.name, code.line, code.col, why)
        spent = (until - begin) * log.mult[e]
        # insertion order is from last to first; a step that comes back belongs to its first time
        found[key] = found.pop(key, 0.0) + spent
        until = begin
        e = cause if cause >= 0 else log.before[e]
    whole = sum(found.values())
    total = inside_us + outside_us
    steps = (
        [Step("launch", 0, "launch", 0, 0, outside_us, outside_us / total, "executes")] if outside_us and total else []
    )
    for (role, instance, what, line, col, why), clocks in reversed(found.items()):
        us = clocks / whole * inside_us if whole else 0.0
        if total and us >= LEAST * total:
            steps.append(Step(role, instance, what, line, col, us, us / total, why))
    return tuple(steps)


def _why(code: Code, log: Log, cause: int) -> str:
    words = _WAITING.get(code.kind)
    if words is None:
        other = log.code[cause]
        return f"waits for {other.name} of {other.subject}" if other.subject else f"waits for {other.name}"
    return words.format(subject=code.subject, name=code.name)
