"""From times to routes: a decision list, grown greedily and explainable line by line.

Below everything lie fallbacks, which together take every shape of the family. Then, again and again, the one rule is put on
top that saves most over what the list would do without it: a candidate, and a guard of at most `Rules.comparisons` comparisons of
features with constants. It is kept only while what it saves per shape is more than the noise. Rules that later ones made
useless are taken out, and comparisons that decide nothing. No randomness: equal choices go to the first candidate, feature and
constant in order.

How few shapes may carry a route is the one free number. It is the one for which the loss is least on average over the shapes
themselves and over cross-validation, in which tables made without a quarter of the shapes serve that quarter.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from corpus.tuning.observed import Observed
from lowering.runtime import stats

FOLDS = 4
LEAST = (1, 2, 3, 4)
"""How few shapes may carry a route: what `learn` chooses among."""
MOST_ROUTES = 24
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
    comparisons: int = 3


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


class _Search:
    """Growing one list."""

    def __init__(self, seen: Observed, rules: Rules, fallback: tuple[int, ...]) -> None:
        self.seen, self.rules = seen, rules
        self.takes = seen.takes
        self.log = np.where(self.takes, np.log(np.where(self.takes, seen.us, 1.0)), np.nan)
        self.listing = Listing((), fallback, rules.least)
        names = list(seen.features[0]) if seen.features else []
        self.tests: list[tuple[Comparison, np.ndarray]] = []
        for name in names:
            column = np.array([f[name] for f in seen.features])
            for value in thresholds(column.tolist()):
                self.tests.append((Comparison(name, "<=", value), column <= value))
                self.tests.append((Comparison(name, ">", value), column > value))
        self.masks = np.array([m for _, m in self.tests]) if self.tests else np.zeros((0, len(seen.shapes)), dtype=bool)

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
        now, named = self.current(), set(self.listing.candidates)
        best: tuple[float, Rule] | None = None
        for c in range(len(self.seen.candidates)):
            if c not in named and len(named) >= self.rules.most:
                continue
            saved = np.where(self.takes[:, c], now - self.log[:, c], 0.0)
            guard, mask = self._guard(saved)
            touched = mask & (np.abs(saved) > 0)
            total, count = float(saved[mask].sum()), int(touched.sum())
            if count < self.rules.least or total <= count * need(count, self.seen.noise):
                continue
            if best is None or total > best[0] + 1e-12:
                best = total, Rule(c, guard)
        return best[1] if best else None

    def _guard(self, saved: np.ndarray) -> tuple[tuple[Comparison, ...], np.ndarray]:
        """The conjunction that keeps most of what is saved, comparison by comparison."""
        mask, guard = np.ones(len(saved), dtype=bool), []
        for _ in range(self.rules.comparisons):
            if not len(self.masks):
                break
            # rounded, so that the last bit of a sum does not decide between equal constants on another machine
            totals = ((self.masks & mask) @ saved).round(9)
            at = int(np.argmax(totals))
            if totals[at] <= float(saved[mask].sum()) + need(1, self.seen.noise) / 2:
                break
            guard.append(self.tests[at][0])
            mask = mask & self.masks[at]
        return tuple(guard), mask

    def _cost(self, listing: Listing) -> float:
        chosen = served(listing, self.seen)
        return float(self.log[np.arange(len(chosen)), chosen].sum())

    def _tidy(self) -> None:
        """Take out what does not pay any more, lowest first, then comparisons that decide nothing; then state the gains."""
        at = len(self.listing.rules) - 1
        while at >= 0:
            without = replace(self.listing, rules=(*self.listing.rules[:at], *self.listing.rules[at + 1 :]))
            before, after = served(self.listing, self.seen), served(without, self.seen)
            changed = int((before != after).sum())
            if not changed or self._cost(without) - self._cost(self.listing) <= changed * need(
                changed, self.seen.noise
            ):
                self.listing = without
                at = min(at, len(self.listing.rules))
            at -= 1
        for i, rule in enumerate(self.listing.rules):
            for comparison in rule.guard:
                held = self.listing.rules[i]
                looser = replace(held, guard=tuple(c for c in held.guard if c is not comparison))
                trial = replace(self.listing, rules=(*self.listing.rules[:i], looser, *self.listing.rules[i + 1 :]))
                if self._cost(trial) <= self._cost(self.listing) + 1e-9:
                    self.listing = trial
        self.listing = replace(self.listing, rules=tuple(self._stated(i) for i in range(len(self.listing.rules))))

    def _stated(self, i: int) -> Rule:
        rule = self.listing.rules[i]
        without = replace(self.listing, rules=(*self.listing.rules[:i], *self.listing.rules[i + 1 :]))
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


def held_out(seen: Observed, rules: Rules, fallback: tuple[int, ...], seed: int) -> list[tuple[int, float]]:
    """(row, log regret) of every shape under the list made without its quarter."""
    out = []
    for left in folds(len(seen.shapes), seed):
        kept = [s for s in range(len(seen.shapes)) if s not in left]
        listing = grow(seen.subset(kept), rules, fallback)
        lost = regret(listing, seen.subset(left))
        out += list(zip(left, lost.tolist(), strict=True))
    return sorted(out)


def learn(seen: Observed, allowed: Sequence[int], probes: np.ndarray, most: int, seed: int) -> Listing:
    """The list for what was seen. allowed: columns that may be fallbacks. Raises NotCovered."""
    base = fallbacks(seen, allowed, probes)
    enough = len(seen.shapes) >= 2 * FOLDS
    best: tuple[float, Listing] | None = None
    for least in LEAST if enough else LEAST[:1]:
        limits = Rules(most, least)
        listing = grow(seen, limits, base)
        left = held_out(seen, limits, base, seed) if enough else []
        score = float(regret(listing, seen).mean())
        if left:
            score = (score + float(np.mean([r for _, r in left]))) / 2
        if best is None or score <= best[0] + 1e-9:
            best = score, replace(listing, least=least, folds=tuple(left))
    assert best is not None
    return best[1]
