"""Small statistics for timings: median, MAD, bootstrap intervals, the verdict of a comparison. Pure Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["faster", "slower", "inconclusive"]

RESAMPLES = 1000
CONFIDENCE = 0.95
# Differences below this are within what a change of clocks or of memory placement does between two equal kernels.
NOISE = 0.005
RULE = (
    f"faster if the {CONFIDENCE:.0%} bootstrap interval of median(baseline) / median(candidate) over paired rounds "
    f"lies above {1 + NOISE}, slower if below {1 - NOISE}, else inconclusive"
)


@dataclass(frozen=True)
class Summary:
    """Of a list of times, in their unit: median, median absolute deviation, interval of the median, extremes, count."""

    median: float
    mad: float
    low: float
    high: float
    minimum: float
    maximum: float
    count: int


def median(values: Sequence[float]) -> float:
    """The middle value; the mean of the middle two for an even count. ValueError when empty."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def summarise(values: Sequence[float], seed: int = 0) -> Summary:
    """Median, spread and the bootstrap interval of the median (repeatable for a seed)."""
    centre = median(values)
    low, high = bootstrap(len(values), lambda rows: median([values[i] for i in rows]), seed)
    return Summary(
        median=centre,
        mad=median([abs(v - centre) for v in values]),
        low=low,
        high=high,
        minimum=min(values),
        maximum=max(values),
        count=len(values),
    )


def bootstrap(count: int, statistic: Callable[[list[int]], float], seed: int = 0) -> tuple[float, float]:
    """Percentile interval of `statistic` over resampled row numbers 0..count-1."""
    source = random.Random(seed)
    found = sorted(statistic(source.choices(range(count), k=count)) for _ in range(RESAMPLES))
    tail = (1 - CONFIDENCE) / 2
    return found[int(tail * RESAMPLES)], found[min(int((1 - tail) * RESAMPLES), RESAMPLES - 1)]


@dataclass(frozen=True)
class Comparison:
    """`ratio` is baseline time over candidate time: above 1 the candidate is faster."""

    baseline: str
    ratio: float
    low: float
    high: float
    verdict: Verdict
    rule: str = RULE


def compare(baseline: str, baseline_us: Sequence[float], candidate_us: Sequence[float], seed: int = 0) -> Comparison:
    """Compare paired rounds (same length, same order). ValueError when they are not paired."""
    if len(baseline_us) != len(candidate_us):
        raise ValueError("rounds are not paired")

    def ratio(rows: list[int]) -> float:
        return median([baseline_us[i] for i in rows]) / median([candidate_us[i] for i in rows])

    low, high = bootstrap(len(baseline_us), ratio, seed)
    verdict: Verdict = "faster" if low > 1 + NOISE else "slower" if high < 1 - NOISE else "inconclusive"
    return Comparison(baseline, ratio(list(range(len(baseline_us)))), low, high, verdict)
