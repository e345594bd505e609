"""The hazard table: every row is an accepted program with one edit, the rule that must name it, and the line that must be
named. Not a test module; `test_table.py` runs it.

A place is written as a part of its line; `#2` after it means the second such line of the edited program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data"

BASES = {
    "b0": DATA / "hazards" / "b0_gemm_sm90.cake",
    "b1": DATA / "hazards" / "b1_gemm_sm100.cake",
    "b2": DATA / "hazards" / "b2_gemm_sm80.cake",
    "b3": DATA / "hazards" / "b3_pair_sm100.cake",
    "b4": DATA / "sketches" / "06_attention_sm90.cake",
    "ampere_alias": ROOT / "corpus" / "kernels" / "gemm_sm80.cake",
    "persistent": ROOT / "corpus" / "kernels" / "gemm_sm90.cake",
}
DEFAULTS: dict[str, dict[str, Any]] = {"b4": {"D": 64}}


@dataclass(frozen=True)
class Case:
    """One rejected program. edits: (old, new) pairs, each old must occur exactly once. rule None: the program is right."""

    hazard: str
    base: str
    edits: tuple[tuple[str, str], ...]
    rule: str | None
    at: str = ""
    severity: str = "error"
    bindings: dict[str, Any] = field(default_factory=dict)
    target: str | None = None

    def __str__(self) -> str:
        edit = self.edits[0][1].strip().splitlines() if self.edits else []
        return f"{self.hazard}-{self.base}-{(edit or ['cut'])[0][:40]}"

    @property
    def text(self) -> str:
        text = source(self.base)
        for old, new in self.edits:
            assert text.count(old) == 1, f"{text.count(old)} times in {self.base}: {old!r}"
            text = text.replace(old, new)
        return text

    @property
    def all_bindings(self) -> dict[str, Any]:
        return {**DEFAULTS.get(self.base, {}), **self.bindings}


@cache
def source(base: str) -> str:
    """The text of a baseline, by name."""
    path = BASES.get(base, DATA / "hazards" / f"{base}.cake")
    return path.read_text(encoding="utf-8")


def line_of(text: str, at: str) -> int:
    """The 1-based number of the line that contains `at`, or of the k-th such line for `at#k`."""
    part, _, number = at.partition("#")
    lines = [i for i, line in enumerate(text.splitlines(), 1) if part in line]
    assert lines, f"no line has {part!r}"
    assert number or len(lines) == 1, f"{len(lines)} lines have {part!r}"
    return lines[int(number or 1) - 1]


def case(
    hazard: str, base: str, old: str, new: str, rule: str | None, at: str = "", severity: str = "error", **bindings: Any
) -> Case:
    return Case(hazard, base, ((old, new),), rule, at, severity, bindings)
