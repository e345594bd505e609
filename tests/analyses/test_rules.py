"""Every rule page is a test: its rejected program gives exactly that rule at that line, its accepted program no
error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from analyses import verify_text
from analyses.report import LAYERS, Report
from analyses.rules import Page, page, registry
from cake_ir.diagnostics import CakeError
from tests.analyses.unpaged import UNPAGED

ROOT = Path(__file__).parents[2]
RULES = registry()
RANK = {"error": 0, "warning": 1, "advice": 2}
RULE_ID = re.compile(r'"((?:language|hardware|data|sync|schedule|derive|numeric|performance)/[a-z0-9-]+)"')
TEXT_RULE = re.compile(r'(?:fault|_finding|bad|_fault|\.add|\.stop)\(\s*"([a-z-]+)"')


def run(p: Page, text: str, bindings: dict[str, object]) -> Report:
    return verify_text(text, bindings, p.rule.target)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule_id", RULES)
def test_rejected_program_breaks_exactly_this_rule_at_its_line(rule_id: str) -> None:
    p = RULES[rule_id]
    found = run(p, p.rejected, p.rule.bindings).diagnostics
    shown = [d.render() for d in found]
    mine = [d for d in found if d.rule == rule_id]
    assert mine and mine[0].span.line == p.rule.line and mine[0].severity == p.rule.severity, shown
    assert {d.rule for d in found if RANK[d.severity] <= RANK[p.rule.severity]} == {rule_id}, shown
    assert mine[0].message and len(mine[0].message) < 600


@pytest.mark.parametrize("rule_id", RULES)
def test_accepted_program_is_accepted(rule_id: str) -> None:
    p = RULES[rule_id]
    found = run(p, p.accepted, p.rule.accepted_bindings).diagnostics
    assert not [d.render() for d in found if d.severity == "error" or d.rule == rule_id]


@pytest.mark.parametrize("rule_id", RULES)
def test_page_says_what_why_and_where_from(rule_id: str) -> None:
    p = RULES[rule_id]
    family, name = rule_id.split("/")
    assert p.module.__name__.rstrip("_") == f"analyses.rules.{family}.{name.replace('-', '_')}"
    assert p.rule.layer in LAYERS and p.rule.source and p.rule.title
    doc = p.module.__doc__ or ""
    assert "**Checks.**" in doc and "**Why.**" in doc
    assert p.rejected != p.accepted or p.rule.bindings != p.rule.accepted_bindings
    assert p.markdown.count("```python") == 2


def emitted() -> dict[str, list[str]]:
    """Rule ids that occur in the sources, with the files."""
    found: dict[str, list[str]] = {}
    files = [*(ROOT / "cake_ir").rglob("*.py"), *(ROOT / "analyses").rglob("*.py")]
    for path in files:
        text = path.read_text(encoding="utf-8")
        where = str(path.relative_to(ROOT))
        ids = set() if path.parent.parent.name == "rules" else set(RULE_ID.findall(text))
        if where.startswith("cake_ir/text/") or where == "cake_ir/jsonform.py":
            ids |= {f"language/{name}" for name in TEXT_RULE.findall(text)}
        for one in ids:
            found.setdefault(one, []).append(where)
    return found


def test_every_emitted_rule_has_a_page_or_a_reason() -> None:
    ids = emitted()
    missing = {i: files for i, files in ids.items() if i not in RULES and i not in UNPAGED}
    assert not missing, missing
    assert not set(UNPAGED) & set(RULES), "listed as page-less but has a page"
    own = {i for i, p in RULES.items() if p.check is not None}
    assert not set(RULES) - own - set(ids), "pages of rules that nothing emits"
    assert not set(UNPAGED) - set(ids), "reasons for rules that nothing emits"
    assert all(len(reason) > 20 for reason in UNPAGED.values())


def test_there_are_enough_rules_in_every_gate_family() -> None:
    families = {r.split("/")[0] for r in RULES}
    assert families >= {"language", "hardware", "data", "derive", "schedule", "sync", "numeric", "performance"}
    assert len(RULES) >= 25


def test_an_unknown_rule_is_answered_with_close_names() -> None:
    with pytest.raises(CakeError) as caught:
        page("hardware/smem-capacty")
    assert "hardware/smem-capacity" in caught.value.diagnostic.message
