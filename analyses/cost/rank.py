"""The order of several predictions at one shape, with what the model is known to tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analyses.cost.estimate import Estimate
from analyses.cost.history import History

EQUAL = 1e-6
"""Predictions this close (as a fraction) are one prediction."""


@dataclass(frozen=True)
class Place:
    """One candidate. times_best: its time over that of the first. tied: its prediction is not told apart from the one before it."""

    name: str
    estimate: Estimate
    times_best: float
    tied: bool


@dataclass(frozen=True)
class Ranking:
    """Candidates, least time first. contenders: how many, from the first on, are not told apart from the first (itself counted)."""

    places: tuple[Place, ...]
    history: History
    contenders: int


def rank(estimates: Sequence[tuple[str, Estimate]], history: History) -> Ranking:
    """Order named predictions of one shape, device and L2 state by time; equal ones stay as given. Raises ValueError for predictions
    that cannot be compared. Without a known resolution only equal predictions are tied."""
    if len({(tuple(sorted(e.shape.items())), e.device, e.l2) for _, e in estimates}) > 1:
        raise ValueError("predictions of different shapes, devices or L2 states have no order")
    apart = 1 + max(history.resolution or 0.0, EQUAL)
    places: list[Place] = []
    for name, e in sorted(estimates, key=lambda named: named[1].time_us):
        best = places[0].estimate.time_us if places else e.time_us
        tied = bool(places) and e.time_us < places[-1].estimate.time_us * apart
        places.append(Place(name, e, e.time_us / best if best else 1.0, tied))
    return Ranking(tuple(places), history, sum(p.times_best < apart for p in places))
