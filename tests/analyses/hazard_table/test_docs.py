"""docs/verifier.md names rules that exist, and the programs of the table use every gate family."""

from __future__ import annotations

import re
from pathlib import Path

from analyses.rules import registry
from tests.analyses.hazard_table.test_table import REJECTED, RIGHT

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
