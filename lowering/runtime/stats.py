"""Statistics of timings: median, spread, and whether two contenders differ. Pure Python, no chance involved.

Two contenders are compared by the logarithm of their ratio, round by round, because clocks and temperature drift
together for samples that lie next to each other. Rounds run forward and backward in turn, an even number of them counts,
so that what the position in a round does is as often for a contender as against it. The interval is the signed-rank one
(Hollander and Wolfe, Nonparametric Statistical Methods, 3.1 and 3.3): it assumes no distribution of the noise beyond
symmetry, and one wild sample does not decide it. It assumes independent rounds, which they are not where something warms
up or wanders; hence the widening by what neighbouring pairs of rounds have in common.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["faster", "slower", "inconclusive"]

CONFIDENCE = 0.99
NOISE = 0.005
"""Half width of the band around 1 that an interval must leave: what other addresses do to two equal kernels."""
MIN_EFFECT = 0.01
"""A smaller difference is never called one, however sure: it does not survive another placement or another day."""
MIN_US = 0.2
"""Nor is a difference of fewer microseconds: launches of a few microseconds move with the addresses they write to. Of 216
pairs of equal kernels on an H200, each pair on one module and the same inputs, 11 differed by more than 1 %, always the
same way for the same addresses; all were memory-bound, of 2.9 to 6.7 microseconds, and the largest difference was 0.148."""
CLOCK_SHIFT = 0.01
"""Mean SM clocks further apart than this explain a part of the ratio; NVML reports clocks in steps of 15 MHz (0.8 %)."""
MIN_ROUNDS = 8
"""The fewest for which a signed-rank interval of 99 % exists (2 / 2**8 < 1 %)."""

RULE = (
    "A round times every contender once, forward and backward in turn, and gives one log-ratio of baseline over candidate (an odd first "
    f"round is left out). ratio: median of their Walsh averages; its interval: signed-rank, {CONFIDENCE:.0%}, widened by "
    "sqrt((1 + r) / (1 - r)) for the correlation r > 0 of neighbouring pairs of rounds. "
    f"faster: interval above {1 + NOISE:g} and ratio at least {1 + MIN_EFFECT:g}; slower: interval below {1 - NOISE:g} and ratio at most "
    f"{1 - MIN_EFFECT:g}; both at least {MIN_US:g} µs a launch; else inconclusive. If mean SM "
    f"clocks differ by more than {CLOCK_SHIFT:.0%}, the ratio at equal clocks must agree"
)


@dataclass(frozen=True)
class Summary:
    """Of a list of times, in their unit: median, median absolute deviation, interval of the median, extremes, count.

    `cv` is the coefficient of variation, standard deviation over mean. Without enough values for an interval of
    `CONFIDENCE`, `low` and `high` are the extremes.
    """

    median: float
    mad: float
    low: float
    high: float
    minimum: float
    maximum: float
    count: int
    cv: float


def median(values: Sequence[float]) -> float:
    """The middle value; the mean of the middle two for an even count. ValueError when empty."""
    if not values:
        raise ValueError("no values")
    return float(statistics.median(values))


def cv(values: Sequence[float]) -> float:
    """Standard deviation over mean; 0 for fewer than two values."""
    return statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else 0.0


def summarise(values: Sequence[float]) -> Summary:
    """Median with its order-statistic (sign test) interval, and spread."""
    centre, ordered = median(values), sorted(values)
    cut = _sign_cut(len(ordered))
    return Summary(
        median=centre,
        mad=median([abs(v - centre) for v in values]),
        low=ordered[cut],
        high=ordered[-1 - cut],
        minimum=ordered[0],
        maximum=ordered[-1],
        count=len(ordered),
        cv=cv(values),
    )


def _sign_cut(count: int) -> int:
    """How many values may be cut off at each end so that the rest covers the median with `CONFIDENCE`."""
    cut, below = 0, 0.5**count
    while 2 * (below + math.comb(count, cut + 1) * 0.5**count) <= 1 - CONFIDENCE:
        cut += 1
        below += math.comb(count, cut) * 0.5**count
    return cut


def walsh(values: Sequence[float]) -> list[float]:
    """The means of all pairs (each value with itself too), sorted: n (n + 1) / 2 of them."""
    return sorted((values[i] + values[j]) / 2 for i in range(len(values)) for j in range(i, len(values)))


def signed_rank_cut(count: int) -> int | None:
    """How many Walsh averages to cut off at each end for an interval of `CONFIDENCE`, or None when none reaches it.

    Exact null distribution: the number of subsets of the ranks 1..count by their sum.
    """
    ways = [1]
    for rank in range(1, count + 1):
        longer = ways + [0] * rank
        for total, n in enumerate(ways):
            longer[total + rank] += n
        ways = longer
    below, allowed = 0, (1 - CONFIDENCE) / 2 * 2**count
    for total, n in enumerate(ways):
        below += n
        if below > allowed:
            return total or None
    return None


@dataclass(frozen=True)
class Comparison:
    """`ratio` is baseline time over candidate time: above 1 the candidate is faster.

    `ratios` are those of the rounds that count, `correlation` is of neighbouring pairs of rounds (0 when negative).
    `clock_ratio`: the candidate's mean SM clock over the baseline's, when both were read. `message` says why a verdict
    is withheld.
    """

    baseline: str
    ratio: float
    low: float
    high: float
    verdict: Verdict
    ratios: tuple[float, ...] = ()
    correlation: float = 0.0
    clock_ratio: float | None = None
    message: str = ""


def compare(
    baseline: str, baseline_us: Sequence[float], candidate_us: Sequence[float], clock_ratio: float | None = None
) -> Comparison:
    """Compare by rounds (same length, same order) under `RULE`.

    With fewer than `MIN_ROUNDS` the interval spans the rounds and the verdict is inconclusive. ValueError when the
    rounds are not paired, or fewer than two.
    """
    if len(baseline_us) != len(candidate_us):
        raise ValueError("rounds are not paired")
    if len(baseline_us) < 2:
        raise ValueError("two rounds, one of each direction, are the least")
    logs = [math.log(b / c) for b, c in zip(baseline_us, candidate_us, strict=True)][len(baseline_us) % 2 :]
    averages = walsh(logs)
    cut = signed_rank_cut(len(logs))
    centre, shared = median(averages), correlation([(a + b) / 2 for a, b in zip(logs[::2], logs[1::2], strict=True)])
    wider = math.sqrt((1 + shared) / (1 - shared))
    low, high = (centre + wider * (end - centre) for end in (averages[(cut or 1) - 1], averages[-(cut or 1)]))
    ratio, low, high = (math.exp(v) for v in (centre, low, high))
    least = max(MIN_EFFECT, MIN_US / median(candidate_us))
    verdict, message = decide(ratio, low, high, least), ""
    if cut is None:
        verdict = "inconclusive"
        message = f"{len(baseline_us)} rounds give no interval of {CONFIDENCE:.0%}; {MIN_ROUNDS} are needed"
    elif verdict != "inconclusive" and clock_ratio is not None and abs(clock_ratio - 1) > CLOCK_SHIFT:
        if decide(ratio / clock_ratio, low / clock_ratio, high / clock_ratio, least) != verdict:
            verdict = "inconclusive"
            message = (
                f"the SM clocks differed by {abs(clock_ratio - 1):.1%}, which explains the difference from {baseline}"
            )
    ratios = tuple(math.exp(v) for v in logs)
    return Comparison(baseline, ratio, low, high, verdict, ratios, shared, clock_ratio, message)


def correlation(values: Sequence[float]) -> float:
    """How much neighbours have in common: the lag-one autocorrelation about the median, kept within 0 and 0.9."""
    centre = median(values)
    off = [v - centre for v in values]
    whole = sum(v * v for v in off)
    return min(max(sum(a * b for a, b in itertools.pairwise(off)) / whole, 0.0), 0.9) if whole else 0.0


def decide(ratio: float, low: float, high: float, least: float = MIN_EFFECT) -> Verdict:
    """The verdict on a ratio with its interval; `least`: the smallest difference from 1 that counts."""
    if low > 1 + NOISE and ratio >= 1 + least:
        return "faster"
    if high < 1 - NOISE and ratio <= 1 - least:
        return "slower"
    return "inconclusive"


def proportion_bound(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The Clopper-Pearson interval of a proportion: exact, two-sided. ValueError unless 0 <= hits <= trials, trials > 0."""
    if not 0 <= hits <= trials or trials < 1:
        raise ValueError("hits lie between 0 and the number of trials")
    tail = (1 - confidence) / 2

    def at_most(k: int, p: float) -> float:
        return sum(math.comb(trials, i) * p**i * (1 - p) ** (trials - i) for i in range(k + 1))

    def solve(k: int, wanted: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):  # at_most falls as p grows
            middle = (low + high) / 2
            low, high = (middle, high) if at_most(k, middle) > wanted else (low, middle)
        return (low + high) / 2

    return (0.0 if hits == 0 else solve(hits - 1, 1 - tail)), (1.0 if hits == trials else solve(hits, tail))
