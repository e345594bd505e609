"""What a tile holds: which elements of which tensors its elements were computed from.

A `Value` belongs to a tile of registers or memory. For every tensor that went into it, it says for each dimension of the
tensor how the coordinate follows from the place in the tile. Coordinates of `TileTag` are those of the tile's element (0, 0).
Values are interned: equal ones are one object, and every operation on them is remembered, so that a loop in its steady
state costs a few dictionary look-ups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cake_ir.bound import SX, Op, SConst, SOp, SVar, Tensor

MANY = 3
"""Slices of one tensor in one value; where more meet, the dimensions in which they differ become unknown."""
UNSUMMED, LOST = 1, 2
MOST = 12
"""Slices in one value; a value of more is not followed further."""

Span = tuple[int, int]
Spans = tuple[Span, ...]


class At(NamedTuple):
    """One coordinate. kind: r (start + row of the tile), c (start + column), s (one index), k (summed over), ? (unknown).

    roots: loaded indices that it follows from. swept: for a coordinate that is summed over, whether its loop is the same
    for all tiles and data, so that what it leaves out is left out everywhere.
    """

    kind: str
    start: int = 0
    roots: frozenset[Any] = frozenset()
    swept: bool = False


SUMMED, UNKNOWN = At("k"), At("?")


class TileTag(NamedTuple):
    """A slice of a tensor inside a value. product: it came through a tensor-core product."""

    tensor: Tensor
    at: tuple[At, ...]
    product: bool = False

    def moved(self, rows: int, cols: int) -> TileTag:
        """The same slice seen from the tile's element (rows, cols)."""
        at = tuple(At(x[0], x[1] + (rows if x[0] == "r" else cols), x[2], x[3]) if x[0] in "rc" else x for x in self.at)
        return TileTag(self.tensor, at, self.product)

    def renamed(self, kinds: dict[str, str], product: bool | None = None) -> TileTag:
        """With other axes: transposition (r <-> c), reduction (c -> k), loss (r -> ?)."""
        at = tuple(_renamed(x, kinds[x[0]]) if x[0] in kinds else x for x in self.at)
        return TileTag(self.tensor, at, self.product if product is None else product)

    def axis(self, kind: str) -> int | None:
        """The only dimension along an axis of the tile, or None."""
        found = [i for i, x in enumerate(self.at) if x.kind == kind]
        return found[0] if len(found) == 1 else None

    def words(self, rows: int, cols: int) -> str:
        """`a[0:64, 64:128]` for a tile of rows x cols."""
        parts = []
        for x in self.at:
            if x.kind in "rc":
                parts.append(f"{x.start}:{x.start + (rows if x.kind == 'r' else cols)}")
            else:
                parts.append({"s": str(x.start), "k": ":", "?": "?"}[x.kind])
        return f"{self.tensor.name}[{', '.join(parts)}]"


def _renamed(x: At, kind: str) -> At:
    if kind in "k?":
        return SUMMED if kind == "k" else UNKNOWN
    return At(kind, x[1], x[2], x[3])


class Term(NamedTuple):
    """A sum of products of two copied slices over one named extent; a and b without the summed coordinate.

    key: of the extent, as the text writes it. direct: nothing was computed from the sum yet.
    """

    a: TileTag
    b: TileTag
    axis_a: int
    axis_b: int
    key: Any
    extent: int
    swept: bool
    op: Op
    direct: bool = True

    def renamed(self, kinds: dict[str, str]) -> Term:
        return self._replace(a=self.a.renamed(kinds), b=self.b.renamed(kinds))

    def moved(self, rows: int, cols: int) -> Term:
        return self._replace(a=self.a.moved(rows, cols), b=self.b.moved(rows, cols))

    @property
    def sort(self) -> tuple[Any, ...]:
        """What two terms of one kind share, whichever tile they belong to."""
        return self.a.tensor, self.b.tensor, self.axis_a, self.axis_b


Terms = tuple[tuple[Term, Spans], ...]


class Mixed(NamedTuple):
    """An accumulator that took a product of another tile than the one it held."""

    op: Op
    held: Term
    added: Term
    size: Span


class Value:
    """Tags and terms of a tile. vague: UNSUMMED where the terms are not all of them, LOST where something unknown went in.
    raw: the bits of one slice, only moved. shifts: the (pair, shift) of the products in a sum."""

    __slots__ = ("mixed", "raw", "seen", "shifts", "tags", "terms", "vague")

    def __init__(
        self,
        tags: frozenset[TileTag],
        terms: Terms,
        vague: int,
        raw: bool,
        mixed: tuple[Mixed, ...],
        shifts: frozenset[Any],
    ) -> None:
        self.tags, self.terms, self.vague, self.raw, self.mixed = tags, terms, vague, raw, mixed
        self.shifts = shifts
        self.seen: dict[Any, Any] = {}

    @property
    def only(self) -> TileTag | None:
        """The one slice of a raw value."""
        return next(iter(self.tags)) if self.raw and len(self.tags) == 1 else None


