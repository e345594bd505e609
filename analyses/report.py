"""What the verifier answers: findings, a verdict per property, the tables that engineers otherwise write by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from cake_ir.diagnostics import Diagnostic

Verdict = Literal["proved", "checked", "refuted", "undecided"]

# in this order; what a failed layer makes meaningless is skipped, and said to be
LAYERS = ("text", "binding", "derivation", "resources", "progress", "data", "performance")


@dataclass(frozen=True)
class Property:
    """One property of the program. scope says for what it holds (all admitted shapes, or the witnesses run)."""

    name: str
    verdict: Verdict
    scope: str
    reason: str = ""


@dataclass(frozen=True)
class Report:
    """The whole answer of `verify`. accepted: no error-severity finding. undecided properties never count as proved."""

    diagnostics: tuple[Diagnostic, ...]
    properties: tuple[Property, ...] = ()
    ledger: tuple[dict[str, Any], ...] = ()
    memory: dict[str, Any] = field(default_factory=dict)
    registers: tuple[dict[str, Any], ...] = ()
    coverage: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        return not any(d.severity == "error" for d in self.diagnostics)

    @property
    def undecided(self) -> tuple[Property, ...]:
        """What was not decided. An accepted program may be compiled and run, but none of this counts as proved or checked."""
        return tuple(p for p in self.properties if p.verdict == "undecided")
