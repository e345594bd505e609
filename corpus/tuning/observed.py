"""Measured times of one element type as a matrix, with what is missing filled in carefully, and how noisy they are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corpus.families import Family, Shape
from corpus.tuning.campaign import Campaign
from lowering.runtime import stats
from lowering.sizes import expression

UNMEASURED = 1.25
"""A candidate that was not measured at a shape that it takes was predicted to lose there: it counts as at least so many times the
best that was measured."""


@dataclass(frozen=True)
class Observed:
    """us[s, c]: median microseconds of candidate c at shape s; NaN where it does not take the shape. measured[s, c]: whether that
    was measured, not filled in. noise: what equal kernels differ by (the log-ratio that 95 % of the A/A pairs keep within)."""

    shapes: tuple[Shape, ...]
    features: tuple[Mapping[str, int], ...]
    candidates: tuple[str, ...]
    us: np.ndarray
    measured: np.ndarray
    noise: float

    @property
    def takes(self) -> np.ndarray:
        """takes[s, c]: whether candidate c serves shape s."""
        return ~np.isnan(self.us)

    def subset(self, rows: Sequence[int]) -> Observed:
        """The same candidates at some of the shapes."""
        index = list(rows)
        return Observed(
            tuple(self.shapes[i] for i in index), tuple(self.features[i] for i in index), self.candidates, self.us[index],
            self.measured[index], self.noise,
        )  # fmt: skip


class Taken:
    """Which shapes a recipe takes, for asking many times: what `lowering.recipe.concrete` checks, and whether anything is launched."""

    def __init__(self, recipe: Mapping[str, Any], dims: Sequence[str], scalars: Mapping[str, float], sms: int) -> None:
        names = [*dims, *scalars, "sms"]
        grids = [step["manifest"]["grid"] for step in recipe["launches"] if "manifest" in step]
        self._conditions = [expression(text, names) for text, _ in recipe["admits"]]
        self._grids = [expression(text, names) for text in grids]
        self._more = {**scalars, "sms": sms}

    def __call__(self, dims: Mapping[str, int]) -> bool:
        env = {**dims, **self._more}
        return all(holds(env) for holds in self._conditions) and any(grid(env) > 0 for grid in self._grids)


def taken_by(family: Family, campaign: Campaign, names: Sequence[str], sms: int) -> list[Taken]:
    """`Taken` of candidates by id."""
    records = [campaign.record(n) for n in names]
    return [Taken(r.recipe, family.dims, campaign.contract(r.dtype).scalar_values(), sms) for r in records]


def trusted(entries: Sequence[Mapping[str, Any]], lost: frozenset[str] | set[str]) -> set[str]:
    """Candidates that were right wherever they ran. One wrong result, one hang, one time that cannot be, and it is out."""
    seen, bad = set(), set(lost)
    for e in entries:
        for name, c in e["contenders"].items():
            seen.add(name)
            if c["check"] == "failed" or c.get("doubt"):
                bad.add(name)
    return seen - bad


def noise(entries: Sequence[Mapping[str, Any]]) -> float:
    """The A/A bound: the |log ratio| between the medians of a candidate and of itself that 95 % of the shapes keep within, from the
    median of all shapes (1.96 / 0.6745 times it, as of normal noise), so that a few shapes that were disturbed do not raise it for
    all; at least the timing gate's own band."""
    found = [
        abs(math.log(statistics.median(e["again"]["samples_us"]) / e["contenders"][e["again"]["of"]]["us"]))
        for e in entries
        if e.get("again") and e["again"]["samples_us"] and "us" in e["contenders"][e["again"]["of"]]
    ]
    return max(1.96 / 0.6745 * statistics.median(found) if found else 0.0, math.log(1 + stats.NOISE))


def observe(
    family: Family, campaign: Campaign, names: Mapping[str, str], entries: Sequence[Mapping[str, Any]], sms: int
) -> Observed:
    """The matrix of the shapes of `entries`, in their order; one without contenders is known by corrected predictions only.

    names: measured candidate -> the candidate it stands for (itself, or its twin of another element type), in order.
    """
    us = np.full((len(entries), len(names)), np.nan)
    for s, e in enumerate(entries):
        for c, name in enumerate(names):
            us[s, c] = e["contenders"].get(name, {}).get("us", np.nan)
    measured = ~np.isnan(us)
    taken = measured.copy()
    for c, takes in enumerate(taken_by(family, campaign, list(names), sms)):
        for s, e in enumerate(entries):
            taken[s, c] = taken[s, c] or takes(e["dims"])
    _fill(campaign, list(names), entries, us, taken)
    shapes = tuple(dict(e["dims"]) for e in entries)
    keep = [s for s in range(len(shapes)) if not np.isnan(us[s]).all()]
    features = tuple(family.features(s, sms) for s in shapes)
    return Observed(shapes, features, tuple(names.values()), us, measured, noise(entries)).subset(keep)


def _fill(
    campaign: Campaign, names: Sequence[str], entries: Sequence[Mapping[str, Any]], us: np.ndarray, taken: np.ndarray
) -> None:
    """Estimates where a candidate takes a shape and was not measured: its prediction, corrected by what its measured ones were off
    by, and, where others were measured, no better than `UNMEASURED` times the best of them."""
    number = {tuple(sorted(e.dims.items())): i for i, e in enumerate(campaign.shapes)}
    rows = [number.get(tuple(sorted(e["dims"].items()))) for e in entries]
    real = us.copy()
    for c, name in enumerate(names):
        predicted = campaign.predictions.get(name, ())
        told = [predicted[r] if r is not None and r < len(predicted) else None for r in rows]
        off = [math.log(real[s, c] / p) for s, p in enumerate(told) if p and not np.isnan(real[s, c])]
        factor = math.exp(statistics.median(off)) if off else 1.0
        for s, p in enumerate(told):
            if not taken[s, c] or not np.isnan(us[s, c]):
                continue
            if (
                np.isnan(real[s]).all()
            ):  # nobody was measured here: predictions alone, where this candidate's are known to be worth something
                us[s, c] = p * factor if p and off else np.nan
                continue
            least = UNMEASURED * float(np.nanmin(real[s]))
            us[s, c] = max(p * factor, least) if p else least
