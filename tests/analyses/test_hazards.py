"""Public hazards are rejected with the right rule at the right line; the programs they were planted in are accepted."""

from __future__ import annotations

import pytest

from analyses import verify_text
from tests.analyses.hazards import HAZARDS, Hazard, read


def _name(h: Hazard) -> str:
    return f"{h.number}-{h.program}-{h.rule.split('/')[-1]}"


@pytest.mark.parametrize("hazard", HAZARDS, ids=_name)
def test_the_planted_hazard_gives_its_rule_at_its_line(hazard: Hazard) -> None:
    text = hazard.text
    errors = [d for d in verify_text(text, hazard.bindings).diagnostics if d.severity == "error"]
    assert {d.rule for d in errors} == {hazard.rule}, [d.render() for d in errors]
    assert hazard.line in text.split("\n")[errors[0].span.line - 1], errors[0].render()
    assert errors[0].contract and errors[0].message


@pytest.mark.parametrize("program", sorted({h.program for h in HAZARDS}))
def test_the_program_without_the_fault_is_accepted(program: str) -> None:
    errors = [d.render() for d in verify_text(read(program)).diagnostics if d.severity == "error"]
    assert errors == []


def test_the_table_covers_the_kinds() -> None:
    families = {h.rule.split("/")[0] for h in HAZARDS}
    assert families >= {"sync", "data", "derive", "hardware", "language", "schedule"}
    assert len({h.number for h in HAZARDS}) >= 35
