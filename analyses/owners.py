"""Who writes an element: the op, role instance, CTA, loop indices and thread that store to one index of a tensor.

The launch is walked as in `analyses.outputs`: only statements that decide where the tensor is written, and whether.
A large grid is first searched by halving (tiles numbered in row-major order), then in order as far as the step limit
goes. Loaded indices and gathered rows are followed through the inputs where those are given; where data decide whether
an op writes, it counts as one that may.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from analyses.regions import RegionFacts, blocks, control, mode_of, regions
from cake_ir.bound import (
    BoundKernel,
    For,
    If,
    Let,
    Op,
    Region,
    ScalarVar,
    SetScalar,
    Tensor,
    VFrag,
    View,
    WarpsBlock,
    sx_vars,
    walk,
)
from cake_ir.diagnostics import Span
from cake_ir.layouts import TileType, base_of, placement
from cake_ir.skeleton import AssumeViolated, Skeleton, SkeletonLimit, ViewAt

STEPS = 150_000
"""Ops and loop steps of one search (about a second); a launch that needs more is searched in part."""
SHOWN = 4
"""Writers of one element that are kept; the search ends when there are more."""
SMALL = 64
"""CTAs of a launch that is searched in order at once."""

NOBODY = "no op writes it"
NOT_FOUND = "no writer found: the launch is too large to be searched as a whole, or data decide where it writes"
ONLY_OP = "the only op that writes the tensor; which CTA was not found"
SEVERAL = "several writers"
BY_DATA = "data decide whether the op writes it"


@dataclass(frozen=True)
class Owner:
    """One writer of an element. cta: grid index (None with instance: not found, the op alone is known). tile: values of
    the loop and tile variables that place the region. box: the region in the tensor, (start, stop) per dimension (None:
    gathered rows). warp: inside `warps()`. thread: of the unit, where a register tile is stored. stage: of the shared
    memory that a copy reads. filled: (op, line) of what fills the on-chip memory that it copies, where the value was made.
    certain: False where data decide whether it writes."""

    op: str
    span: Span
    role: str
    instance: int | None = None
    cta: int | None = None
    tile: Mapping[str, int] = field(default_factory=dict)
    box: tuple[tuple[int, int] | None, ...] = ()
    warp: int | None = None
    thread: int | None = None
    stage: int | None = None
    filled: tuple[tuple[str, int], ...] = ()
    certain: bool = True

    def text(self) -> str:
        """`store on line 61 (math[1] of CTA 17, tile_m=3, thread 5)`."""
        facts = [self.role if self.cta is None else f"{self.role}[{self.instance}] of CTA {self.cta}"]
        facts += [f"{k}={v}" for k, v in self.tile.items()]
        facts += [f"{k} {v}" for k in ("stage", "warp", "thread") if (v := getattr(self, k)) is not None]
        text = f"{self.op} on line {self.span.line} ({', '.join(facts)})"
        return text + "".join(f", filled by {op} on line {line}" for op, line in self.filled[:1])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; what is not known is left out."""
        out: dict[str, Any] = {"line": self.span.line, "op": self.op, "role": self.role}
        out |= {k: v for k in ("instance", "cta", "warp", "thread", "stage") if (v := getattr(self, k)) is not None}
        out |= {"tile": dict(self.tile)} if self.tile else {}
        out |= {"filled": [{"op": op, "line": line} for op, line in self.filled]} if self.filled else {}
        out |= {"box": [list(b) if b else None for b in self.box]} if self.box else {}
        return out | ({} if self.certain else {"certain": False})


@dataclass(frozen=True)
class Ownership:
    """The writers of one element (at most SHOWN). complete: the whole launch was searched. note: what a reader has to
    know besides: nobody, several, not found, by data."""

    owners: tuple[Owner, ...]
    complete: bool
    note: str = ""

    def text(self) -> str:
        """One clause for people."""
        if not self.owners:
            return self.note
        words = f"written by {self.owners[0].text()}"
        if len(self.owners) > 1:
            words += f" and by {self.owners[1].text()}" + (", ..." if len(self.owners) > 2 else "")
        return words + (f"; {self.note}" if self.note and self.note != SEVERAL else "")

    def to_json(self) -> dict[str, Any]:
        """The first owner's fields, `others` for further ones, `note`."""
        out: dict[str, Any] = self.owners[0].to_json() if self.owners else {}
        if len(self.owners) > 1:
            out["others"] = [o.to_json() for o in self.owners[1:]]
        return out | ({"note": self.note} if self.note else {})


