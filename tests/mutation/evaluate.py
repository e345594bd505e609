"""One mutant through verifier and judge: a record of what both said."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Literal

from analyses.verifier import verify
from cake_ir import bind, parse
from cake_ir.bound import BoundKernel
from cake_ir.diagnostics import Diagnostic, Span
from cake_ir.syntax import File, For, If, While, With
from tests.mutation import explained
from tests.mutation.judge import OutOfTime, judge, processor_time, signal_time
from tests.mutation.mutants import mutations, text_of
from tests.mutation.operators import Mutation
from tests.mutation.subjects import Subject, subjects
from tests.mutation.tree import get, names

Outcome = Literal[
    "true reject", "true accept", "false accept", "other function", "explained reject", "unexplained reject", "refused",
    "undecided", "verifier crash",
]  # fmt: skip
OUTCOMES: tuple[Outcome, ...] = (
    "true reject", "true accept", "false accept", "other function", "explained reject", "unexplained reject", "refused",
    "undecided", "verifier crash",
)  # fmt: skip
EXTRA_ACCEPTED, EXTRA_REJECTED = 2, 12
"""Random schedules per launch beyond the judge's usual ones."""
VERIFY_S = 20.0
"""Processor seconds for verify, fixes apart; more is recorded as a crash of the verifier (it must answer in bounded time)."""


@dataclass
class Record:
    """One mutant. where: edit (the primary span is on the edited statement or, for what is gone, its neighbours), counterpart
    (it names or stands on a statement of the same barrier, buffer or group), elsewhere. bindings: those it ran under."""

    id: str
    subject: str
    kind: str
    op: str
    sync: bool
    what: str
    line: int
    bindings: dict[str, Any]
    outcome: Outcome = "undecided"
    rules: list[str] = field(default_factory=list)
    findings: int = 0
    message: str = ""
    at: int = 0
    where: str = ""
    fix: bool = False
    law: str = ""
    judge: str = ""
    judge_kind: str = ""
    judge_message: str = ""
    judge_first: str = ""
    judge_line: int = 0
    verify_ms: float = 0.0
    """Processor time of derivation and all readings of the verifier; fixes apart."""
    fix_ms: float = 0.0
    """Processor time of the search for fixes, every candidate re-verified."""
    seconds: float = 0.0


@lru_cache(maxsize=4)
def _mutations(name: str) -> list[Mutation]:
    return list(mutations(subject_named(name)))


def subject_named(name: str) -> Subject:
    """A subject; KeyError with the known names."""
    found = {s.name: s for s in subjects()}
    if name not in found:
        raise KeyError(f"no subject {name}; known: {', '.join(found)}")
    return found[name]


def mutation(name: str, index: int) -> Mutation:
    """One edit of a subject by its number in the subject's order."""
    return _mutations(name)[index]


def evaluate(name: str, index: int, mutant_id: str, *, fixes: bool = True) -> Record:
    """Verifies and judges one mutant of the plan."""
    begin = time.process_time()
    subject = subject_named(name)
    m = mutation(name, index)
    text = text_of(m)
    bindings = dict(subject.bindings[index % len(subject.bindings)])
    record = Record(mutant_id, name, m.kind, m.op, m.sync, m.what, m.line, bindings)
    parsed = parse(text, name)
    if parsed.file is None:  # the printer promises otherwise; a broken promise must not look like a refusal
        raise AssertionError(
            f"{name} {index}: a printed mutant does not parse: {[d.render() for d in parsed.diagnostics]}"
        )
    try:
        result = bind(parsed.file, bindings, subject.target)
    except Exception as bug:  # binding never raises for a faulty program either
        record.outcome, record.message = "verifier crash", f"bind: {type(bug).__name__}: {bug}"[:300]
        return record
    if result.bound is None:
        errors = [d for d in result.diagnostics if d.severity == "error"]
        _found(record, errors, m, parsed.file)
        record.outcome = "refused"
    else:
        errors = _verify(record, result.bound)
        if errors is not None:
            _found(record, errors, m, parsed.file)
            if errors and fixes:
                started = signal_time()
                record.fix = _fixed(errors, text, bindings, subject.target, result.bound)
                record.fix_ms = round(1e3 * (signal_time() - started), 1)
            _judge(record, subject, result.bound)
    record.seconds = round(time.process_time() - begin, 3)
    return record


