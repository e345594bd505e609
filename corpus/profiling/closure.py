"""Whether a timeline's spans add up to the kernel's time, held against a clock that the timeline does not use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Closure:
    """`share`: spans and idle time of the role that accounts for least, over the time that `against` names."""

    share: float
    against: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"share": round(self.share, 4), "against": self.against}


EVENTS = "the recorded launch between two events"
CYCLES = "the SM cycles that ncu counted for the plain kernel, and the cost of recording"


def closure(timeline: Mapping[str, Any], metrics: Mapping[str, Any]) -> Closure | None:
    """Against the event time of the recorded launch where it was taken, else in SM cycles against ncu's count (`metrics`:
    name -> value), because another launch runs at another clock. None without a timeline or without either.

    The share falls short of 1 where records are lost, and leaves it where cycles are converted wrongly; launching and ending
    a grid takes a few microseconds of the event time.
    """
    roles = timeline.get("roles") or ()
    if not roles:
        return None
    told = min(sum(r["us"].values()) for r in roles)
    if timeline.get("recorded_us"):
        return Closure(told / timeline["recorded_us"], EVENTS)
    elapsed = metrics.get("elapsed_cycles")
    if not elapsed or not timeline.get("clock_ghz"):
        return None
    return Closure(told * timeline["clock_ghz"] * 1000 / (elapsed * (1 + timeline["overhead"])), CYCLES)
