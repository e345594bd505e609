"""What must hold of tags at products and at stores, whatever the kernel computes.

* The two operands of a product are summed over one index: where both name the same extent, they hold the same slice of it.
* A sum takes a product once, and does not go on in a product of another tile.
* What reaches an output has been summed over the whole extent, and comes from the tiles that lie where the output lies.

Everything that could be meant otherwise is left alone: taps of a convolution, lags, planes of complex numbers, partial sums,
block-sparse and triangular loops, one tensor against itself, what data decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from analyses.tags.values import (
    LOST,
    SUMMED,
    At,
    Mixed,
    Span,
    Spans,
    Term,
    TileTag,
    Value,
    Values,
    extent_key,
    overlap,
    union,
)
from cake_ir.bound import Op, ScalarVar, Tensor

TAPS = 8
"""A shift below this is a tap, a lag or the next token where other products of the two tensors have none."""

Size = tuple[int, int]
Ops = tuple[Op | None, Op | None]
Pair = tuple[Tensor, int, Tensor, int]
"""Two dimensions of one extent."""


class Finding(NamedTuple):
    """rule: its id. node: the statement. others: places to point at."""

    rule: str
    node: Any
    text: str
    others: tuple[tuple[Op, str], ...]
    resource: str
    agent: str


class Stored(NamedTuple):
    """A tile that is stored into a tensor. at: coordinates as for `TileTag`; whole: written, not added to what is there."""

    op: Op
    tensor: Tensor
    at: tuple[At, ...]
    value: Value
    whole: bool
    agent: str


class _Slip(NamedTuple):
    """A product whose operands hold different slices of one extent. shift: of b against a."""

    op: Op
    a: TileTag
    b: TileTag
    shift: int
    extent: int
    size: tuple[Size, Size]
    ops: Ops
    raw: tuple[bool, bool]
    agent: str


class _Met(NamedTuple):
    """A product combined with a slice of another tensor. shift: of the product against the slice."""

    node: Any
    product: TileTag
    other: TileTag
    shift: int
    extent: int
    size: Size
    agent: str


class _Placed(NamedTuple):
    """One extent of a stored tile. shift: of the operand against the output, or `crossed` (rows against columns)."""

    store: Stored
    tag: TileTag
    shift: Any


_DROP_A, _DROP_B = {"c": "k"}, {"r": "c", "c": "k"}


class Laws:
    """Collects what one run shows; `findings` judges it. extents: of every tensor on this shape."""

    def __init__(self, values: Values, extents: dict[Tensor, tuple[int, ...]]) -> None:
        self.values, self.extents = values, extents
        self.keys = {t: tuple(extent_key(x) for x in t.extents) for t in extents}
        self.repeated: list[Finding] = []
        self.pairs: dict[Pair, dict[int, _Slip | None]] = {}
        self.uneven: set[Pair] = set()
        self.summed: dict[ScalarVar, int] = {}
        self.sites: dict[Any, set[int]] = {}
        self.copied: dict[tuple[Tensor, int], set[int]] = {}
        self.stores: dict[Any, Stored] = {}
        self.meetings: dict[Any, dict[int, _Met]] = {}
        self.products: dict[Any, Any] = {}

    # ---- products

    def product(
        self, op: Op, operands: tuple[Value, Value], size: tuple[Size, Size], ops: Ops, held: Value,
        init: bool | None, agent: str,
    ) -> Value:  # fmt: skip
        """The accumulator after `held += a @ b.T` (init: `= a @ b.T`; None: one or the other)."""
        key = (op.site, *operands, size)
        known = self.products.get(key)
        if known is None:
            known = self.products[key] = self._multiplied(op, *operands, size)
        new, term, spans, paired = known
        if paired is not None:
            pair, shift, ta, tb = paired
            shifts = self.pairs.setdefault(pair, {})
            if shift not in shifts:
                extent = self.extents[ta.tensor][pair[1]]
                raw = operands[0].raw, operands[1].raw
                shifts[shift] = _Slip(op, ta, tb, shift, extent, size, ops, raw, agent) if shift else None
            if not init and any(p == pair and n != shift for p, n in held.shifts):
                self.uneven.add(pair)
        if init:
            return new
        if init is None:
            return self.values.joined(self.values.joined(held, new), self.values.lost)
        key = ("add", new, op.site)
        added = held.seen.get(key)
        if added is None:
            added = held.seen[key] = self._added(op, held, new, term, spans, size, ops, agent)
        return added

    def _multiplied(self, op: Op, a: Value, b: Value, size: tuple[Size, Size]) -> Any:
        """(value, the term of two copied slices, its interval, how the operands' slices of one extent compare)."""
        tags = frozenset((*(t.renamed(_DROP_A, True) for t in a.tags), *(t.renamed(_DROP_B, True) for t in b.tags)))
        terms = {t.renamed(_DROP_A)._replace(direct=False): s for t, s in a.terms}
        for t, s in b.terms:
            t = t.renamed(_DROP_B)._replace(direct=False)
            terms[t] = union(terms[t], s) if t in terms else s
        paired = self._paired(a, b)
        term, spans = None, ()
        if a.only and b.only and paired is not None and paired[1] == 0:
            (_, i, _, j), _, ta, tb = paired
            extent, x, y = self.extents[ta.tensor][i], ta.at[i], tb.at[j]
            free_a, free_b = ta.renamed(_DROP_A, True), tb.renamed(_DROP_B, True)
            swept = x.swept and y.swept and not x.roots
            term = Term(free_a, free_b, i, j, self.keys[ta.tensor][i], extent, swept, op)
            low, high = max(0, x.start), min(extent, x.start + size[0][1])
            spans = ((low, high),) if low < high else ()
            terms[term] = spans
            self.sites.setdefault(term.sort, set()).add(op.site)
            if isinstance(term.key, ScalarVar):
                self.summed[term.key] = max(size[0][1], self.summed.get(term.key, 0))
        mixed = tuple(dict.fromkeys(a.mixed + b.mixed))[:2]
        shifts = frozenset() if paired is None else frozenset(((paired[0], paired[1]),))
        new = self.values.make(tags, tuple(terms.items()), max(a.vague, b.vague), False, mixed, shifts)
        return new, term, spans, paired

    def _paired(self, a: Value, b: Value) -> tuple[Pair, int, TileTag, TileTag] | None:
        """(which dimensions, shift of b against a, the two slices): of the slices that name one extent, the nearest."""
        best = None
        for ta in a.tags:
            i = ta.axis("c")
            if i is None:
                continue
            for tb in b.tags:
                j = tb.axis("c")
                if j is None or self.keys[ta.tensor][i] != self.keys[tb.tensor][j] or ta.at[i].roots != tb.at[j].roots:
                    continue
                shift = tb.at[j].start - ta.at[i].start
                if ta.tensor is tb.tensor and not (shift == 0 and a.only and b.only):
                    return None  # one tensor against itself: lags, packed heads
                if best is None or abs(shift) < abs(best[1]):
                    best = (ta.tensor, i, tb.tensor, j), shift, ta, tb
        if best is None or (best[1] and LOST in (a.vague, b.vague)):
            return None
        return best

    def _added(
        self, op: Op, held: Value, new: Value, term: Term | None, spans: Spans, size: tuple[Size, Size], ops: Ops,
        agent: str,
    ) -> Value:  # fmt: skip
        mixed: tuple[Mixed, ...] = ()
        for t, s in held.terms if term is not None else ():
            assert term is not None
            if not t.direct or t.sort != term.sort:
                continue
            if (t.a, t.b) != (term.a, term.b):
                mixed = (Mixed(op, t, term, (size[0][0], size[1][0])),)
                continue
            both = overlap(s, spans)
            if both is not None:
                self._repeat(op, term, both, size, ops, agent)
        # the sum keeps the op that began it
        first = {t._replace(op=None): t for t, _ in held.terms}  # type: ignore[arg-type]
        terms = dict(held.terms)
        for t, s in new.terms:
            t = first.get(t._replace(op=None), t)  # type: ignore[arg-type]
            terms[t] = union(terms[t], s) if t in terms else s
        mixed = tuple(dict.fromkeys(held.mixed + new.mixed + mixed))[-2:]
        vague = max(held.vague, new.vague)
        return self.values.make(
            held.tags | new.tags, tuple(terms.items()), vague, False, mixed, held.shifts | new.shifts
        )

    def _repeat(self, op: Op, term: Term, both: Span, size: tuple[Size, Size], ops: Ops, agent: str) -> None:
        name = _name(term.key)
        a = _words(term.a, size[0][0], term.axis_a, both, "r")
        b = _words(term.b, size[1][0], term.axis_b, both, "c")
        text = (
            f"{op.name} adds the product of {a} and {b} a second time: the sum already holds {name} {both[0]}:{both[1]}"
        )
        self.repeated.append(Finding("data/k-step-repeated", op, text, _places(ops), _resource(op), agent))

    def widths(self) -> dict[str, int]:
        """For each dimension symbol over which copied slices were summed, the width of a slice."""
        return {k.name: n for k, n in self.summed.items()}

    # ---- elementwise

    def meet(self, node: Any, a: Value, b: Value, size: Size, agent: str) -> None:
        """Two tiles are combined element by element: a product, and a copied slice that names an extent of it."""
        key = ("meet", b)
        met = a.seen.get(key)
        if met is None:
            met = a.seen[key] = [*self._meeting(a, b), *self._meeting(b, a)]
        for pair, shift, ta, tb, extent in met:
            shifts = self.meetings.setdefault((id(node), pair), {})
            if shift not in shifts:
                shifts[shift] = _Met(node, ta, tb, shift, extent, size, agent)

    def _meeting(self, a: Value, b: Value) -> Iterator[tuple[Pair, int, TileTag, TileTag, int]]:
        """What a product (a) and one copied slice (b) have in common."""
        if len(b.tags) != 1 or b.vague or a.vague == LOST or not any(t.product for t in a.tags):
            return
        (tb,) = b.tags
        if tb.product or any(t.tensor is tb.tensor for t in a.tags):
            return
        keys = self.keys[tb.tensor]
        for j, y in enumerate(tb.at):
            if y.kind not in ("r", "c") or keys.count(keys[j]) > 1 or not _symbolic(keys[j]):
                continue
            same = [
                (x.start - y.start, t, i)
                for t in a.tags
                for i, x in enumerate(t.at)
                if t.product and self.keys[t.tensor][i] == keys[j] and x.kind == y.kind and x.roots == y.roots
            ]
            if same:
                shift, t, i = min(same, key=lambda s: (abs(s[0]), s[1].tensor.name))
                yield (t.tensor, i, tb.tensor, j), shift, t, tb, self.extents[tb.tensor][j]

    # ---- stores

    def stored(self, s: Stored) -> None:
        """Notes a store; equal ones count once."""
        if s.value.tags:
            self.stores.setdefault((s.op.site, s.at, s.value), s)

    # ---- judgement

    def findings(self) -> list[Finding]:
        """What is wrong, by the first law that is broken: what a wrong slice leads to is not reported as well."""
        out: list[Finding] = []
        for law in (
            self._slices,
            lambda: iter(self.repeated),
            self._uncleared,
            self._skipped,
            self._misplaced,
            self._apart,
        ):
            out = list(law())
            if out:
                break
        return list({(f.rule, f.node.span): f for f in reversed(out)}.values())[::-1]

    def _slices(self) -> Iterator[Finding]:
        for pair, shifts in self.pairs.items():
            wrong = [x for x in shifts.values() if x is not None]
            far = [x for x in wrong if abs(x.shift) >= TAPS]
            if pair in self.uneven or len(wrong) == len(shifts):
                far = wrong  # within one sum, or everywhere: no taps
            if far and not (all(map(_planes, wrong)) and not any(map(_outside, wrong))):
                yield self._differ(far[0], pair)

    def _differ(self, s: _Slip, pair: Pair) -> Finding:
        (rows_a, size), (rows_b, _) = s.size
        x, y = s.a.at[pair[1]].start, s.b.at[pair[3]].start
        name = _name(self.keys[s.a.tensor][pair[1]])
        a, b = ("holds" if raw else "is computed from" for raw in s.raw)
        text = (
            f"{s.op.name}: A {a} {s.a.words(rows_a, size)}, B {b} {s.b.words(rows_b, size)}:"
            f" {name} {x}:{x + size} is multiplied with {name} {y}:{y + size}"
        )
        return Finding("data/mma-slices-differ", s.op, text, _places(s.ops), _resource(s.op), s.agent)

    def _uncleared(self) -> Iterator[Finding]:
        for s in self.stores.values():
            out = self._named(s.tensor, s.at)
            for m in s.value.mixed:
                dims = _differing(m.held.a, m.added.a) + _differing(m.held.b, m.added.b)
                if dims and all(self.keys[t][i] in out for t, i in dims):
                    rows, cols = m.size
                    text = (
                        f"{m.op.name} adds the product of {m.added.a.words(rows, cols)} and {m.added.b.words(rows, cols)}"
                        f" to a sum that still holds the one of {m.held.a.words(rows, cols)} and {m.held.b.words(rows, cols)}"
                    )
                    yield Finding(
                        "data/accumulator-not-cleared", m.op, text, ((s.op, "stored here"),), _resource(m.op), s.agent
                    )

    def _skipped(self) -> Iterator[Finding]:
        whole: dict[Any, Spans] = {}
        partial: list[tuple[Stored, Term, Spans]] = []
        for s in self.stores.values():
            if s.value.vague or not s.whole or s.tensor.direction != "Out":
                continue
            for t, spans in s.value.terms:
                whole[t.sort] = union(whole.get(t.sort, ()), spans)
                if t.swept and spans and self._complete(s, t) and spans != ((0, t.extent),):
                    partial.append((s, t, spans))
        for s, t, spans in partial:
            if whole[t.sort] == ((0, t.extent),) or (not _symbolic(t.key) and len(spans) < 2):
                continue  # halves in sums of their own; a part of a fixed number of columns
            if self._part_of_tiles(t, spans):
                continue
            a, b = _missing(spans, t.extent)
            name = _name(t.key)
            held = ", ".join(f"{x}:{y}" for x, y in spans)
            text = (
                f"{s.op.name} writes {s.tensor.name} from a sum of {t.a.tensor.name} times {t.b.tensor.name} over {name} {held};"
                f" {name} {a}:{b} of 0:{t.extent} is not in it"
            )
            yield Finding("data/k-step-skipped", t.op, text, ((s.op, "stored here"),), _resource(t.op), s.agent)

    def _part_of_tiles(self, t: Term, spans: Spans) -> bool:
        """Whether one product takes the same part of every tile that is copied: its text says so."""
        if len(self.sites[t.sort]) > 1:
            return False
        low, high = spans[0]
        for tile in self.copied.get((t.a.tensor, t.axis_a), ()):
            offset, width = low % tile, high - low
            starts = range(offset, t.extent, tile)
            if width < tile and spans == tuple((x, min(x + width, t.extent)) for x in starts):
                return True
        return False

    def _complete(self, s: Stored, t: Term) -> bool:
        """Whether every dimension of the output is one of the operands' free ones: no index of partial sums."""
        free = {self.keys[x.tensor][i] for x in (t.a, t.b) for i, at in enumerate(x.at) if at is not SUMMED}
        return all(k in free for k in self.keys[s.tensor])

    def _named(self, tensor: Tensor, at: tuple[At, ...]) -> dict[Any, int]:
        """The dimensions of an output that its extent tells from the others."""
        keys = self.keys[tensor]
        return {k: i for i, k in enumerate(keys) if keys.count(k) == 1 and _symbolic(k) and at[i].kind != "?"}

    def _misplaced(self) -> Iterator[Finding]:
        """Stores whose tile comes from elsewhere than where the output lies."""
        groups: dict[Any, list[_Placed]] = {}
        explained: set[tuple[int, int]] = set()
        for s in self.stores.values():
            out = self._named(s.tensor, s.at)
            yield from self._foreign(s, out)
            for t in _in_order(s.value.tags):
                keys = self.keys[t.tensor]
                for i, x in enumerate(t.at):
                    d = out.get(keys[i])
                    if d is None or keys.count(keys[i]) > 1 or x.kind not in "rcs":
                        continue
                    y = s.at[d]
                    if x.roots != y.roots or (x.kind != y.kind and "s" in (x.kind, y.kind)):
                        explained.add((s.op.site, d))
                        continue
                    shift = x.start - y.start if x.kind == y.kind else "crossed"
                    if shift == 0:
                        explained.add((s.op.site, d))
                    if t.product and s.value.vague < LOST:
                        groups.setdefault((s.op.site, d, t.tensor, i), []).append(_Placed(s, t, shift))
        for (site, d, _, i), group in groups.items():
            seen: dict[int, set[Any]] = {}
            for p in group:
                seen.setdefault(id(p.store), set()).add(p.shift)
            shifts = set().union(*seen.values())
            wrong = next((p for p in group if p.shift != 0), None)
            if wrong is None or any(len(x) > 1 for x in seen.values()):
                continue
            if wrong.store.at[d].kind == "s":
                continue  # beams that share a cache, layers that follow each other
            strays = 0 in shifts and "crossed" not in shifts
            apart = (site, d) not in explained and len(shifts) == 1
            apart = apart and (wrong.shift == "crossed" or abs(wrong.shift) >= TAPS)
            if strays or apart:
                yield self._stale(wrong, d, i)

    def _foreign(self, s: Stored, out: dict[Any, int]) -> Iterator[Finding]:
        """An extent of the output that no operand has, along an axis on which a product has another one of the output's."""
        if s.value.vague == LOST:
            return
        for key, d in out.items():
            kind = s.at[d].kind
            if kind == "s" or any(key in self.keys[t.tensor] for t in s.value.tags):
                continue
            for t in _in_order(s.value.tags):
                i = t.axis(kind)
                other = None if i is None or not t.product else out.get(self.keys[t.tensor][i])
                if other is not None and s.at[other].kind not in (kind, "s"):
                    op = next((x.op for x, _ in s.value.terms if t.tensor in (x.a.tensor, x.b.tensor)), s.op)
                    along = "rows" if kind == "r" else "columns"
                    text = (
                        f"{s.op.name} writes {s.tensor.name} with {_name(key)} along the {along} of the tile; in the product they are"
                        f" {_name(self.keys[s.tensor][other])} of {t.tensor.name}, and nothing with an extent {_name(key)} went into it"
                    )
                    others = ((s.op, "stored here"),) if op is not s.op else ()
                    yield Finding("data/operand-swapped", op, text, others, _resource(op), s.agent)
                    return

    def _stale(self, p: _Placed, d: int, i: int) -> Finding:
        s, t = p.store, p.tag
        first = next((x.op for x, _ in s.value.terms if t.tensor in (x.a.tensor, x.b.tensor)), None)
        name = _name(self.keys[s.tensor][d])
        if p.shift == "crossed":
            along = ("rows", "columns") if s.at[d].kind == "r" else ("columns", "rows")
            text = (
                f"{s.op.name} writes {s.tensor.name} with {name} along the {along[0]} of the tile; in the product, {name} of"
                f" {t.tensor.name} runs along its {along[1]}"
            )
            others = ((s.op, "stored here"),) if first else ()
            return Finding("data/operand-swapped", first or s.op, text, others, _resource(first or s.op), s.agent)
        text = (
            f"{s.op.name} writes {s.tensor.name} from {name} {s.at[d].start} on with a product of {t.tensor.name}"
            f" from {name} {t.at[i].start} on"
        )
        return Finding(
            "data/stale-tile", s.op, text, ((first, "the product"),) if first else (), s.tensor.name, s.agent
        )

    def _apart(self) -> Iterator[Finding]:
        """Products combined with a slice that lies elsewhere than they do."""
        for (_, pair), shifts in self.meetings.items():
            far = next((m for n, m in shifts.items() if abs(n) >= TAPS), None)
            if far is None or (len(shifts) > 1 and 0 not in shifts):
                continue
            name = _name(self.keys[pair[2]][pair[3]])
            x, y = far.product.at[pair[1]].start, far.other.at[pair[3]].start
            size = far.size[0 if far.other.at[pair[3]].kind == "r" else 1]
            if len(shifts) == 1 and _fraction(far.shift, far.extent) and max(x, y) + size <= far.extent:
                continue
            text = (
                f"a product of {far.product.tensor.name} from {name} {x} on is combined with {far.other.tensor.name}"
                f" from {name} {y} on"
            )
            yield Finding("data/combined-slices-differ", far.node, text, (), far.other.tensor.name, far.agent)


def _outside(s: _Slip) -> bool:
    """Whether one operand's slice leaves the extent."""
    size = s.size[0][1]
    return any(t.at[i].start + size > s.extent for t in (s.a, s.b) for i in [t.axis("c")] if i is not None)


def _planes(s: _Slip) -> bool:
    """Whether the shift is a half, third or quarter of the extent: planes of complex numbers, gates side by side."""
    return _fraction(s.shift, s.extent)


def _fraction(shift: int, extent: int) -> bool:
    return shift != 0 and extent % abs(shift) == 0 and 2 <= extent // abs(shift) <= 4


def _in_order(tags: Iterable[TileTag]) -> list[TileTag]:
    """Tags in the same order in every process, so that the finding that comes first is the same too."""
    return sorted(tags, key=lambda t: (t.tensor.name, t.product, [(x.kind, x.start, x.swept) for x in t.at]))


def _places(ops: Ops) -> tuple[tuple[Op, str], ...]:
    return tuple((o, f"operand {n} comes from here") for o, n in zip(ops, "AB", strict=True) if o is not None)


def _resource(op: Op) -> str:
    x = op.operands.get("acc")
    return getattr(getattr(x, "frag", None) or getattr(x, "buffer", None) or x, "name", "") or ""


def _name(key: Any) -> str:
    """An extent as a word: K, 2*I, or `columns` for a number."""
    if isinstance(key, ScalarVar):
        return key.name
    if isinstance(key, tuple):
        op, *args = key
        names = [str(a) if isinstance(a, int) else _name(a) for a in args]
        return f"{op}({', '.join(names)})" if op[0].isalpha() else op.join(names)
    return "columns"


def _symbolic(key: Any) -> bool:
    return isinstance(key, (ScalarVar, tuple))


def _words(t: TileTag, rows: int, axis: int, k: Span, kind: str) -> str:
    parts = []
    for i, x in enumerate(t.at):
        if i == axis:
            parts.append(f"{k[0]}:{k[1]}")
        elif x.kind == kind:
            parts.append(f"{x.start}:{x.start + rows}")
        else:
            parts.append(str(x.start) if x.kind == "s" else "?")
    return f"{t.tensor.name}[{', '.join(parts)}]"


def _differing(a: TileTag, b: TileTag) -> list[tuple[Tensor, int]]:
    return [(a.tensor, i) for i, (x, y) in enumerate(zip(a.at, b.at, strict=True)) if x != y]


def _missing(spans: Spans, extent: int) -> Span:
    """The first interval of 0:extent that is not covered."""
    at = 0
    for a, b in spans:
        if a > at:
            return at, a
        at = b
    return at, extent
