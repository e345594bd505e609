"""Each hazard is an accepted program with one edit: the right rule, at the right line, once; its repair is accepted."""

from __future__ import annotations

import pytest

from analyses import verify_text
from analyses.report import Report
from tests.analyses.hazard_table import data, hardware, lookalikes, rings, sync
from tests.analyses.hazard_table.cases import BASES, DATA, DEFAULTS, Case, line_of, source

CASES = [*sync.CASES, *data.CASES, *hardware.CASES, *lookalikes.CASES, *rings.CASES]
REJECTED = [c for c in CASES if c.rule is not None]
RIGHT = [c for c in CASES if c.rule is None]
PROGRAMS = sorted({*BASES, *(p.stem for p in (DATA / "hazards").glob("*.cake"))})


def shown(report: Report) -> list[str]:
    return [d.render() for d in report.diagnostics]


@pytest.mark.parametrize("name", PROGRAMS)
def test_baseline_is_accepted(name: str) -> None:
    report = verify_text(source(name), DEFAULTS.get(name))
    assert report.accepted and not [d for d in report.diagnostics if d.severity == "warning"], shown(report)
    open_ = [p.name for p in report.properties if p.verdict in ("refuted", "undecided")]
    assert open_ == (["progress"] if name == "poll_sm90" else []), "only a poll of another grid's flag is left open"


@pytest.mark.parametrize("case", REJECTED, ids=str)
def test_hazard_is_named_once_at_its_line(case: Case) -> None:
    text = case.text
    report = verify_text(text, case.all_bindings, case.target)
    assert text != source(case.base) or case.all_bindings or case.target
    named = [d for d in report.diagnostics if d.rule == case.rule]
    assert [d.span.line for d in named] == [line_of(text, case.at)], shown(report)
    assert named[0].severity == case.severity
    gates = [d for d in report.diagnostics if d.severity == "error"]
    assert gates == (named if case.severity == "error" else []), shown(report)


@pytest.mark.parametrize("case", RIGHT, ids=str)
def test_repair_or_lookalike_is_accepted(case: Case) -> None:
    report = verify_text(case.text, case.all_bindings, case.target)
    assert report.accepted, shown(report)
