"""Integer polynomials over a kernel's scalars, and a small prover for `e >= 0`.

An *atom* is an extent, an index variable, a loaded value, or a quotient, remainder, minimum and the like that polynomials cannot
express. Every atom knows bounds that only mention older atoms, so a goal is decided by replacing the youngest atom by a bound of
the right direction until a constant or a sum of non-negative terms is left. Facts (conditions above a statement, `where`,
`assume`) count as further bounds. The search is bounded; what it does not find is open, never false.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Poly = dict[tuple[int, ...], int]
"""Coefficients by monomial: a sorted tuple of atom numbers, () for the constant."""

MAX_TERMS = 40
MAX_DEGREE = 32
NODES = 240
"""Steps of one proof."""


class TooLarge(Exception):
    """A polynomial with more terms, or of a higher degree, than are worth looking at."""


@dataclass
class Atom:
    """lower, upper: polynomials over older atoms, each of them a bound. over: a positive divisor d and a polynomial a of older
    atoms with d * atom <= a <= d * atom + d - 1 (a floor division). cases: the atom equals one of these."""

    name: str
    lower: list[Poly] = field(default_factory=list)
    upper: list[Poly] = field(default_factory=list)
    over: tuple[Poly, Poly] | None = None
    cases: list[Poly] = field(default_factory=list)
    key: Any = None
    made: tuple[str, Poly, Poly] | None = None


def const(k: int) -> Poly:
    """A constant."""
    return {(): k} if k else {}


def add(a: Poly, b: Poly, k: int = 1) -> Poly:
    """a + k * b."""
    out = dict(a)
    for m, c in b.items():
        n = out.get(m, 0) + k * c
        if n:
            out[m] = n
        else:
            out.pop(m, None)
    return out


def mul(a: Poly, b: Poly) -> Poly:
    """The product; raises TooLarge."""
    if len(a) * len(b) > MAX_TERMS:
        raise TooLarge
    out: Poly = {}
    for m, c in a.items():
        for n, d in b.items():
            key = tuple(sorted(m + n)) if m and n else m or n
            if len(key) > MAX_DEGREE:
                raise TooLarge
            total = out.get(key, 0) + c * d
            if total:
                out[key] = total
            else:
                out.pop(key, None)
    return out


def constant(a: Poly) -> int | None:
    """The value of a constant polynomial, None for another."""
    return 0 if not a else a[()] if len(a) == 1 and () in a else None


def split(e: Poly, v: int) -> tuple[Poly, Poly] | None:
    """(A, B) with e = v * A + B; None when v occurs in a higher power."""
    a: Poly = {}
    b: Poly = {}
    for m, c in e.items():
        n = m.count(v)
        if n > 1:
            return None
        if n:
            i = m.index(v)
            a[m[:i] + m[i + 1 :]] = c
        else:
            b[m] = c
    return a, b


def youngest(e: Poly) -> int:
    """The highest atom number of a polynomial, -1 without any."""
    return max((m[-1] for m in e if m), default=-1)


class Algebra:
    """The atoms of one kernel, and proofs about them."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self.by_key: dict[Any, int] = {}
        self.plain: set[int] = set()
        """Atoms with a constant non-negative lower bound."""
        self.known: dict[Any, bool] = {}

    # ---- atoms

    def atom(self, name: str, lower: Iterable[Poly] = (), upper: Iterable[Poly] = (), key: Any = None) -> Poly:
        """A new atom, or the one with this key."""
        if key is not None and key in self.by_key:
            return {(self.by_key[key],): 1}
        at = Atom(name, list(lower), list(upper), key=key)
        self.atoms.append(at)
        i = len(self.atoms) - 1
        if any((constant(p) if constant(p) is not None else -1) >= 0 for p in at.lower):  # type: ignore[operator]
            self.plain.add(i)
        if key is not None:
            self.by_key[key] = i
        return {(i,): 1}

    def floor_div(self, a: Poly, b: Poly) -> Poly:
        """floor(a / b) for b >= 1. What b divides leaves the quotient."""
        k = constant(b)
        if k is not None:
            if k <= 0:
                return self.opaque("//", a, b)
            whole = {m: c // k for m, c in a.items() if m and c % k == 0}
            rest = {m: c for m, c in a.items() if not m or c % k}
            low = rest.get((), 0)
            whole = add(whole, const(low // k))
            rest = add(rest, const(low // k * k), -1)
            if not rest or constant(rest) is not None:
                return whole
        elif len(b) == 1:
            ((factor, c),) = b.items()
            whole, rest = {}, {}
            for m, n in a.items():
                left = _without(m, factor)
                if left is not None and n % c == 0:
                    whole[left] = n // c
                else:
                    rest[m] = n
            if not rest:
                return whole
        else:
            whole, rest = {}, a
        key = ("//", freeze(rest), freeze(b))
        if key in self.by_key:
            return add(whole, {(self.by_key[key],): 1})
        lower, upper = [], []
        if self.proves(rest):
            lower.append({})
        if k is None:
            upper += self._quotients(rest, b)
        at = self.atom("a quotient", lower, upper, key)
        self.atoms[-1].over, self.atoms[-1].made = (b, rest), ("//", rest, b)
        return add(whole, at)

    def _quotients(self, a: Poly, b: Poly) -> list[Poly]:
        """Upper bounds of floor(a / b) from upper bounds of a that b divides up to a remainder."""
        found: list[Poly] = []
        if len(b) != 1:
            return self._below(a, b)
        ((factor, c),) = b.items()
        todo, seen = [a], 0
        while todo and seen < 12:
            u = todo.pop()
            seen += 1
            whole, rest = {}, {}
            for m, n in u.items():
                left = _without(m, factor)
                if left is not None and n % c == 0:
                    whole[left] = n // c
                else:
                    rest[m] = n
            if whole:
                if self.proves(add(const(-1), rest, -1)):
                    found.append(add(whole, const(-1)))
                    continue
                if self.proves(add(add(b, const(-1)), rest, -1)):
                    found.append(whole)
                    continue
            v = youngest(u)
            parts = split(u, v) if v >= 0 else None
            if parts is not None and self.proves(parts[0]):
                todo += [add(mul(parts[0], up), parts[1]) for up in self.atoms[v].upper]
        return found or self._below(a, b)

    def _below(self, a: Poly, b: Poly) -> list[Poly]:
        """x - 1 for an atom x with a <= b * x - 1, of those that bound a: the column of a tile inside a band that may be cut."""
        near = [p for m in a for v in m for p in self.atoms[v].upper]
        for x in sorted({v for p in near for m in p for v in m}):
            try:
                if self.proves(add(add(mul(b, {(x,): 1}), a, -1), const(-1))):
                    return [add({(x,): 1}, const(-1))]
            except TooLarge:
                continue
        return []

    def modulo(self, a: Poly, b: Poly) -> Poly:
        """a mod b for b >= 1: 0 .. b - 1, and at most a where a >= 0."""
        k = constant(b)
        if k is not None and k > 0:
            a = {m: c for m, c in a.items() if c % k} if all(c % k == 0 for m, c in a.items() if m) else a
            if constant(a) is not None:
                return const((constant(a) or 0) % k)
        elif k is not None:
            return self.opaque("%", a, b)
        upper = [add(b, const(-1))]
        if self.proves(a):
            upper.append(a)
        if k is None and len(a) * len(b) <= MAX_TERMS:
            upper.append(add(a, mul(b, self.floor_div(a, b)), -1))
        key = ("%", freeze(a), freeze(b))
        if key in self.by_key:
            return {(self.by_key[key],): 1}
        at = self.atom("a remainder", [{}], upper, key)
        self.atoms[-1].made = ("%", a, b)
        return at

    def least(self, a: Poly, b: Poly) -> Poly:
        """min(a, b)."""
        return self._choice("min", a, b, [], [a, b])

    def greatest(self, a: Poly, b: Poly) -> Poly:
        """max(a, b)."""
        return self._choice("max", a, b, [a, b], [])

    def either(self, a: Poly, b: Poly, key: Any) -> Poly:
        """a or b."""
        return self._choice(("select", key), a, b, [], [])

    def _choice(self, op: Any, a: Poly, b: Poly, lower: list[Poly], upper: list[Poly]) -> Poly:
        if a == b:
            return a
        key = (op, freeze(a), freeze(b))
        if key in self.by_key:
            return {(self.by_key[key],): 1}
        if self.proves(a) and self.proves(b):
            lower = [*lower, {}]
        at = self.atom(str(op), lower, upper, key)
        self.atoms[-1].cases = [a, b]
        if isinstance(op, str):
            self.atoms[-1].made = (op, a, b)
        return at

    def bits(self, a: Poly, low: Poly, high: Poly) -> Poly:
        """The number of the lowest set bit of a, -1 of zero."""
        key = ("lsb", freeze(a), freeze(low))
        if key in self.by_key:
            return {(self.by_key[key],): 1}
        at = self.atom("lsb", [low], [high], key)
        self.atoms[-1].made = ("lsb", a, {})
        return at

    def opaque(self, op: str, *args: Poly, lower: Iterable[Poly] = (), upper: Iterable[Poly] = ()) -> Poly:
        """Something that only equals itself."""
        return self.atom(op, lower, upper, (op, *(freeze(a) for a in args)))

    # ---- proofs

    def proves(self, e: Poly, facts: Iterable[Poly] = ()) -> bool:
        """Whether e >= 0 for all integers that the bounds and the facts admit. False: not found."""
        facts = list(facts)
        plain = self.obvious(e)
        if plain is not None:
            return plain
        key = (freeze(e), tuple(freeze(f) for f in facts))
        if key not in self.known:
            try:
                self.known[key] = self._prove(e, facts, [NODES], 0)
            except TooLarge:
                self.known[key] = False
        return self.known[key]

    def obvious(self, e: Poly) -> bool | None:
        """Decided by the signs of the terms alone."""
        k = constant(e)
        if k is not None:
            return k >= 0
        if all(c > 0 and all(v in self.plain for v in m) for m, c in e.items()):
            return True
        return None

    def _prove(self, e: Poly, facts: list[Poly], budget: list[int], depth: int) -> bool:
        g = math.gcd(*(c for m, c in e.items() if m)) if any(e) else 1
        if g > 1:  # integers: k * x + c >= 0 exactly when x + c // k >= 0
            e = {m: c // g for m, c in e.items() if m or c // g}
        plain = self.obvious(e)
        if plain is not None:
            return plain
        budget[0] -= 1
        if budget[0] < 0 or depth > 14:
            return False
        v = youngest(e)
        parts = split(e, v)
        if parts is None:
            return False
        a, b = parts
        k = constant(a)
        sign = 0
        if k is not None:
            sign = 1 if k > 0 else -1
        elif self._prove(a, facts, budget, depth + 1):
            sign = 1
        elif self._prove(add({}, a, -1), facts, budget, depth + 1):
            sign = -1
        at = self.atoms[v]
        for f in facts:
            found = split(f, v)
            if found is None or not found[0]:
                continue
            ratio = _ratio(a, found[0])
            if ratio is None and k is None:  # at least the largest term goes
                top = max(e, key=lambda m: (len(m), m))
                ratio = _ratio({top: e[top]}, {top: f[top]}) if top in f else None
            if ratio is None:
                one = constant(found[0])
                if k is None and one is not None and one * sign == 1:  # v >= -rest, or v <= rest
                    limit = add({}, found[1], -one)
                    if self._prove(add(mul(a, limit), b), facts, budget, depth + 1):
                        return True
                continue
            p, q = ratio  # q * a == p * f's coefficient, both positive: q * e - p * f has no v, and q * e > -q suffices
            rest = add(add({m: c * q for m, c in e.items()}, f, -p), const(q - 1))
            if self._prove(rest, facts, budget, depth + 1):
                return True
        if sign == 0:
            return False
        if at.cases and all(self._prove(add(mul(a, c), b), facts, budget, depth + 1) for c in at.cases):
            return True
        for bound in at.lower if sign > 0 else at.upper:
            if self._prove(add(mul(a, bound), b), facts, budget, depth + 1):
                return True
        if at.over is not None:
            d, n = at.over
            if sign < 0:  # d * v <= n
                shifted = add(mul(d, b), mul(a, n))
                slack = add(d, const(-1))
            else:  # d * v >= n - d + 1
                shifted = add(mul(d, b), mul(a, add(add(n, d, -1), const(1))))
                slack = add(d, const(-1))
            # d * e >= shifted, and e >= 0 follows from d * e > -d
            if constant(d) is not None or self._prove(add(d, const(-1)), facts, budget, depth + 1):
                return self._prove(add(shifted, slack), facts, budget, depth + 1)
        return False

    # ---- values

    def closure(self, polys: Iterable[Poly]) -> list[int]:
        """All atoms that polynomials mention, with those that they are made of or bounded by, the oldest first."""
        found: set[int] = set()
        todo = [v for p in polys for m in p for v in m]
        while todo:
            v = todo.pop()
            if v not in found:
                found.add(v)
                at = self.atoms[v]
                parts = [*at.lower, *at.upper, *at.cases, *(at.made[1:] if at.made else ())]
                todo += [u for p in parts for m in p for u in m]
        return sorted(found)


def evaluate(e: Poly, values: dict[int, int]) -> int:
    """The value of a polynomial for values of its atoms."""
    return sum(c * math.prod(values[v] for v in m) for m, c in e.items())


def operate(op: str, a: int, b: int) -> int:
    """One of // % min max lsb; raises ZeroDivisionError."""
    if op == "lsb":
        return (a & -a).bit_length() - 1
    return a // b if op == "//" else a % b if op == "%" else min(a, b) if op == "min" else max(a, b)


def _without(m: tuple[int, ...], factor: tuple[int, ...]) -> tuple[int, ...] | None:
    left = list(m)
    for v in factor:
        if v not in left:
            return None
        left.remove(v)
    return tuple(left)


def _ratio(a: Poly, b: Poly) -> tuple[int, int] | None:
    """Positive (p, q) with q * a == p * b."""
    if a.keys() != b.keys():
        return None
    m = next(iter(a))
    if a[m] * b[m] <= 0:
        return None
    g = math.gcd(a[m], b[m])
    p, q = abs(a[m]) // g, abs(b[m]) // g
    return (p, q) if all(q * a[n] == p * b[n] for n in a) else None


def freeze(p: Poly) -> tuple[Any, ...]:
    return tuple(sorted(p.items()))
