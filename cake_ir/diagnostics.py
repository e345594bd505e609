"""The one diagnostic shape, from parse errors to profiler findings.

A diagnostic names the broken rule, where it is broken, the computed numbers, and, where it is mechanical, a fix.
Nothing here depends on any analysis.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from cake_ir.fault import CakeError

__all__ = [
    "NOWHERE", "CakeError", "Diagnostic", "Edit", "Family", "Fix", "Related", "Severity", "Span", "Step", "Subject", "error",
]  # fmt: skip

Severity = Literal["error", "warning", "advice"]
Family = Literal["safety", "hardware", "data", "schedule", "numeric", "performance", "advice", "language", "derive"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Span(_Model):
    """A range of source text. Lines and columns are 1-based; the end is exclusive."""

    line: int
    col: int
    end_line: int = 0
    end_col: int = 0

    def __str__(self) -> str:
        return f"{self.line}:{self.col}"


NOWHERE = Span(line=1, col=1, end_line=1, end_col=1)


class Related(_Model):
    """A second place that explains the first ("last read here", "released here")."""

    span: Span
    message: str


class Edit(_Model):
    """Replace the text at `span` by `new`; an empty span inserts."""

    span: Span
    new: str


class Fix(_Model):
    """A machine-applicable repair. `verified` is set only after the edited copy passed the verifier."""

    title: str
    edits: tuple[Edit, ...]
    verified: bool = False


class Subject(_Model):
    """What the finding is about, in the author's terms."""

    kernel: str | None = None
    role: str | None = None
    resource: str | None = None
    stage: int | None = None
    op: str | None = None


class Step(_Model):
    """One step of the causal slice that shows the fault."""

    text: str
    span: Span


class Diagnostic(_Model):
    """One finding. `rule` is stable and never reused; `contract` states the broken rule in one sentence."""

    rule: str
    family: Family
    severity: Severity
    message: str
    contract: str = ""
    span: Span = NOWHERE
    related: tuple[Related, ...] = ()
    subject: Subject = Field(default_factory=Subject)
    evidence: tuple[Step, ...] = ()
    fixes: tuple[Fix, ...] = ()

    def render(self) -> str:
        """The one-line text form; a finding without a place in a text has none."""
        place = "" if self.span == NOWHERE else f"{self.span}: "
        return f"{place}{self.severity}[{self.rule}]: {self.message}"


def error(rule: str, family: Family, message: str, span: Span = NOWHERE, **more: object) -> Diagnostic:
    """An error-severity diagnostic."""
    return Diagnostic(rule=rule, family=family, severity="error", message=message, span=span, **more)  # type: ignore[arg-type]
