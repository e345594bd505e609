"""The statistics against hand-computed examples and, without ties, against Spearman's own formula."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.ranking import statistics as stats
from corpus.ranking.statistics import Sample


def ranked(values: list[float]) -> list[int]:
    order = sorted(range(len(values)), key=lambda i: values[i])
    return [order.index(i) + 1 for i in range(len(values))]


@settings(deadline=None, max_examples=40)
@given(st.integers(3, 20), st.integers(0, 10**6))
def test_without_ties_it_is_spearmans(n: int, seed: int) -> None:
    source = random.Random(seed)
    measured = [10.0 * 1.05**i for i in range(n)]
    predicted = [1.1**i for i in range(n)]
    source.shuffle(measured)
    source.shuffle(predicted)
    d = sum((a - b) ** 2 for a, b in zip(ranked(measured), ranked(predicted), strict=True))
    got = stats.spearman(Sample(tuple(measured), tuple(predicted), 0.01))
    assert got == pytest.approx(1 - 6 * d / (n * (n * n - 1)))


def test_pairs_within_noise_count_neither_way() -> None:
    # the second and third differ by 1 %, below the noise of 2 %: their order is nobody's
    for swapped in ((1.0, 2.0, 3.0), (1.0, 3.0, 2.0)):
        assert stats.spearman(Sample((10.0, 12.0, 12.12), swapped, 0.02)) == pytest.approx(1.0)
    # S row sums: -2, 1, 1; P row sums of (2, 1, 3): first against second +1, against third -1: 0; -1; +1
    assert stats.spearman(Sample((10.0, 12.0, 12.12), (2.0, 1.0, 3.0), 0.02)) == pytest.approx(0.0)
    # told apart, r = -2, 0, 2 and q = 0, -2, 2: 4 / 8
    assert stats.spearman(Sample((10.0, 12.0, 12.12), (2.0, 1.0, 3.0), 0.005)) == pytest.approx(0.5)
    assert stats.spearman(Sample((10.0, 10.05), (1.0, 2.0), 0.01)) is None
    assert stats.spearman(Sample((10.0, 20.0), (1.0, 1.0), 0.01)) == 0.0


def test_regret_takes_the_slowest_of_those_that_tie() -> None:
    assert stats.regret(Sample((10.0, 11.0, 12.0), (5.0, 4.0, 4.0), 0.01)) == pytest.approx(0.2)
    assert stats.regret(Sample((10.0, 11.0), (1.0, 2.0), 0.01)) == 0.0


def test_the_rank_of_the_best_counts_who_is_measurably_slower_and_not_predicted_to_be() -> None:
    # 10.05 is within noise of 10; 11 ties in the prediction, 12 is predicted before, 13 after
    s = Sample((10.0, 10.05, 11.0, 12.0, 13.0), (5.0, 1.0, 5.0, 4.0, 6.0), 0.01)
    assert stats.rank_of_best(s) == 3
    assert stats.errors(s)[0] == pytest.approx(0.5)


def test_thinning_keeps_at_least_half_near_the_best_in_the_order_of_drawing() -> None:
    us = [20.0, 10.0, 31.0, 11.0, 12.0, 40.0, 15.0, 50.0, 60.0, 16.0]
    assert stats.thinned(us) == [0, 1, 2, 3, 4, 5, 6, 7]  # four near (10, 11, 12, 15), the first four of the others
    assert stats.thinned(us[:6]) == []  # three near: six at most
    assert stats.thinned([10.0] * 9) == list(range(9)) and stats.thinned([]) == []
    many = [10.0, 20.0] * 20
    assert stats.thinned(many) == list(range(12)), "six of each"
    assert stats.thinned([10.0] * 20) == list(range(12)) and stats.thinned([10.0] * 20 + [99.0]) == [*range(11), 20]


def test_noise_is_a_percent_or_twice_the_difference_of_equals() -> None:
    assert stats.noise(0.001) == 0.01 and stats.noise(0.02) == 0.04


def test_the_resolution_is_where_nine_of_ten_pairs_are_right() -> None:
    near = [(0.01, i % 2 == 0) for i in range(20)]
    middle = [(0.1, i % 5 != 0) for i in range(20)]
    far = [(0.3, i != 0) for i in range(20)]
    assert stats.resolution(near + middle + far) == pytest.approx(0.3498588)  # exp(0.3) - 1
    # a violation is pooled: 18 of 20, then 8 of 10 further out, are 26 of 30 together
    assert stats.resolution([*[(0.1, i > 1) for i in range(20)], *[(0.2, i > 1) for i in range(10)]]) is None
    assert stats.resolution([(0.0, False), (0.05, True)] * 10) == pytest.approx(0.0512711)
    assert stats.resolution([(0.05, True)] * 19) is None


def test_a_summary_of_two_shapes() -> None:
    right = Sample((10.0, 12.0, 14.0), (10.0, 12.0, 14.0), 0.01)
    wrong = Sample((10.0, 12.0, 14.0), (14.0, 12.0, 10.5), 0.01)
    found = stats.summarise([right, wrong])
    assert (found.points, found.shapes, found.top3) == (6, 2, 1.0)
    assert found.spearman_median == pytest.approx(0.0) and found.spearman_least == pytest.approx(-1.0)
    assert found.regret_median == pytest.approx(0.2) and found.regret_worst == pytest.approx(0.4)
    # errors: 0, 0, 0, 0, 0.25, 0.4; the 90 % quantile lies halfway between the last two
    assert found.error_median == 0.0 and found.error_p90 == pytest.approx(0.325)
    assert stats.summarise([]).top3 is None