def owner(
    bound: BoundKernel,
    dims: Mapping[str, int],
    scalars: Mapping[str, float],
    sms: int,
    tensor: str,
    index: tuple[int, ...],
    *,
    data: Mapping[str, Any] | None = None,
    steps: int = STEPS,
) -> Ownership:
    """Who writes `tensor[index]` in the launch of these extents and scalars on `sms` multiprocessors.

    data: input arrays by name, read for loaded indices and gathered rows only. Raises KeyError for an unknown tensor,
    ValueError for an index outside it or a shape that `where` refuses.
    """
    target = next((t for t in bound.tensors if t.name == tensor), None)
    if target is None:
        raise KeyError(f"{bound.name} has no tensor {tensor!r}")
    return _Search(bound, target, tuple(index), data or {}).run(dict(dims), dict(scalars), sms, steps)


class _Facts(RegionFacts):
    """What decides where one tensor is written: scalars, and the loads of gathered row numbers."""

    def __init__(self, bound: BoundKernel, target: Tensor) -> None:
        super().__init__(bound, True)
        self.writes = {
            s: [(n, r) for n, r in regions(s) if r.tensor is target and mode_of(s, n) != "read"]
            for s in walk(bound.body)
            if isinstance(s, Op)
        }
        self.writes = {op: found for op, found in self.writes.items() if found}
        self.sites = {op.site for op in self.writes}
        rows = {f for op in self.writes for _, r in self.writes[op] if (f := gathered(r)) is not None}
        made = [s for s in walk(bound.body) if isinstance(s, Op) and any(r in rows for r in s.results)]
        lets = {s.frag for s in walk(bound.body) if isinstance(s, Let)}
        self.row_loads = {
            s.results[0]: s for s in made
            if s.name == "load" and isinstance(s.operands["src"], Region) and s.results[0] not in lets
            and sum(o.results[0] is s.results[0] for o in made) == 1
        }  # fmt: skip
        self.sites |= {s.site for s in self.row_loads.values()}
        self.needed = set()
        for op in self.writes:
            for v in op.operands.values():
                if isinstance(v, View) and v.use is not None:
                    self.needed |= sx_vars(v.use)
        size = -1
        while size != len(self.needed):
            size = len(self.needed)
            self._need(bound.body)


def gathered(r: Region) -> Any:
    """The fragment that holds the row numbers of a region with a gathered dimension, where it is one as it is."""
    for d in r.dims:
        if d.kind == "gather" and isinstance(d.rows, VFrag) and not (d.rows.row0 or d.rows.col0):
            return d.rows.frag
    return None


@dataclass
class _Probe:
    """The hull of what one CTA writes."""

    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, box: tuple[tuple[int, int] | None, ...]) -> None:
        if not self.low:
            self.low, self.high = [math.inf] * len(box), [-math.inf] * len(box)
        for i, b in enumerate(box):
            if b is None:
                self.low[i], self.high[i] = -math.inf, math.inf
            elif b[0] < b[1]:
                self.low[i], self.high[i] = min(self.low[i], b[0]), max(self.high[i], b[1])