def _verify(record: Record, bound: BoundKernel) -> list[Diagnostic] | None:
    begin = signal_time()
    try:
        with processor_time(VERIFY_S):
            report = verify(bound)
    except OutOfTime:
        record.outcome, record.message = "verifier crash", f"no answer within {VERIFY_S:.0f} s"
        return None
    except Exception as bug:  # the verifier never raises for a faulty program: this is its bug, and a result
        record.outcome, record.message = "verifier crash", f"{type(bug).__name__}: {bug}"[:300]
        return None
    record.verify_ms = round(1e3 * (signal_time() - begin), 1)
    return [d for d in report.diagnostics if d.severity == "error"]


def _judge(record: Record, subject: Subject, bound: BoundKernel) -> None:
    accepted = not record.rules
    # a rejected mutant that passes is under suspicion of being a false reject: it gets many more schedules
    extra = EXTRA_ACCEPTED if accepted else EXTRA_REJECTED
    j = judge(bound, subject.launches, ordered=subject.ordered, ragged=subject.ragged, patient=accepted, extra=extra)
    record.judge, record.judge_kind, record.judge_first = j.state, j.kind, j.first
    record.judge_message, record.judge_line = j.message[:400], j.line
    law = explained.law(record.rules, record.kind, record.op, record.what) or ""
    record.outcome = outcome(accepted, j.state, law)
    if record.outcome == "explained reject":
        record.law = law


def outcome(accepted: bool, state: str, law: str = "") -> Outcome:
    """The cell of the table: verifier verdict times judge verdict."""
    if state in ("crash", "unsupported"):
        return "undecided"
    if accepted:
        if state in ("passed", "declined"):
            return "true accept"
        return "other function" if state == "wrong" else "false accept"
    if state in ("fault", "schedule", "wrong", "timeout"):
        return "true reject"
    return "explained reject" if law else "unexplained reject"


def _fixed(errors: list[Diagnostic], text: str, bindings: dict[str, Any], target: str, bound: BoundKernel) -> bool:
    """Whether a verified fix is offered for any of the findings."""
    from analyses.fixes import with_fixes

    found = with_fixes(errors, text, bindings=bindings, target=target, bound=[bound])
    return any(f.verified for d in found for f in d.fixes)


# ---- is the finding where the edit was? ------------------------------------------------------------------------------


def _found(record: Record, errors: list[Diagnostic], m: Mutation, file: File) -> None:
    record.rules = list(dict.fromkeys(d.rule for d in errors))
    record.findings = len(errors)
    if errors:
        primary = errors[0]
        record.message, record.at = primary.message[:300], primary.span.line
        record.where = placed(primary, m, file)


def _lines(s: Any) -> range:
    """Lines of a statement; of a compound one, of its header."""
    first: Span = s.span
    end = s.body[0].span.line - 1 if isinstance(s, (For, While, If, With)) else max(first.end_line, first.line)
    return range(first.line, max(first.line, end) + 1)


def placed(primary: Diagnostic, m: Mutation, file: File) -> str:
    """edit, counterpart or elsewhere, for the primary span of a finding in the mutant's text."""
    kernel = file.kernels[0]
    at = primary.span.line
    marked = [get(kernel, path) for path in m.marks]
    if any(at in _lines(s) for s in marked):
        return "edit"
    named = {primary.subject.resource or "", *names_at(kernel, at)}
    if named & m.resources or (primary.subject.op or "-") == m.op:
        return "counterpart"
    return "elsewhere"


def names_at(kernel: Any, line: int) -> set[str]:
    """Names in the statement on a line."""
    found: set[str] = set()

    def visit(block: Any) -> None:
        for s in block:
            if isinstance(s, (For, While, If, With)):
                if line in _lines(s):
                    found.update(names(getattr(s, "cond", None) or getattr(s, "iter", None) or s.context))  # type: ignore[union-attr]
                visit(s.body)
                visit(getattr(s, "orelse", ()))
            elif line in _lines(s):
                found.update(names(s))

    visit(kernel.body)
    return found


def to_json(r: Record) -> dict[str, Any]:
    """The record as a JSON object."""
    return asdict(r)