class Values:
    """Makes values, one object for each."""

    def __init__(self) -> None:
        self.known: dict[Any, Value] = {}
        self.empty = self.make(frozenset())
        self.lost = self.make(frozenset(), vague=LOST)

    def make(
        self,
        tags: frozenset[TileTag],
        terms: Terms = (),
        vague: int = 0,
        raw: bool = False,
        mixed: tuple[Mixed, ...] = (),
        shifts: frozenset[Any] = frozenset(),
    ) -> Value:
        """The value with these parts; too many slices of one tensor lose what differs between them."""
        if len(tags) > MANY:
            tags = _widened(tags)
            if len(tags) > MOST:
                return self.lost
        if len(terms) > MANY:
            terms, vague = (), max(vague, UNSUMMED)
        key = (tags, terms, vague, raw, mixed, shifts)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = Value(tags, terms, vague, raw, mixed, shifts)
        return found

    def copied(self, tag: TileTag) -> Value:
        """A tile that a copy has just brought."""
        return self.make(frozenset((tag,)), raw=True)

    def moved(self, v: Value, rows: int, cols: int) -> Value:
        """The value seen from another element of its tile."""
        if not (rows or cols) or not (v.tags or v.terms):
            return v
        key = (rows, cols)
        found = v.seen.get(key)
        if found is None:
            found = v.seen[key] = self.make(
                frozenset(t.moved(rows, cols) for t in v.tags),
                _mapped(v.terms, lambda t: t.moved(rows, cols)),
                v.vague,
                v.raw,
                v.mixed,
                v.shifts,
            )
        return found

    def renamed(self, v: Value, how: str) -> Value:
        """how: `swap` (transposed), `cols` / `rows` (reduced along them), `lose r` / `lose c` (places no longer known)."""
        found = v.seen.get(how)
        if found is None:
            kinds = {
                "swap": {"r": "c", "c": "r"},
                "cols": {"c": "k"},
                "rows": {"r": "k"},
                "lose r": {"r": "?"},
                "lose c": {"c": "?"},
            }[how]
            found = v.seen[how] = self.make(
                frozenset(t.renamed(kinds) for t in v.tags),
                _mapped(v.terms, lambda t: t.renamed(kinds)),
                v.vague,
                v.raw and how == "swap",
                v.mixed,
            )
        return found

    def joined(self, a: Value, b: Value, raw: bool = False) -> Value:
        """Computed from both, element by element. raw: b adds nothing (a masked store of a constant)."""
        if a is b and not a.raw:
            return a
        key = (b, raw)
        found = a.seen.get(key)
        if found is None:
            found = a.seen[key] = self.make(
                _joined(a.tags, b.tags),
                _merged(a.terms, b.terms),
                max(a.vague, b.vague),
                raw and (a.raw if not b.tags else b.raw and not a.tags),
                a.mixed if not b.mixed else tuple(dict.fromkeys(a.mixed + b.mixed))[:2],
            )
        return found

    def computed(self, v: Value) -> Value:
        """No longer the bits that were copied, or the sum that a product left."""
        found = v.seen.get("computed")
        if found is None:
            terms = _mapped(v.terms, lambda t: t._replace(direct=False))
            found = v.seen["computed"] = self.make(v.tags, terms, v.vague, False, v.mixed)
        return found


def _mapped(terms: Terms, change: Callable[[Term], Term]) -> Terms:
    found: dict[Term, Spans] = {}
    for t, s in terms:
        new = change(t)
        found[new] = union(found[new], s) if new in found else s
    return tuple(found.items())


def _merged(a: Terms, b: Terms) -> Terms:
    if not a or not b or a is b:
        return a or b
    found = dict(a)
    for t, s in b:
        found[t] = union(found[t], s) if t in found else s
    return tuple(found.items())


def _joined(a: frozenset[TileTag], b: frozenset[TileTag]) -> frozenset[TileTag]:
    """Both sets; what a widened tag of the first says already is left out."""
    if b <= a:
        return a
    wide = [t for t in a if UNKNOWN in t.at]
    return a | (frozenset(t for t in b if not any(_covers(w, t) for w in wide)) if wide else b)


def _covers(wide: TileTag, t: TileTag) -> bool:
    return (
        wide.tensor is t.tensor
        and wide.product == t.product
        and all(x is UNKNOWN or x == y for x, y in zip(wide.at, t.at, strict=True))
    )


def _widened(tags: frozenset[TileTag]) -> frozenset[TileTag]:
    groups: dict[Any, list[TileTag]] = {}
    for t in tags:
        groups.setdefault((t.tensor, t.product), []).append(t)
    if not any(len(g) > MANY for g in groups.values()):
        return tags
    out: set[TileTag] = set()
    for group in groups.values():
        if len(group) > MANY:
            first, *rest = group
            at = tuple(x if all(t.at[i] == x for t in rest) else UNKNOWN for i, x in enumerate(first.at))
            out.add(TileTag(first.tensor, at, first.product))
        else:
            out.update(group)
    return frozenset(out)


def union(a: Spans, b: Spans) -> Spans:
    """Two sets of intervals as one, sorted and joined."""
    out: list[Span] = []
    for lo, hi in sorted((*a, *b)):
        if out and lo <= out[-1][1]:
            out[-1] = (out[-1][0], max(hi, out[-1][1]))
        else:
            out.append((lo, hi))
    return tuple(out)


def overlap(a: Spans, b: Spans) -> Span | None:
    """The first common interval."""
    for lo, hi in a:
        for x, y in b:
            if max(lo, x) < min(hi, y):
                return max(lo, x), min(hi, y)
    return None


def extent_key(x: SX) -> Any:
    """Equal for extents that are written equally."""
    if isinstance(x, SConst):
        return x.value
    if isinstance(x, SVar):
        return x.var
    assert isinstance(x, SOp)
    return (x.op, *(extent_key(a) for a in x.args))
