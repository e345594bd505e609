"""docs/verifier.md names rules that exist, and the programs of the table use every gate family."""

from __future__ import annotations

import re
from pathlib import Path

from analyses.rules import registry
from tests.analyses.hazard_table.test_table import CASES, REJECTED, RIGHT

PAGE = Path(__file__).parents[3] / "docs" / "verifier.md"


def test_rules_on_the_page_exist() -> None:
    named = set(
        re.findall(r"`((?:data|sync|derive|hardware|numeric|schedule|performance)/[a-z0-9-]+)`", PAGE.read_text())
    )
    assert len(named) > 30
    assert named <= set(registry())


def test_the_table_is_wide() -> None:
    kinds = {c.hazard for c in REJECTED if c.hazard.startswith("H")}
    assert len(kinds) >= 45
    assert {(c.rule or "").split("/")[0] for c in REJECTED} >= {
        "sync",
        "data",
        "derive",
        "hardware",
        "numeric",
        "schedule",
    }
    assert len(RIGHT) >= 25


def test_every_hazard_is_shown_or_explained() -> None:
    part = PAGE.read_text().split("### The hazards by number")[1].split("## Report card")[0]
    shown, rest = part.split("Shown by accepted programs:")
    look, left_out = rest.split("| not shown |")
    number = re.compile(r"\bH\d\d\b")
    rejected = {c.hazard for c in REJECTED if c.hazard.startswith("H")}
    assert set(number.findall(shown.split("with their repairs:")[1])) == rejected
    listed = set(re.findall(r"list-\d+", look))
    assert listed == {c.hazard for c in CASES if c.hazard.startswith("list")}
    # an unused barrier is warned about, no more than that
    assert listed - {"list-15"} <= {c.hazard for c in RIGHT}
    rows = [line for line in left_out.splitlines() if number.search(line.split("|")[1] if "|" in line else "")]
    explained = [h for line in rows for h in number.findall(line.split("|")[1])]
    assert len(explained) == len(set(explained)) and not set(explained) & rejected
    assert all(len(line.split("|")[2].strip()) > 20 for line in rows)
