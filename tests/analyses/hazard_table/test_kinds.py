"""Small programs by kind of hazard, faulty ones and right ones that look unusual: `tests/data/kinds`.

Each file holds programs under `=== name: rule`, or `=== name: accepted`. Of a faulty program the line that must be named
ends in `# !`; the rule is the only error. Names say what was planted, or why the program is right.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from analyses import verify_text

KINDS = Path(__file__).parents[2] / "data" / "kinds"
MARK = "  # !"


def programs() -> list[tuple[str, str, str, str]]:
    """(kind, name, rule, text) of every program."""
    found: list[tuple[str, str, str, str]] = []
    for path in sorted(KINDS.glob("*.txt")):
        for part in path.read_text(encoding="utf-8").split("=== ")[1:]:
            head, _, text = part.partition("\n")
            name, _, rule = head.rpartition(": ")
            found.append((path.stem, name, rule, text))
    return found


ALL = programs()


@pytest.mark.parametrize("case", ALL, ids=lambda c: f"{c[0]}-{c[1]}")
def test_named_once_at_its_line_or_accepted(case: tuple[str, str, str, str]) -> None:
    _, _, rule, text = case
    report = verify_text(text.replace(MARK, ""))
    errors = [d for d in report.diagnostics if d.severity == "error"]
    shown = [d.render() for d in errors]
    if rule == "accepted":
        assert not errors, shown
        return
    lines = [i for i, line in enumerate(text.split("\n"), 1) if line.endswith(MARK)]
    assert len(lines) == 1
    assert [(d.rule, d.span.line) for d in errors] == [(rule, lines[0])], shown


def test_every_kind_has_programs_of_both_sorts() -> None:
    kinds = {kind for kind, *_ in ALL}
    assert len(kinds) >= 15 and len(ALL) >= 380
    for kind in kinds:
        rules = [rule for k, _, rule, _ in ALL if k == kind]
        assert "accepted" in rules and any(r != "accepted" for r in rules), kind
