"""The table of cheats in docs/measuring.md: `python -m tests.adversarial.report` writes it, a test compares it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.adversarial.cases import CHEATS, CONTROLS, KMEANS, WRONG, Cheat

PAGE = Path(__file__).parents[2] / "docs" / "measuring.md"
BEGIN, END = "<!-- adversarial: written by `python -m tests.adversarial.report` -->", "<!-- end of adversarial -->"


def table() -> str:
    """Markdown: one line per cheat, then the controls."""
    lines = ["| kernel | what it does | what catches it | verdict | cause |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {c.name} | {c.does} | {c.gate} | {c.verdict} | {', '.join(causes(c)) or f'the message says {_quoted(c)}'} |"
        for c in CHEATS
    ]
    lines += ["", "Nothing may be held against:", "", *(f"- {c.name}: {c.does}" for c in CONTROLS)]
    lines += ["- every corpus kernel: checked, and timed beside itself, which must be inconclusive (A/A)"]
    lines += ["- a corpus kernel launched twice, timed beside one launch of it: slower, not wrong"]
    return "\n".join(lines)


def _quoted(cheat: Cheat) -> str:
    return ", then ".join(f"“{w}”" for w in cheat.says)


def causes(cheat: Cheat) -> Sequence[str]:
    """The cause words of a row as they appear in results."""
    floats = any(c != KMEANS for c in cheat.contracts)
    labels = KMEANS in cheat.contracts
    wrong = [*(["mismatch"] if floats else []), *(["label"] if labels else [])]
    return list(dict.fromkeys(w for c in cheat.causes for w in (wrong if c == WRONG else [c])))


def put(page: str, part: str) -> str:
    """The page with its generated part replaced; raises ValueError when the page has no place for it."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page needs one {BEGIN} and one {END}")
    return page[: page.index(BEGIN)] + BEGIN + "\n\n" + part + "\n\n" + page[page.index(END) :]


if __name__ == "__main__":
    PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), table()), encoding="utf-8")
