"""From times to routes: a decision list, grown greedily and explainable line by line.

Below everything lie fallbacks, which together take every shape of the family. Then, again and again, the one rule is put on
top that saves most over what the list would do without it: a candidate, and a guard of at most three comparisons (a feature
between two constants, and another on one side of a constant). It is kept only while what it saves per shape is more than the
noise. Rules that later ones made useless are taken out, and comparisons that decide nothing. No randomness: equal choices go to
the first candidate, feature and constant in order.

How few shapes may carry a route, and below how many it may not reach beyond them, are the two free numbers. They are those for
which the loss is least on average over the shapes themselves and over cross-validation, in which tables made without a quarter
of the shapes serve that quarter.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from corpus.tuning.observed import Observed
from lowering.runtime import stats

FOLDS = 4
LEAST = (1, 2, 3)
"""How few shapes may carry a route: what `learn` chooses among."""
SUPPORT = (0, 2, 5)
"""Below how many shapes a route may not reach beyond those that carry it: what `learn` chooses among, as well."""
MOST_ROUTES = 24
POOL = 2
"""Candidates looked at, in multiples of those that the list may name."""
CHOSEN = 2.0
"""A route is the best of some hundreds of guards and candidates, so what it seems to save is four standard deviations of the
noise before it says anything (95 % of the A/A pairs lie within two)."""


@dataclass(frozen=True)
class Comparison:
    """feature <= value, or feature > value."""

    feature: str
    op: str
    value: int

    def holds(self, features: Mapping[str, int]) -> bool:
        return features[self.feature] <= self.value if self.op == "<=" else features[self.feature] > self.value


@dataclass(frozen=True)
class Rule:
    """A route in the making: `candidate` is a column of `Observed`. gain: time ratio over what would serve its shapes otherwise, by
    geometric mean; served: the shapes (rows) that it serves."""

    candidate: int
    guard: tuple[Comparison, ...]
    gain: float = 1.0
    served: tuple[int, ...] = ()

    def matches(self, features: Mapping[str, int]) -> bool:
        return all(c.holds(features) for c in self.guard)


@dataclass(frozen=True)
class Rules:
    """Limits of the search. least: fewest shapes of a route; most: candidates that the list may name."""

    most: int = 12
    least: int = 1


@dataclass(frozen=True)
class Listing:
    """Rules in order, the first that matches and whose candidate takes the shape wins, then the fallbacks in order."""

    rules: tuple[Rule, ...]
    fallback: tuple[int, ...]
    least: int = 1
    folds: tuple[tuple[int, float], ...] = ()

    @property
    def candidates(self) -> tuple[int, ...]:
        """Columns that are named, each once."""
        return tuple(dict.fromkeys([*(r.candidate for r in self.rules), *self.fallback]))


class NotCovered(ValueError):
    """No candidate takes a shape that the family admits. `at`: number of the probe."""

    def __init__(self, at: int) -> None:
        super().__init__(f"probe {at}")
        self.at = at


def serve(listing: Listing, features: Mapping[str, int], takes: Callable[[int], bool]) -> int:
    """The column that serves a shape, -1 when none does."""
    for rule in listing.rules:
        if rule.matches(features) and takes(rule.candidate):
            return rule.candidate
    return next((c for c in listing.fallback if takes(c)), -1)


def served(listing: Listing, seen: Observed) -> np.ndarray:
    """Per shape the column that serves it."""
    takes = seen.takes
    return np.array(
        [serve(listing, f, lambda c, s=s: bool(takes[s, c])) for s, f in enumerate(seen.features)], dtype=int
    )


def regret(listing: Listing, seen: Observed) -> np.ndarray:
    """Per shape the log of the served time over the best; inf where nothing serves it."""
    chosen = served(listing, seen)
    best = np.nanmin(seen.us, axis=1)
    return np.array([math.log(seen.us[s, c] / best[s]) if c >= 0 else math.inf for s, c in enumerate(chosen)])


def fallbacks(seen: Observed, allowed: Sequence[int], probes: np.ndarray) -> tuple[int, ...]:
    """Candidates that together take every probe and every shape, those that take most first, the quickest among equals.

    probes[p, c]: whether candidate c takes probe p, a shape of the family's ranges. Raises NotCovered.
    """
    takes = np.vstack([seen.takes, probes]) if len(probes) else seen.takes
    lost = np.log(seen.us / np.nanmin(seen.us, axis=1, keepdims=True))
    open_rows, chosen = np.ones(len(takes), dtype=bool), []
    while open_rows.any():
        counts = {c: int(takes[open_rows, c].sum()) for c in allowed}
        top = max(counts.values(), default=0)
        if not top:
            raise NotCovered(int(np.flatnonzero(open_rows)[0]) - len(seen.shapes))
        here = open_rows[: len(seen.shapes)]
        losses = {
            c: float(np.nanmean(lost[here, c])) if seen.takes[here, c].any() else 0.0
            for c in allowed
            if counts[c] == top
        }
        chosen.append(min(losses, key=lambda c: (losses[c], c)))
        open_rows &= ~takes[:, chosen[-1]]
    return tuple(chosen)


def thresholds(values: Sequence[int]) -> list[int]:
    """One constant between each two neighbouring values: the roundest in base two, `low <= constant < high`."""
    distinct = sorted(set(values))
    return [roundest(a, b) for a, b in itertools.pairwise(distinct)]


def roundest(low: int, high: int) -> int:
    """The number in low .. high - 1 that the highest power of two divides."""
    for power in range(high.bit_length(), -1, -1):
        multiple = (low + (1 << power) - 1) >> power << power
        if low <= multiple < high:
            return multiple
    return low


def need(shapes: int, noise: float) -> float:
    """What a route must save per shape, as a log-ratio: the smallest difference the timing gate calls, and `CHOSEN` times the
    noise, which averages out over shapes."""
    return max(math.log(1 + stats.MIN_EFFECT), CHOSEN * noise / math.sqrt(max(1, shapes)))


def pool(seen: Observed, base: Sequence[int], size: int) -> tuple[int, ...]:
    """`base` and the candidates that together come nearest to the best of all at every shape: again and again the one that saves
    most over what is there, up to `size`."""
    log = np.where(seen.takes, np.log(np.where(seen.takes, seen.us, 1.0)), np.inf)
    chosen = list(dict.fromkeys(base))
    now = log[:, chosen].min(axis=1)
    while len(chosen) < size:
        saved = np.maximum(0.0, now[:, None] - log).sum(axis=0).round(9)
        saved[chosen] = 0.0
        at = int(np.argmax(saved))
        if saved[at] <= need(1, seen.noise):
            break
        chosen.append(at)
        now = np.minimum(now, log[:, at])
    return tuple(chosen)


class _Search:
    """Growing one list."""

    def __init__(self, seen: Observed, rules: Rules, fallback: tuple[int, ...]) -> None:
        self.seen, self.rules = seen, rules
        self.takes = seen.takes
        self.log = np.where(self.takes, np.log(np.where(self.takes, seen.us, 1.0)), np.nan)
        self.listing = Listing((), fallback, rules.least)
        self.pool = pool(seen, fallback, POOL * rules.most)
        halves, intervals = self._regions()
        self.halves, self.half_masks = halves
        self.intervals, self.interval_masks = intervals
        size = [[len(a) + len(b) for b in self.halves] for a in self.intervals]
        self.price = np.array(size) * need(1, seen.noise) / 4  # between equal regions the one that says less

    def _regions(self) -> tuple[tuple[list[Any], np.ndarray], tuple[list[Any], np.ndarray]]:
        """(half-spaces, their masks) and (intervals, their masks), both with everything; of equal masks the first."""
        everything = np.ones(len(self.seen.shapes), dtype=bool)
        halves: dict[bytes, tuple[tuple[Comparison, ...], np.ndarray]] = {everything.tobytes(): ((), everything)}
        intervals = dict(halves)
        for name in self.seen.features[0] if self.seen.features else ():
            column = np.array([f[name] for f in self.seen.features])
            cuts = thresholds(column.tolist())
            for value in cuts:
                for c, mask in (
                    (Comparison(name, "<=", value), column <= value),
                    (Comparison(name, ">", value), column > value),
                ):
                    halves.setdefault(mask.tobytes(), ((c,), mask))
                    intervals.setdefault(mask.tobytes(), ((c,), mask))
            for low, high in itertools.combinations(cuts, 2):
                mask = (column > low) & (column <= high)
                intervals.setdefault(mask.tobytes(), ((Comparison(name, ">", low), Comparison(name, "<=", high)), mask))
        return tuple(
            ([g for g, _ in d.values()], np.array([m for _, m in d.values()], float)) for d in (halves, intervals)
        )  # type: ignore[return-value]

    def current(self) -> np.ndarray:
        """Log of the time that serves each shape."""
        chosen = served(self.listing, self.seen)
        return self.log[np.arange(len(chosen)), chosen]

    def grow(self) -> Listing:
        while len(self.listing.rules) < MOST_ROUTES:
            found = self._best()
            if found is None:
                break
            self.listing = replace(self.listing, rules=(found, *self.listing.rules))
        self._tidy()
        return self.listing

    def _best(self) -> Rule | None:
        """The rule that saves most: every interval of a feature with every half-space of another is looked at."""
        now, named = self.current(), set(self.listing.candidates)
        best: tuple[float, Rule] | None = None
        for c in self.pool:
            if c not in named and len(named) >= self.rules.most:
                continue
            saved = np.where(self.takes[:, c], now - self.log[:, c], 0.0)
            if best is not None and saved[saved > 0].sum() <= best[0]:
                continue
            totals = (self.interval_masks * saved) @ self.half_masks.T
            counts = (self.interval_masks * (saved != 0)) @ self.half_masks.T
            least = counts * np.maximum(
                math.log(1 + stats.MIN_EFFECT), CHOSEN * self.seen.noise / np.sqrt(np.maximum(counts, 1))
            )
            # rounded, so that the last bit of a sum does not decide between equal regions on another machine
            score = np.where((counts >= self.rules.least) & (totals > least), totals - self.price, -np.inf).round(9)
            at = int(np.argmax(score))
            value = float(score.flat[at])
            if value > 0 and (best is None or value > best[0]):
                i, h = divmod(at, len(self.halves))
                best = value, Rule(c, (*self.intervals[i], *self.halves[h]))
        return best[1] if best else None

    def _cost(self, listing: Listing) -> float:
        chosen = served(listing, self.seen)
        return float(self.log[np.arange(len(chosen)), chosen].sum())

    def _tidy(self) -> None:
        """Take out what does not pay any more, lowest first, then comparisons that decide nothing; then state the gains."""
        self._drop()
        self._loosen()
        self._drop()  # what serves more shapes may save less at each
        self.listing = replace(self.listing, rules=tuple(self._stated(i) for i in range(len(self.listing.rules))))

    def _drop(self) -> None:
        while (at := self._idle()) is not None:
            self.listing = self._without(at)

    def _loosen(self) -> None:
        for i, rule in enumerate(self.listing.rules):
            for comparison in rule.guard:
                held = self.listing.rules[i]
                looser = replace(held, guard=tuple(c for c in held.guard if c is not comparison))
                trial = replace(self.listing, rules=(*self.listing.rules[:i], looser, *self.listing.rules[i + 1 :]))
                if self._cost(trial) <= self._cost(self.listing) + 1e-9:
                    self.listing = trial

    def _without(self, i: int) -> Listing:
        return replace(self.listing, rules=(*self.listing.rules[:i], *self.listing.rules[i + 1 :]))

    def _idle(self) -> int | None:
        """The lowest rule that does not pay, or None."""
        before = served(self.listing, self.seen)
        for i in range(len(self.listing.rules) - 1, -1, -1):
            changed = int((before != served(self._without(i), self.seen)).sum())
            saved = self._cost(self._without(i)) - self._cost(self.listing)
            if not changed or saved <= changed * need(changed, self.seen.noise):
                return i
        return None

    def _stated(self, i: int) -> Rule:
        rule = self.listing.rules[i]
        without = self._without(i)
        own = tuple(
            s
            for s, f in enumerate(self.seen.features)
            if _first(self.listing, f, lambda c, s=s: bool(self.takes[s, c])) == i
        )
        other = served(without, self.seen)
        saved = [self.log[s, other[s]] - self.log[s, rule.candidate] for s in own]
        return replace(rule, gain=math.exp(float(np.mean(saved))) if saved else 1.0, served=own)


def _first(listing: Listing, features: Mapping[str, int], takes: Callable[[int], bool]) -> int:
    """The number of the rule that serves a shape; -1: a fallback."""
    return next((i for i, r in enumerate(listing.rules) if r.matches(features) and takes(r.candidate)), -1)


def grow(seen: Observed, rules: Rules, fallback: tuple[int, ...]) -> Listing:
    """A list with the given limits on top of given fallbacks."""
    return _Search(seen, rules, fallback).grow()


def folds(count: int, seed: int) -> list[list[int]]:
    """The rows left out in each fold, drawn by the seed."""
    rows = list(range(count))
    random.Random(seed).shuffle(rows)
    return [sorted(rows[i::FOLDS]) for i in range(FOLDS) if rows[i::FOLDS]]


Fold = tuple[list[int], Observed, Listing]
"""Rows left out, the shapes without them, and the list made from those."""


def without_quarters(seen: Observed, rules: Rules, fallback: tuple[int, ...], seed: int) -> list[Fold]:
    """A list per quarter left out."""
    out: list[Fold] = []
    for left in folds(len(seen.shapes), seed):
        kept = seen.subset([s for s in range(len(seen.shapes)) if s not in left])
        out.append((left, kept, grow(kept, rules, fallback)))
    return out


def held_out(seen: Observed, made: Sequence[Fold], support: int) -> list[tuple[int, float]]:
    """(row, log regret) of every shape under the list made without its quarter, tightened."""
    out = []
    for left, kept, listing in made:
        lost = regret(tightened(listing, kept, support), seen.subset(left))
        out += list(zip(left, lost.tolist(), strict=True))
    return sorted(out)


def tightened(listing: Listing, seen: Observed, support: int) -> Listing:
    """The list whose rules that fewer than `support` shapes carry do not reach beyond them: for every feature a constant half way
    (geometrically) to the nearest value of another shape on either side, if there is one. What lies outside goes to the rules below,
    which more shapes carry."""
    rules = []
    for rule in listing.rules:
        if rule.served and len(rule.served) < support:
            own = [seen.features[s] for s in rule.served]
            guard: list[Comparison] = []
            for name in own[0]:
                inside = [f[name] for f in own]
                others = {f[name] for f in seen.features}
                below = max((v for v in others if v < min(inside)), default=None)
                above = min((v for v in others if v > max(inside)), default=None)
                if below is not None:
                    guard.append(Comparison(name, ">", min(math.isqrt(below * min(inside)), min(inside) - 1)))
                if above is not None:
                    guard.append(Comparison(name, "<=", max(math.isqrt(above * max(inside)), max(inside))))
            rule = replace(rule, guard=tuple(guard))
        rules.append(rule)
    return replace(listing, rules=tuple(rules))


def learn(
    seen: Observed, allowed: Sequence[int], probes: np.ndarray, most: int, seed: int, *, quick: bool = False
) -> Listing:
    """The list for what was seen. allowed: columns that may be fallbacks. quick: without leaving out quarters, for a machine whose
    time is dear; two shapes may then carry a route. Raises NotCovered."""
    base = fallbacks(seen, allowed, probes)
    if quick:
        return replace(grow(seen, Rules(most, LEAST[1]), base), least=LEAST[1])
    enough = len(seen.shapes) >= 2 * FOLDS
    best: tuple[float, Listing] | None = None
    for least in LEAST if enough else LEAST[:1]:
        limits = Rules(most, least)
        listing = grow(seen, limits, base)
        made = without_quarters(seen, limits, base, seed) if enough else []
        own = float(regret(listing, seen).mean())
        for support in SUPPORT:
            left = held_out(seen, made, support)
            score = (own + float(np.mean([r for _, r in left]))) / 2 if left else own
            if best is None or score <= best[0] + 1e-9:
                best = score, replace(tightened(listing, seen, support), least=least, folds=tuple(left))
    assert best is not None
    return best[1]
