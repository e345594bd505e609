"""Statistics of timings: exact where tables exist, and the rule's error rates on simulated clocks."""

from __future__ import annotations

import math
import random

import pytest

from lowering.runtime import stats

PAIRS = 600


def rounds(seed: int, ratio: float, *, noise: float = 0.01, memory: float = 0.4) -> tuple[list[float], list[float]]:
    """21 rounds of (baseline, candidate) as a GPU under a power cap gives them: a shared clock that drifts by some 5 %,
    0.6 % more for whoever runs first, noise of each contender with a memory, and one sample in fifty 10 % too long.
    """
    source = random.Random(seed)
    clock, own = source.gauss(0, 0.05), [source.gauss(0, noise), source.gauss(0, noise)]
    out: tuple[list[float], list[float]] = ([], [])
    for number in range(21):
        clock = 0.9 * clock + source.gauss(0, 0.02)
        for which in (0, 1):
            own[which] = memory * own[which] + math.sqrt(1 - memory**2) * source.gauss(0, noise)
            first = 0.006 if (number % 2 == 0) == (which == 1) else 0.0
            spike = 0.1 if source.random() < 0.02 else 0.0
            out[which].append((ratio if which == 0 else 1.0) * 100 * math.exp(clock + own[which] + first + spike))
    return out


def verdicts(ratio: float, **noise: float) -> list[str]:
    return [stats.compare("b", *rounds(seed, ratio, **noise)).verdict for seed in range(PAIRS)]


def test_equal_contenders_are_hardly_ever_told_apart() -> None:
    for noise in (0.003, 0.01):
        differ = [v for v in verdicts(1.0, noise=noise) if v != "inconclusive"]
        assert len(differ) <= 0.01 * PAIRS


def test_three_percent_is_found_in_21_rounds() -> None:
    faster, slower = verdicts(1.03), verdicts(1 / 1.03)
    assert faster.count("faster") > 0.85 * PAIRS and "slower" not in faster
    assert slower.count("slower") > 0.85 * PAIRS and "faster" not in slower
    assert verdicts(1.03, noise=0.003).count("faster") > 0.93 * PAIRS


def test_a_sure_difference_too_small_to_matter_is_none() -> None:
    exact = stats.compare("b", [100.8] * 20, [100.0] * 20)
    assert (exact.low, exact.high) == pytest.approx((1.008, 1.008)) and exact.verdict == "inconclusive"
    assert stats.compare("b", [101.1] * 20, [100.0] * 20).verdict == "faster"
    assert stats.compare("b", [98.9] * 20, [100.0] * 20).verdict == "slower"


def test_a_difference_that_placement_makes_is_none() -> None:
    assert stats.compare("b", [5.79] * 20, [5.6] * 20).verdict == "inconclusive"
    assert stats.compare("b", [5.81] * 20, [5.6] * 20).verdict == "faster"
    assert stats.compare("b", [5.39] * 20, [5.6] * 20).verdict == "slower"


def test_what_the_position_does_cancels() -> None:
    """The first in each round loses 2 %: without alternation that would be a verdict."""
    candidate = [102.0 if n % 2 == 0 else 100.0 for n in range(20)]
    baseline = [100.0 if n % 2 == 0 else 102.0 for n in range(20)]
    found = stats.compare("b", baseline, candidate)
    assert found.ratio == pytest.approx(1) and found.verdict == "inconclusive" and len(found.ratios) == 20
    odd = stats.compare("b", [500.0, *baseline], [100.0, *candidate])
    assert odd == found, "an odd first round is left out"


def test_signed_rank_cuts_are_those_of_the_tables() -> None:
    # Hollander and Wolfe, table A.4: two-sided 1 % critical values of the signed-rank statistic, plus one
    assert {n: stats.signed_rank_cut(n) for n in (7, 8, 9, 10, 15, 20)} == {7: None, 8: 1, 9: 2, 10: 4, 15: 16, 20: 38}
    assert stats.walsh([1.0, 3.0]) == [1.0, 2.0, 3.0]


def test_too_few_rounds_give_no_verdict() -> None:
    found = stats.compare("b", [200.0] * 7, [100.0] * 7)
    assert found.verdict == "inconclusive" and "8 are needed" in found.message
    assert stats.compare("b", [200.0] * stats.MIN_ROUNDS, [100.0] * stats.MIN_ROUNDS).verdict == "faster"
    for wrong in (([1.0], [1.0, 2.0]), ([1.0], [1.0])):
        with pytest.raises(ValueError, match="round"):
            stats.compare("b", *wrong)


def test_neighbours_that_agree_widen_the_interval() -> None:
    def width(logs: list[float]) -> float:
        found = stats.compare("b", [100 * math.exp(v) for v in logs for _ in (0, 1)], [100.0] * 2 * len(logs))
        return found.high - found.low

    steps = [-0.01] * 5 + [0.01] * 5
    mixed = [-0.01, 0.01] * 5
    assert width(steps) > 1.5 * width(mixed)
    assert (
        stats.correlation(mixed) == 0 and 0.5 < stats.correlation(steps) <= 0.9 and stats.correlation([1.0, 1.0]) == 0
    )


def test_a_clock_that_explains_the_difference_withholds_the_verdict() -> None:
    baseline, candidate = [103.0] * 20, [100.0] * 20
    assert stats.compare("b", baseline, candidate, 1.005).verdict == "faster"
    found = stats.compare("b", baseline, candidate, 1.03)
    assert found.verdict == "inconclusive" and "SM clocks differed by 3.0%" in found.message
    assert stats.compare("b", [150.0] * 20, candidate, 1.03).verdict == "faster"


def test_summary_of_known_numbers() -> None:
    found = stats.summarise([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (found.median, found.mad, found.minimum, found.maximum, found.count) == (3.0, 1.0, 1.0, 100.0, 5)
    assert (found.low, found.high) == (1.0, 100.0), "five values give no 99 % interval"
    assert found.cv == pytest.approx(1.98262, abs=1e-5)
    flat = stats.summarise([5.0] * 9)
    assert (flat.low, flat.high, flat.cv) == (5, 5, 0)
    many = stats.summarise([float(v) for v in range(1, 22)])
    assert (many.low, many.high) == (5.0, 17.0)  # the sign test's: 1 % leaves four values at each end of 21
    assert stats.median([1, 2, 3, 10]) == 2.5
    with pytest.raises(ValueError):
        stats.median([])


def test_proportions_are_bounded_exactly() -> None:
    assert stats.proportion_bound(0, 200) == pytest.approx((0, 0.018275), abs=1e-6)  # 1 - 0.025**(1/200)
    assert stats.proportion_bound(2, 200) == pytest.approx((0.0012134, 0.0356547), abs=1e-6)
    assert stats.proportion_bound(5, 5)[1] == 1
    with pytest.raises(ValueError):
        stats.proportion_bound(3, 2)
