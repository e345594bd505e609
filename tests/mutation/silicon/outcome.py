"""What happened to a mutant on the device: the words, their order, and what is expected of each class.

Needs no GPU; the report and the tests use it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

Outcome = Literal["hang", "fault", "outside", "differs", "wrong", "refused", "ok"]
OUTCOMES: tuple[Outcome, ...] = ("hang", "fault", "outside", "differs", "wrong", "refused", "ok")
"""Worst first. hang: a launch does not end. fault: a CUDA error. outside: bytes beside a tensor, or an input, were written.
differs: launches on the same inputs give different bits (an unwritten or undefined value also shows so, since poison
differs). wrong: every launch gives the same result, which is not the reference's. refused: the driver does not take the
launch. ok: every launch gives what the reference says."""

FAILURES = frozenset({"hang", "fault", "outside", "differs", "wrong"})
"""What shows that a program is wrong. A refused launch shows that the program cannot run, not that it runs wrongly."""


def series(launches: Sequence[Mapping[str, Any]], ordered: bool) -> dict[str, Any]:
    """The outcome of launches of one program on one problem.

    Each launch: {"state": "ran", "bits": digest, "right": bool, "says": str, "group": key} or {"state": hang | fault | outside |
    refused, "says": str}. Bits are compared within a group. ordered: equal inputs must give equal bits.
    """
    counts = {
        "launches": len(launches),
        "right": sum(r["state"] == "ran" and r["right"] for r in launches),
        "wrong": sum(r["state"] == "ran" and not r["right"] for r in launches),
    }
    for r in launches:
        if r["state"] != "ran":
            return {"outcome": r["state"], "says": r["says"], **counts}
    groups: dict[Any, set[str]] = {}
    for r in launches:
        groups.setdefault(r["group"], set()).add(r["bits"])
    says = next((r["says"] for r in launches if not r["right"]), "")
    if ordered and any(len(bits) > 1 for bits in groups.values()):
        most = max(len(bits) for bits in groups.values())
        return {
            "outcome": "differs",
            "says": f"{most} results on the same inputs; {says or 'all within the bounds'}",
            **counts,
        }
    if 0 < counts["wrong"] < len(launches):
        return {"outcome": "differs", "says": f"{counts['wrong']} of {len(launches)} launches wrong: {says}", **counts}
    return {"outcome": "wrong" if counts["wrong"] else "ok", "says": says, **counts}


def worst(outcomes: Iterable[str]) -> str:
    """The worst of the outcomes of a mutant's series; refused when there are none."""
    found = set(outcomes)
    return next((o for o in OUTCOMES if o in found), "refused")


def agrees(kind: str, outcome: str) -> bool:
    """Whether an outcome is what the class promises. Nothing is promised of refuted ones: a race need not show."""
    if kind in ("control", "accepted"):
        return outcome == "ok"
    if kind == "other function":
        return outcome in ("ok", "wrong")
    return True


# ---- compute-sanitizer -------------------------------------------------------------------------------------------------

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
_NOISE = (
    "COMPUTE-SANITIZER",
    "ERROR SUMMARY",
    "RACECHECK SUMMARY",
    "Saved host backtrace",
    "Host Frame",
    "LEAK SUMMARY",
)
_PLACE = re.compile(r"^\s+at (.*)$")


def sanitizer(log: str) -> dict[str, Any]:
    """{"errors": number or None when the tool did not finish, "findings": first lines of up to five kinds of finding}."""
    total = None
    found: dict[str, str] = {}
    last = ""
    for line in log.splitlines():
        if not line.startswith("========="):
            continue
        text = line[9:]
        summary = _SUMMARY.search(text)
        if summary:
            total = (total or 0) + int(summary.group(1))
            continue
        place = _PLACE.match(text)
        if place and last and not found.get(last):
            found[last] = place.group(1)[:160]
        elif text.startswith(" ") and not text.startswith("  ") and text.strip() and not any(n in text for n in _NOISE):
            last = re.sub(r"(?<!\+)0x[0-9a-f]+", "0x..", text.strip())[:160]
            found.setdefault(last, "")
        else:
            last = last if text.startswith("  ") else ""
    findings = [f"{what}{' at ' + where if where else ''}" for what, where in found.items()]
    return {"errors": total, "findings": findings[:5]}
