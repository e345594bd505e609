"""The rules: one file each under `analyses/rules/<family>/`, which is its page, its tests and (where it is not found by the
binder, the derivation or the order reading) its check.

A rule module holds a docstring (the page: what it checks, why it matters, source, limits), `RULE`, and two programs,
`REJECTED` and `ACCEPTED`, which *are* the rule's tests.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType
from typing import Any

from cake_ir.diagnostics import CakeError, Diagnostic, error


@dataclass(frozen=True)
class Rule:
    """One rule.

    id: "family/name", stable for ever. layer: one of report.LAYERS; it says who finds it. source: where the fact comes from.
    check: for layers "resources" and "performance", a function of the check context that yields diagnostics.
    bindings/target/kernel/line: how to run REJECTED and where the finding must be (1-based line).
    """

    id: str
    severity: str
    layer: str
    title: str
    source: str
    since: str = "0.1"
    line: int = 0
    target: str | None = None
    bindings: dict[str, Any] = field(default_factory=dict)
    accepted_bindings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """A rule with its module."""

    rule: Rule
    module: ModuleType

    @property
    def check(self) -> Callable[[Any], Iterable[Diagnostic]] | None:
        return getattr(self.module, "check", None)

    @property
    def rejected(self) -> str:
        return self.module.REJECTED.strip() + "\n"

    @property
    def accepted(self) -> str:
        return self.module.ACCEPTED.strip() + "\n"

    @property
    def markdown(self) -> str:
        """The page as `cake explain` shows it."""
        r = self.rule
        doc = (self.module.__doc__ or "").strip()
        return (
            f"# {r.id}\n\n{r.title}\n\nSeverity: {r.severity}. Found by: {r.layer}. Since: {r.since}.\n\n{doc}\n\n"
            f"Source: {r.source}\n\n## Rejected\n\n```python\n{self.rejected}```\n\n## Accepted\n\n```python\n{self.accepted}```\n"
        )


@lru_cache(maxsize=1)
def registry() -> dict[str, Page]:
    """All rules by id, sorted. Importing them is cheap: no rule imports numpy."""
    found: dict[str, Page] = {}
    for family in pkgutil.iter_modules(__path__):
        if not family.ispkg:
            continue
        package = importlib.import_module(f"{__name__}.{family.name}")
        for entry in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{entry.name}")
            rule = module.RULE
            if rule.id in found:
                raise RuntimeError(f"rule {rule.id} is declared twice")
            found[rule.id] = Page(rule, module)
    return dict(sorted(found.items()))


@lru_cache(maxsize=512)
def contract_of(rule_id: str) -> str:
    """The broken rule in one sentence, from its page ("" for a rule without page)."""
    found = registry().get(rule_id)
    doc = " ".join((found.module.__doc__ or "").split()) if found else ""
    start, end = doc.find("**Checks.** "), doc.find(" **Why.**")
    text = doc[start + len("**Checks.** ") : end] if 0 <= start < end else ""
    return text[: text.find(". ") + 1] if ". " in text else text


def page(rule_id: str) -> Page:
    """One rule's page; raises CakeError `language/unknown-rule` with close names."""
    table = registry()
    if rule_id in table:
        return table[rule_id]
    import difflib

    close = difflib.get_close_matches(rule_id, table, 3)
    raise CakeError(
        error(
            "language/unknown-rule",
            "language",
            f"no rule '{rule_id}'" + (f"; close: {', '.join(close)}" if close else "; `cake rules` lists them"),
        )
    )
