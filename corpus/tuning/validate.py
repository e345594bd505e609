"""A list of routes put to the test: shapes to measure it on, and what its own guards say.

    heldout      the family's shapes that no choice was made on
    boundary     for every comparison of every guard a shape on each side of its constant
    unseen       shapes drawn from the family's ranges by the committed seed

and without measuring more: overlapping guards (the first wins; what that loses), each route taken away (every shape is still
served; what that costs), quarters left out (`buckets.held_out`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from corpus.families import HELD_OUT, Derived, Family, Shape
from corpus.tuning import buckets
from corpus.tuning.buckets import Comparison, Listing
from corpus.tuning.journal import shape_key
from corpus.tuning.observed import Observed

MOST_WORK = 2.0e11
"""Product of all dims of a shape that is drawn or moved: larger ones say nothing new and take the time of many."""
PROBES = 400
BOUNDARY = "boundary"
UNSEEN = "unseen"


def light(dims: Mapping[str, int]) -> bool:
    """Whether a shape is cheap enough for validation."""
    return math.prod(dims.values()) <= MOST_WORK


def draw(family: Family, source: random.Random) -> Shape:
    """One shape, every extent log-uniform in its range."""
    out = {}
    for name, (low, high) in family.ranges.items():
        step = family.steps.get(name, 1)
        value = math.exp(source.uniform(math.log(low), math.log(high)))
        out[name] = min(high, max(low, round(value / step) * step))
    return out


def unseen(family: Family, count: int, seed: int, takes: Callable[[Shape], bool] = lambda s: True) -> list[Shape]:
    """`count` light shapes that something serves, fewer where the ranges hold no more in 50 tries each."""
    source = random.Random(f"{family.name} unseen {seed}")
    out: list[Shape] = []
    for _ in range(50 * count):
        if len(out) == count:
            break
        shape = draw(family, source)
        if light(shape) and takes(shape) and shape not in out:
            out.append(shape)
    return out


def probes(family: Family, seed: int) -> list[Shape]:
    """Shapes that fallbacks must serve: the corners of the ranges, and drawn ones."""
    corners: list[Shape] = [{}]
    for name, ends in family.ranges.items():
        corners = [{**c, name: end} for c in corners for end in dict.fromkeys(ends)]
    source = random.Random(f"{family.name} probes {seed}")
    return corners + [draw(family, source) for _ in range(PROBES)]


def boundary(family: Family, listing: Listing, seen: Observed, sms: int) -> list[Shape]:
    """Shapes on both sides of every constant: those of a shape that the route serves (the first, else any that it matches), moved
    along one dim. Constants that cannot be crossed within the ranges are left out."""
    out: list[Shape] = []
    for rule in listing.rules:
        starts = [seen.shapes[s] for s in rule.served] or [
            s for s, f in zip(seen.shapes, seen.features, strict=True) if rule.matches(f)
        ]
        for comparison in rule.guard:
            pair = next((p for s in starts if (p := sides(family, s, comparison, sms))), ())
            out += [s for s in pair if s not in out]
    return out


def sides(family: Family, start: Shape, c: Comparison, sms: int) -> tuple[Shape, ...]:
    """The last shape with feature <= value and the first beyond, along a dim that the feature grows with; () if there are none."""
    derived = family.derived.get(c.feature, Derived(((c.feature, 1),)))
    for name in [n for n, _ in derived.factors]:
        low, high = family.ranges[name]
        step = family.steps.get(name, 1)

        def at(n: int, name: str = name, step: int = step) -> Shape:
            return {**start, name: n * step}

        def below(n: int, derived: Derived = derived) -> bool:
            return derived.value(at(n), sms) <= c.value

        first, last = low // step, high // step
        if not below(first) or below(last):
            continue
        while last - first > 1:
            middle = (first + last) // 2
            first, last = (middle, last) if below(middle) else (first, middle)
        pair = (at(first), at(last))
        if all(light(s) for s in pair):
            return pair
    return ()


def plan(
    family: Family, listing: Listing, seen: Observed, sms: int, count: int, seed: int, takes: Callable[[Shape], bool]
) -> list[tuple[str, Shape]]:
    """(set, shape) to measure the named candidates on; shapes that were tuned on are left out, as are those that nothing serves."""
    tuned = {shape_key(s) for s in seen.shapes}
    rows = [(HELD_OUT, s) for s in family.shapes.get(HELD_OUT, ())]
    rows += [(BOUNDARY, s) for s in boundary(family, listing, seen, sms)]
    rows += [(UNSEEN, s) for s in unseen(family, count, seed, takes)]
    out: dict[tuple[tuple[str, int], ...], tuple[str, Shape]] = {}
    for name, shape in rows:
        if shape_key(shape) not in tuned and takes(shape):
            out.setdefault(shape_key(shape), (name, dict(shape)))
    return list(out.values())


def overlapping(listing: Listing, seen: Observed) -> list[dict[str, Any]]:
    """Pairs of routes that match a shape both: how many shapes, and what the first loses there to the second (a time ratio above 1:
    the second would have been quicker), by geometric mean and at worst."""
    found: dict[tuple[int, int], list[float]] = {}
    takes = seen.takes
    for s, f in enumerate(seen.features):
        hits = [i for i, r in enumerate(listing.rules) if r.matches(f) and takes[s, r.candidate]]
        for later in hits[1:]:
            ratio = math.log(seen.us[s, listing.rules[hits[0]].candidate] / seen.us[s, listing.rules[later].candidate])
            found.setdefault((hits[0], later), []).append(ratio)
    return [
        {"routes": list(pair), "shapes": len(v), "loss": round(math.exp(sum(v) / len(v)), 4), "worst": round(math.exp(max(v)), 4)}
        for pair, v in sorted(found.items())
    ]  # fmt: skip


def missing(
    listing: Listing, seen: Observed, probe_takes: np.ndarray, probe_features: Sequence[Mapping[str, int]]
) -> list[dict[str, Any]]:
    """Each route taken away: whether every shape and probe is still served, and the time ratio of what then serves its shapes."""
    out = []
    for i, rule in enumerate(listing.rules):
        without = replace(listing, rules=(*listing.rules[:i], *listing.rules[i + 1 :]))
        chosen = buckets.served(without, seen)
        ok = bool((chosen >= 0).all()) and unserved(without, probe_takes, probe_features) is None
        lost = [math.log(seen.us[s, chosen[s]] / seen.us[s, rule.candidate]) for s in rule.served if chosen[s] >= 0]
        out.append(
            {
                "route": i,
                "served": ok,
                "shapes": len(lost),
                "cost": round(math.exp(sum(lost) / len(lost)), 4) if lost else 1.0,
            }
        )
    return out


def unserved(listing: Listing, takes: np.ndarray, features: Sequence[Mapping[str, int]]) -> int | None:
    """The first probe that nothing serves, or None."""
    for p, f in enumerate(features):
        if buckets.serve(listing, f, lambda c, p=p: bool(takes[p, c])) < 0:
            return p
    return None


def losses(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Per set the shapes, the geometric mean and the worst of served time over best."""
    out: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(str(r["set"]) for r in rows):
        logs = [math.log(r["loss"]) for r in rows if r["set"] == name]
        out[name] = {
            "shapes": len(logs),
            "loss": round(math.exp(sum(logs) / len(logs)), 4),
            "worst": round(math.exp(max(logs)), 4),
        }
    return out