class _Search(Skeleton):
    """The skeleton of the ops that write one tensor, asking each whether its region holds the index."""

    def __init__(self, bound: BoundKernel, target: Tensor, index: tuple[int, ...], data: Mapping[str, Any]) -> None:
        self.facts = _Facts(bound, target)
        self.target, self.index, self.data = target, index, data
        self.around = _around(bound.body)
        self.warp: int | None = None
        self.found: dict[tuple[Any, ...], Owner] = {}
        self.probe: _Probe | None = None
        self.rows: dict[Any, Any] = {}
        super().__init__(bound)
        unknown = {
            v for s in self.int_loads for v in s.results
            if not (isinstance(src := s.operands.get("src"), Region) and src.tensor.name in data)
        }  # fmt: skip
        self.known = not unknown & self.facts.needed
        """Whether the walk follows what the launch does: no integer that it needs is loaded from where nobody looked."""

    # ---- searching

    def run(self, dims: dict[str, int], args: dict[str, float], sms: int, steps: int) -> Ownership:  # type: ignore[override]
        """The walk over the launch."""
        env = self.environment(dims, args, sms)
        if not self.admits(env):
            raise ValueError("the shape violates `where`")
        extents = tuple(int(e(env)) for e in self._extent[self.target])
        if len(self.index) != len(extents) or not all(0 <= i < n for i, n in zip(self.index, extents, strict=True)):
            raise ValueError(f"{self.target.name}{list(self.index)} is outside its extents {list(extents)}")
        names = {op.role for op in self.facts.writes}
        roles = [r for r in self.bound.roles if r.name in names or None in names]
        count, budget = self.cta_count(env), [steps]
        complete = False
        try:
            if count > SMALL:
                self._halve(env, roles, count, budget)
            for cta in range(count):
                self._cta(env, roles, cta, count, budget)
                if len(self.found) > SHOWN:
                    break
            else:
                complete = True
        except (SkeletonLimit, AssumeViolated, IndexError, ArithmeticError):
            pass
        owners = tuple(self.found.values())[:SHOWN]
        if not owners:
            return self._not_found(complete and self.known)
        note = SEVERAL if len(owners) > 1 else ""
        return Ownership(owners, complete, note if all(o.certain for o in owners) else BY_DATA)

    def _not_found(self, sure: bool) -> Ownership:
        if sure or not self.facts.writes:
            return Ownership((), True, NOBODY)
        op = next(iter(self.facts.writes))
        if len({str(o.span) for o in self.facts.writes}) > 1:
            return Ownership((), False, NOT_FOUND)
        return Ownership((Owner(op.name, op.span, op.role or "kernel", certain=False),), False, ONLY_OP)

    def _cta(self, env: list[Any], roles: list[Any], cta: int, count: int, budget: list[int]) -> None:
        self.place(env, cta, count)
        for role in roles:
            for instance in range(1 if role.unit == "thread" else role.count):
                budget[0] -= 1
                if budget[0] < 0:
                    raise SkeletonLimit
                self.rows.clear()
                self.agent(env, cta, role, instance, None, budget)

    def _halve(self, env: list[Any], roles: list[Any], count: int, budget: list[int]) -> None:
        """Search by halving, right where CTAs write their tiles in row-major order; elsewhere it just does not find."""
        low, high = 0, count - 1
        while low <= high and not self.found:
            middle = (low + high) // 2
            self.probe = probe = _Probe()
            self._cta(env, roles, middle, count, budget)
            self.probe = None
            side = 0
            for a, b, i in zip(probe.low, probe.high, self.index, strict=False):
                side = -1 if i < a else 1 if i >= b else 0
                if side:
                    break
            if not side:
                return
            low, high = (low, middle - 1) if side < 0 else (middle + 1, high)

    # ---- compiling

    def _stmt(self, s: Any, role: Any, warp: bool) -> Callable[[Any], None] | None:
        if isinstance(s, Op):
            wanted = s.site in self.facts.sites or any(r in self.facts.needed for r in s.results)
            return super()._stmt(s, role, warp) if wanted else None
        if isinstance(s, Let) or (isinstance(s, SetScalar) and s.var not in self.facts.needed):
            return None
        if isinstance(s, If) and self._depends(s.cond):
            return self._either(s, role, warp)
        return super()._stmt(s, role, warp)

    def _role(self, s: Any, role: Any, warp: bool) -> Callable[[Any], None] | None:
        step = super()._role(s, role, warp)
        return (
            step if step is not None and self._block(s.body, role, warp) else None
        )  # an empty block keeps no loop alive

    def _warps(self, s: WarpsBlock, role: Any) -> Callable[[Any], None]:
        body, slot = self._block(s.body, role, True), s.warp.slot if s.warp else None

        def block(c: Any) -> None:
            outer = c.env
            for w in range(4):
                c.env, self.warp = outer.copy(), w
                if slot is not None:
                    c.env[slot] = w
                for step in body:
                    step(c)
            c.env, self.warp = outer, None

        return block

    def _either(self, s: If, role: Any, warp: bool) -> Callable[[Any], None] | None:
        """A branch that data decide: both sides may run."""
        steps = [*self._block(s.then, role, warp), *self._block(s.orelse, role, warp)]

        def both(c: Any) -> None:
            for step in steps:
                step(c)

        return both if steps else None

    def _op(self, op: Op, role: Any) -> Callable[[Any], None]:
        if op in self.facts.writes:
            return self._write(op, role)
        if op in self.facts.row_loads.values():
            return self._row_load(op)
        setters = self._results(op)
        at = [(n, ev) for n, v in op.operands.items() if isinstance(v, Region) and (ev := self._operand(v)) is not None]

        def load(c: Any) -> None:
            vals = {n: ev(c) for n, ev in at}
            for setter in setters:
                setter(c, vals)

        return load

    def _results(self, op: Op) -> list[Callable[[Any, dict[str, Any]], None]]:
        src = op.operands.get("src")
        held = self.data.get(src.tensor.name) if op.name == "load_scalar" and isinstance(src, Region) else None
        if held is None or op.results[0] in self.tainted:
            return super()._results(op)
        slot = op.results[0].slot  # type: ignore[union-attr]

        def load(c: Any, vals: dict[str, Any]) -> None:
            c.env[slot] = int(held[_inside(a for a, _ in vals["src"].dims)])

        return [load]

    def _row_load(self, op: Op) -> Callable[[Any], None]:
        src, frag = op.operands["src"], op.results[0]
        at, held = self._operand(src), self.data.get(src.tensor.name)

        def load(c: Any) -> None:
            assert at is not None
            if held is not None:
                box = at(c).dims
                starts = _inside(a for a, _ in box)
                self.rows[frag] = held[
                    tuple(slice(a, max(a, b)) for a, (_, b) in zip(starts, box, strict=True))
                ].reshape(-1)

        return load

    def _write(self, op: Op, role: Any) -> Callable[[Any], None]:
        facts, index = self.facts, self.index
        places = []
        for _, r in facts.writes[op]:
            loose = {
                i for i, d in enumerate(r.dims)
                if sx_vars(d.start) & facts.computed or (d.stop is not None and sx_vars(d.stop) & facts.computed)
            }  # fmt: skip
            loads = {v for d in r.dims for v in sx_vars(d.start) | (sx_vars(d.stop) if d.stop is not None else set())}
            steered = {v for x in self.around[op.site][1] for v in sx_vars(x)}
            open_ = bool(loose) or op.operands.get("when") is not None or bool(steered & facts.computed)
            places.append((r, self._operand(r), loose, gathered(r), not open_, bool((loads | steered) & facts.loaded)))

        def write(c: Any) -> None:
            c.budget[0] -= 1
            if c.budget[0] < 0:
                raise SkeletonLimit
            for r, at, loose, frag, certain, loaded in places:
                box = at(c).dims  # type: ignore[misc]
                if self.probe is not None:
                    self.probe.add(tuple(None if i in loose else b for i, b in enumerate(box)))
                rows = self.rows.get(frag)
                for i, (b, x) in enumerate(zip(box, index, strict=True)):
                    if b is None:
                        if rows is not None and x not in rows:
                            break
                    elif i not in loose and not b[0] <= x < b[1]:
                        break
                else:
                    followed = certain and (rows is not None or None not in box)
                    self._hit(c, op, role, r, box, rows, followed and (self.known or not loaded))

        return write

    # ---- answering

    def _hit(self, c: Any, op: Op, role: Any, r: Region, box: Any, rows: Any, certain: bool) -> None:
        key = (op.site, role.name, c.env[-1], c.cta, self.warp, tuple(c.path))
        if key in self.found or len(self.found) > SHOWN:
            return
        used = {v for d in r.dims for v in sx_vars(d.start)} | set(self.around[op.site][0])
        tile = {
            v.name: c.env[v.slot] for v in sorted(used, key=lambda v: v.slot) if v.kind in ("loop", "local", "loaded")
        }
        stage = None
        for v in op.operands.values():
            if isinstance(v, View) and v.buffer.staged:
                at = self._operand(v)
                where = at(c) if at is not None else None
                stage = where.slot if isinstance(where, ViewAt) else None
        self.found[key] = Owner(
            op.name,
            op.span,
            role.name,
            c.env[-1],
            c.cta,
            tile,
            box,
            self.warp,
            self._thread(op, r, box, rows),
            stage,
            self._filled(op),
            certain,
        )

    def _filled(self, op: Op) -> tuple[tuple[str, int], ...]:
        """The ops that write the on-chip buffer which a store copies from, directly or through registers."""
        ops = [s for s in walk(self.bound.body) if isinstance(s, Op)]
        sources = [v for v in op.operands.values() if isinstance(v, View)]
        x = op.operands.get("x")
        if not sources and isinstance(x, VFrag):
            made = [s for s in ops if any(r is x.frag for r in s.results)]
            sources = [v for s in made for v in s.operands.values() if isinstance(v, View)]
        buffers = {v.buffer for v in sources}
        found = {
            (s.name, s.span.line): None
            for s in ops
            for name, v in s.operands.items()
            if isinstance(v, View) and v.buffer in buffers and mode_of(s, name) == "write"
        }
        return tuple(found)[:SHOWN]

    def _thread(self, op: Op, r: Region, box: Any, rows: Any) -> int | None:
        """The thread of the unit that holds the element, for stores of register tiles."""
        tile = getattr(op.operands.get("x"), "type", None)
        if op.name != "store" or not isinstance(tile, TileType):
            return None
        place = []
        for d, b, x in zip(r.dims, box, self.index, strict=True):
            if d.kind == "index":
                continue
            if b is None:
                if rows is None:
                    return None
                place.append(int((rows == x).argmax()))
            else:
                place.append(x - b[0])
        if r.transposed:
            place.reverse()
        if len(place) == 1:
            place = [place[0], 0] if tile.axis == "rows" else [0, place[0]]
        return next((t for t in range(tile.threads) if self._holds(tile, t, place)), None) if len(place) == 2 else None

    @staticmethod
    def _holds(tile: TileType, t: int, place: list[int]) -> bool:
        row, col = base_of(tile.layout, tile.dtype, tile.axis, tile.threads, t)
        return any((row + dr, col + dc) == (place[0], place[1]) for dr, dc in placement(tile).offsets)


Around = tuple[tuple[ScalarVar, ...], tuple[Any, ...]]


def _around(
    body: tuple[Any, ...], variables: tuple[ScalarVar, ...] = (), conditions: tuple[Any, ...] = ()
) -> dict[int, Around]:
    """The loop variables around each op and what decides whether its blocks run, by its site."""
    found: dict[int, Around] = {}
    for s in body:
        if isinstance(s, Op):
            found[s.site] = (variables, conditions)
            continue
        mine = (s.var,) if isinstance(s, For) else ()
        for block in blocks(s):
            found |= _around(block, (*variables, *mine), (*conditions, *control(s)))
    return found


def _inside(index: Iterable[int]) -> tuple[int, ...]:
    """The index; IndexError for a negative one, which numpy would count from the end."""
    found = tuple(index)
    if any(i < 0 for i in found):
        raise IndexError(f"{list(found)} lies before the tensor")
    return found


def needs_data(bound: BoundKernel, tensor: str) -> bool:
    """Whether loaded integers or gathered rows decide where a tensor is written."""
    target = next((t for t in bound.tensors if t.name == tensor), None)
    if target is None:
        return False
    search = _Search(bound, target, (), {})
    return not search.known or bool(search.facts.row_loads)
