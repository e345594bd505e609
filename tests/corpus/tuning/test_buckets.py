"""Routes from made-up times: what is there is found, noise makes none, everything is served, the same input gives the same list."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.families import Derived, Family, Member, Shape
from corpus.tuning import buckets, validate
from corpus.tuning.buckets import Comparison, Listing, NotCovered, Rule
from corpus.tuning.observed import Observed

NOISE = math.log(1.01)
NONE = np.zeros((0, 6), dtype=bool)
FAMILY = Family(
    name="made", contracts={"bf16": "kmeans_assign"}, kernels=(Member("kmeans_packed", fallback=True),), dims=("M", "N"),
    ranges={"M": (1, 4096), "N": (8, 1024)}, steps={"N": 8}, shapes={"given": ({"M": 1, "N": 8},)},
    derived={"size": Derived((("M", 1), ("N", 1))), "waves": Derived((("M", 64), ("N", 64)), per_sm=True)},
)  # fmt: skip


def seen(shapes: list[Shape], us: np.ndarray, noise: float = NOISE) -> Observed:
    features = tuple(FAMILY.features(s, 132) for s in shapes)
    names = tuple(f"c{c}" for c in range(us.shape[1]))
    return Observed(tuple(shapes), features, names, us, ~np.isnan(us), noise)


def grid(count: int, source: random.Random) -> list[Shape]:
    return [validate.draw(FAMILY, source) for _ in range(count)]


def test_a_best_route_that_is_there_is_found() -> None:
    source = random.Random(1)
    shapes = grid(60, source)
    us = np.full((60, 6), 10.0)
    for s, shape in enumerate(shapes):
        us[s, 2] = 7.0 if shape["M"] * shape["N"] > 65536 else 12.0
        us[s, 4] = 8.0 if shape["N"] <= 64 else 12.0
        us[s] *= [math.exp(source.gauss(0, 0.003)) for _ in range(6)]
    found = buckets.learn(seen(shapes, us), range(6), NONE, 4, 0)
    assert buckets.regret(found, seen(shapes, us)).mean() < 0.01
    assert np.mean([r for _, r in found.folds]) < 0.03
    assert {r.candidate for r in found.rules} == {2, 4} and all(r.gain > 1.15 for r in found.rules)
    new = grid(200, random.Random(2))

    def best(s: Shape) -> int:
        return 2 if s["M"] * s["N"] > 65536 else 4 if s["N"] <= 64 else found.fallback[0]

    right = sum(best(s) == buckets.serve(found, FAMILY.features(s, 132), lambda c: True) for s in new)
    assert right > 190


@pytest.mark.parametrize("seed", range(12))
def test_noise_makes_no_routes(seed: int) -> None:
    source = random.Random(seed)
    shapes = grid(40, source)
    noise = 0.01  # of one time; equal kernels then differ by 2.8 % in one pair of twenty
    us = np.array([[10 * math.exp(source.gauss(0, noise)) for _ in range(6)] for _ in shapes])
    found = buckets.learn(seen(shapes, us, 1.96 * math.sqrt(2) * noise), range(6), NONE, 6, 0)
    assert found.rules == () and len(found.fallback) == 1


def test_the_cap_on_variants_holds_and_the_best_are_kept() -> None:
    source = random.Random(5)
    shapes = grid(36, source)
    us = np.full((36, 6), 10.0)
    for s, shape in enumerate(shapes):
        us[s, shape["N"] * 5 // 1025 + 1] = (
            5.0 + shape["N"] * 5 // 1025
        )  # a best candidate per range of N, the first saves most
    for most in (1, 3, 6):
        found = buckets.learn(seen(shapes, us), range(6), NONE, most, 0)
        assert len(found.candidates) <= most
    assert buckets.regret(found, seen(shapes, us)).mean() < 0.02


def test_fallbacks_cover_what_one_candidate_does_not() -> None:
    shapes = grid(20, random.Random(3))
    us = np.full((20, 3), 10.0)
    us[:, 2] = [np.nan if s["N"] > 128 else 3.0 for s in shapes]  # quick, but it takes few
    us[:, 0] = [np.nan if s["N"] <= 512 else 9.0 for s in shapes]
    us[:, 1] = [np.nan if s["N"] > 512 else 11.0 for s in shapes]
    probes = [{"M": 1, "N": 8}, {"M": 4096, "N": 1024}]
    takes = np.array([[False, True, True], [True, False, False]])
    found = buckets.learn(seen(shapes, us), range(3), takes, 3, 0)
    assert {0, 1} <= set(found.fallback)
    assert validate.unserved(found, takes, [FAMILY.features(p, 132) for p in probes]) is None
    with pytest.raises(NotCovered):
        buckets.learn(seen(shapes, us), [1, 2], takes, 3, 0)


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(3, 14))
def test_every_shape_that_something_takes_is_served(seed: int, candidates: int, count: int) -> None:
    source = random.Random(seed)
    shapes, probes = grid(count, source), grid(60, source)
    # what a candidate takes is its own `where`: a range of N
    low = [source.choice((8, 64, 512)) for _ in range(candidates)]
    high = [source.choice((256, 512, 1024)) for _ in range(candidates)]

    def takes(shape: Shape, c: int) -> bool:
        return low[c] <= shape["N"] <= high[c]

    def served_by_any(shape: Shape) -> bool:
        return any(takes(shape, c) for c in range(candidates))

    shapes = [s for s in shapes if served_by_any(s)] or [
        {"M": 1, "N": 512 if served_by_any({"M": 1, "N": 512}) else low[0]}
    ]
    if not all(map(served_by_any, shapes)):
        return
    probes = [p for p in probes if served_by_any(p)]
    us = np.array([[source.uniform(5, 20) if takes(s, c) else np.nan for c in range(candidates)] for s in shapes])
    reach = np.array([[takes(p, c) for c in range(candidates)] for p in probes]).reshape(len(probes), candidates)
    found = buckets.learn(seen(shapes, us), range(candidates), reach, 12, seed)
    for shape in [*shapes, *probes]:
        c = buckets.serve(found, FAMILY.features(shape, 132), lambda c, s=shape: takes(s, c))
        assert c >= 0 and takes(shape, c)
    # and still with any one route gone
    for i in range(len(found.rules)):
        without = Listing((*found.rules[:i], *found.rules[i + 1 :]), found.fallback)
        assert validate.unserved(without, reach, [FAMILY.features(p, 132) for p in probes]) is None
    assert found == buckets.learn(seen(shapes, us), range(candidates), reach, 12, seed)


@given(st.integers(0, 1 << 20), st.integers(1, 1 << 20))
def test_constants_are_the_roundest_between_two_values(low: int, gap: int) -> None:
    found = buckets.roundest(low, low + gap)
    assert low <= found < low + gap
    power = (found & -found) if found else 1 << 30
    assert (
        not any(low <= m < low + gap for m in range(-(-low // (2 * power)) * 2 * power, low + gap, 2 * power))
        or found == 0
    )


@given(st.integers(1, 4096), st.integers(1, 128), st.sampled_from(["M", "N", "size", "waves"]), st.integers(1, 5000))
def test_both_sides_of_a_constant(m: int, n: int, feature: str, value: int) -> None:
    pair = validate.sides(FAMILY, {"M": m, "N": 8 * n}, Comparison(feature, "<=", value), 132)
    if pair:
        below, above = (FAMILY.features(s, 132)[feature] for s in pair)
        assert below <= value < above and all(FAMILY.admits(s) for s in pair)


def test_overlapping_and_missing_guards_say_what_they_cost() -> None:
    shapes = [{"M": 1, "N": 8 * k} for k in range(1, 11)]
    us = np.full((10, 3), 10.0)
    us[:, 1] = [5.0 if s["N"] <= 40 else 20.0 for s in shapes]
    us[:, 2] = [8.0 if s["N"] > 24 else 20.0 for s in shapes]
    listing = Listing(
        (Rule(1, (Comparison("N", "<=", 48),), served=(0, 1, 2, 3, 4, 5)), Rule(2, (Comparison("N", ">", 24),), served=(6, 7, 8, 9))), (0,)
    )  # fmt: skip
    (pair,) = validate.overlapping(listing, seen(shapes, us))
    assert (
        pair["routes"] == [0, 1] and pair["shapes"] == 3 and pair["worst"] == 2.5
    )  # at N = 48 the second takes 8, the first 20
    first, second = validate.missing(
        listing, seen(shapes, us), np.ones((1, 3), dtype=bool), [FAMILY.features(shapes[0], 132)]
    )
    assert first["served"] and second["served"] and second["cost"] == 1.25 and first["shapes"] == 6
    lonely = Listing(listing.rules, ())
    assert not validate.missing(lonely, seen(shapes, us), np.ones((0, 3), dtype=bool), [])[0]["served"]


def test_unseen_shapes_are_those_of_the_seed_and_within_the_ranges() -> None:
    one, again, other = (validate.unseen(FAMILY, 20, s) for s in (1, 1, 2))
    assert one == again != other and len(one) == 20 and all(FAMILY.admits(s) for s in one + other)
