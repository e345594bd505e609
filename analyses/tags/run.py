"""Carries the tags of all tiles through one run of a kernel on a witness shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from analyses.tags.laws import Laws, Stored
from analyses.tags.schedule import Agent, Order
from analyses.tags.sources import Sources
from analyses.tags.values import At, TileTag, Value
from cake_ir.bound import (
    BoundKernel,
    Buffer,
    Fragment,
    Let,
    Op,
    Region,
    SConst,
    Tensor,
    VCoord,
    VExpand,
    VFrag,
    View,
    VOp,
    VSplat,
)
from cake_ir.derive import Derived
from cake_ir.derive.arrivals import receivers
from cake_ir.events import AgentTrace, Event, RegionAt, ViewAt
from cake_ir.skeleton import Skeleton

_UNKNOWN = At("?")
Step = Callable[["Run", Agent, Event], None]


class AllLets(Skeleton):
    """The skeleton with an event for every assignment of a fragment."""

    def _stmt(self, s: Any, role: Any, warp: bool) -> Any:
        if isinstance(s, Let):
            return lambda c: c.out.append(Event(s, {}, False, tuple(c.path)))
        return super()._stmt(s, role, warp)

    def extents(self, dims: dict[str, int], sms: int) -> dict[Tensor, tuple[int, ...]]:
        """The extents of all tensors on a shape."""
        env = self.environment(dims, {}, sms)
        return {t: tuple(int(e(env)) for e in self._extent[t]) for t in self.bound.tensors}


class Cell:
    """One slot of a buffer in one CTA: values by painted number, in the frame of the whole tile."""

    __slots__ = ("areas", "grid", "ops", "values")

    def __init__(self) -> None:
        self.grid: np.ndarray | None = None
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.areas: list[int] = []

    def paint(self, n: int, rows: slice, cols: slice, size: int) -> None:
        """Value n fills a box of `size` elements. A tile that one value fills again needs no grid."""
        assert self.grid is not None
        self.grid[rows, cols] = n + 1
        self.areas[n] += size
        if self.areas[n] >= self.grid.size and (self.grid == n + 1).all():
            self.values, self.ops, self.areas, self.grid = [self.values[n]], [self.ops[n]], [0], None


class Run:
    """One run. `laws` collects what products and stores show."""

    def __init__(self, bound: BoundKernel, derived: Derived, sources: Sources, laws: Laws) -> None:
        self.bound, self.derived, self.sources, self.laws = bound, derived, sources, laws
        self.values = laws.values
        self.cluster = bound.launch.cluster
        self.cells: dict[tuple[int, Buffer, int], Cell] = {}
        self.aliases = _aliases(bound)
        self.marks: dict[tuple[int, Region], list[Any]] = {}
        self.copies: dict[Any, Value] = {}
        self.node: Any = None

    def run(self, traces: list[AgentTrace]) -> None:
        """All agents to their end; raises `schedule.Stuck`."""
        for agent, e in Order(self.bound, self.derived, traces):
            node = self.node = e.node
            if isinstance(node, Let):
                self.let(agent, node)
            else:
                _STEPS.get(node.name, Run.other)(self, agent, e)

    # ---- memory

    def read(self, at: ViewAt, cta: int | None = None) -> Value:
        """What a view holds, rows and columns as its author sees them."""
        cell = self.cells.get((at.cta if cta is None else cta, at.view.buffer, at.slot))
        if cell is None:
            return self.values.lost
        if cell.grid is None:
            v = cell.values[0]
        else:
            part = cell.grid[at.row0 : at.row1, at.col0 : at.col1]
            if not part.size:
                return self.values.lost
            low, high = int(part.min()), int(part.max())
            if low == high:
                v = cell.values[low - 1] if low else self.values.lost
            else:
                v = self.values.lost
                for n in np.unique(part).tolist()[:4]:
                    v = self.values.joined(v, cell.values[n - 1]) if n else v
        v = self.values.moved(v, at.row0, at.col0)
        return self.values.renamed(v, "swap") if at.view.transposed else v

    def brought(self, at: ViewAt) -> Op | None:
        """The op that wrote the first element of a view last."""
        cell = self.cells.get((at.cta, at.view.buffer, at.slot))
        if cell is None:
            return None
        n = 1 if cell.grid is None else int(cell.grid[at.row0, at.col0])
        return cell.ops[n - 1] if n else None

    def write(self, at: ViewAt, v: Value, op: Op, cta: int | None = None) -> None:
        """Paints a view; v with rows and columns as the author sees them."""
        buffer, cta = at.view.buffer, at.cta if cta is None else cta
        if at.view.transposed:
            v = self.values.renamed(v, "swap")
        v = self.values.moved(v, -at.row0, -at.col0)
        for other in self.aliases.get(buffer, ()):
            for slot in range(other.stages):
                self.cells.pop((cta, other, slot), None)
        key = (cta, buffer, at.slot)
        if at.row0 <= 0 and at.col0 <= 0 and at.row1 >= buffer.rows and at.col1 >= buffer.cols:
            cell = self.cells[key] = Cell()
            cell.values, cell.ops, cell.areas = [v], [op], [0]
            return
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = Cell()
        if cell.grid is None:
            cell.grid = np.full((buffer.rows, buffer.cols), len(cell.values), np.int32)
        for n, known in enumerate(cell.values):
            if known is v and cell.ops[n] is op:
                break
        else:
            n = len(cell.values)
            cell.values.append(v)
            cell.ops.append(op)
            cell.areas.append(0)
        rows, cols = slice(max(0, at.row0), at.row1), slice(max(0, at.col0), at.col1)
        cell.paint(n, rows, cols, (at.row1 - at.row0) * (at.col1 - at.col0))

    # ---- global memory

    def marked(self, op: Op, at: RegionAt, axis: str | None) -> tuple[At, ...]:
        """The coordinates of a region along rows and columns of the tile. axis: of a vector, `rows` or `cols`."""
        region = at.region
        marks = self.marks.get((op.site, region))
        if marks is None:
            kept = [i for i, d in enumerate(region.dims) if d.kind != "index"]
            if len(kept) > 2:
                names = dict.fromkeys(kept, "?")
            elif len(kept) == 2:
                names = dict(zip(kept, "cr" if region.transposed else "rc", strict=True))
            else:
                names = dict.fromkeys(kept, "r" if axis == "rows" else "c")
            marks = self.marks[op.site, region] = [
                (
                    "?" if d.kind == "gather" else names.get(i, "s"),
                    self.sources.roots(d.start),
                    self.sources.swept(d.start, op.site),
                    None if d.kind == "gather" or d.stop is not None else d.size,
                )
                for i, d in enumerate(region.dims)
            ]
        return tuple(
            _UNKNOWN if kind == "?" or span is None else At(kind, span[0], roots, swept)
            for (kind, roots, swept, _), span in zip(marks, at.dims, strict=True)
        )

    def fetched(self, op: Op, at: RegionAt, axis: str | None) -> Value:
        """The value of a region that is read."""
        key = (op.site, at.region, at.dims)
        v = self.copies.get(key)
        if v is None:
            tensor = at.region.tensor
            v = self.copies[key] = self.values.copied(TileTag(tensor, self.marked(op, at, axis)))
            for i, d in enumerate(at.region.dims):
                self.laws.copied.setdefault((tensor, i), set()).add(d.size)
        return v

    def stored(self, agent: Agent, op: Op, at: RegionAt, v: Value, axis: str | None, whole: bool) -> None:
        """A tile leaves for a tensor. whole: it is written, not added to what is there."""
        self.laws.stored(Stored(op, at.region.tensor, self.marked(op, at, axis), v, whole, agent.label))

    # ---- registers

    def eval(self, agent: Agent, x: Any) -> Value:
        """The value of an expression over fragments."""
        v = self.parts(agent, x)
        while isinstance(x, VOp) and x.op == "cast":
            x = x.args[0]
        return self.values.computed(v) if isinstance(x, VOp) else v

    def parts(self, agent: Agent, x: Any) -> Value:
        """What went into an expression."""
        if isinstance(x, VFrag):
            v = agent.frags.get(x.frag, self.values.empty)
            return self.values.moved(v, x.row0, x.col0) if x.row0 or x.col0 else v
        if isinstance(x, VExpand):
            return self.parts(agent, x.x)
        if isinstance(x, (VSplat, VCoord)):
            return self.values.empty
        if isinstance(x, VOp):
            out = self.values.empty
            for a in x.args:
                v = self.parts(agent, a)
                if v is self.values.empty:
                    continue
                if out is self.values.empty:
                    out = v
                elif v is not out:
                    self.laws.meet(self.node, out, v, (x.type.rows, x.type.cols), agent.label)
                    out = self.values.joined(out, v)
            return out
        if isinstance(x, Fragment):
            return agent.frags.get(x, self.values.empty)
        return self.values.empty

    def let(self, agent: Agent, s: Let) -> None:
        agent.frags[s.frag] = self.values.empty if s.value is None else self.eval(agent, s.value)

    # ---- ops

    def copy_in(self, agent: Agent, e: Event) -> None:
        op, at = e.node, e.vals["view"]
        v = self.fetched(op, e.vals["region"], "cols")
        if op.name == "cp_async" or e.vals.get("multicast") is None:
            self.write(at, v, op)
            return
        base = agent.cta - agent.cta % self.cluster
        for cta in receivers(e, at.cta, base, self.cluster):
            self.write(at, v, op, cta)

    def copy_out(self, agent: Agent, e: Event) -> None:
        op = e.node
        self.stored(agent, op, e.vals["region"], self.read(e.vals["view"]), "cols", op.name.endswith("store"))

    def load(self, agent: Agent, e: Event) -> None:
        op = e.node
        (result,) = op.results
        axis, src = result.type.axis, e.vals["src"]
        if isinstance(src, RegionAt):
            v = self.fetched(op, src, axis)
        else:
            v = self.read(src)
            if axis == "rows":
                v = self.values.renamed(v, "swap")
        agent.frags[result] = v

    def store(self, agent: Agent, e: Event) -> None:
        op = e.node
        name = "dst" if "dst" in e.vals else "region" if "region" in e.vals else "view"
        at, x = e.vals[name], op.operands["x"]
        v, axis = self.eval(agent, x), getattr(getattr(x, "type", None), "axis", None)
        if isinstance(at, RegionAt):
            self.stored(agent, op, at, v, axis, op.name == "store")
            return
        if axis == "rows":
            v = self.values.renamed(v, "swap")
        if op.operands.get("when") is not None:
            v = self.values.joined(self.read(at), v, raw=True)
        self.write(at, v, op)

    def store_scalar(self, agent: Agent, e: Event) -> None:
        at = e.vals.get("dst")
        if isinstance(at, ViewAt):
            self.write(at, self.values.lost, e.node)

    def read_matrix(self, agent: Agent, e: Event) -> None:
        (result,) = e.node.results
        agent.frags[result] = self.read(e.vals["view"])

    def product(self, agent: Agent, e: Event) -> None:
        op = e.node
        acc = op.operands["acc"]
        frag = acc.frag if isinstance(acc, VFrag) else acc
        (a, a_op), (b, b_op) = self.operand(agent, e, "a"), self.operand(agent, e, "b")
        init = op.name != "mma" and _flag(op, e)
        held = agent.frags.get(frag, self.values.empty)
        size = _shape(op.operands["a"]), _shape(op.operands["b"])
        new = self.laws.product(op, (a, b), size, (a_op, b_op), held, init, agent.label)
        whole = not isinstance(acc, VFrag) or (acc.type.rows, acc.type.cols) == (frag.type.rows, frag.type.cols)
        agent.frags[frag] = new if whole else self.values.joined(held, self.values.lost)

    def operand(self, agent: Agent, e: Event, name: str) -> tuple[Value, Op | None]:
        at = e.vals.get(name)
        if isinstance(at, ViewAt):
            return self.read(at), self.brought(at)
        return self.eval(agent, e.node.operands[name]), None

    def pair_product(self, agent: Agent, e: Event) -> None:
        """tcgen05: accumulators in tensor memory, of both CTAs of a pair with cta_group=2."""
        op, acc = e.node, e.vals["acc"]
        a, b = e.vals["a"], e.vals["b"]
        size = _shape(op.operands["a"]), _shape(op.operands["b"])
        init = _flag(op, e)
        pair = [agent.cta]
        if op.attrs.get("cta_group", 1) == 2:
            base = agent.cta - agent.cta % self.cluster
            first = agent.cta - (agent.cta - base) % 2
            pair = [first, first + 1]
        width = (acc.col1 - acc.col0) // len(pair)
        for cta in pair:
            for h, other in enumerate(pair):
                part = acc._replace(col0=acc.col0 + h * width, col1=acc.col0 + (h + 1) * width)
                ops = self.brought(a._replace(cta=cta)), self.brought(b._replace(cta=other))
                held = self.values.empty if init else self.read(part, cta)
                values = self.read(a, cta), self.read(b, other)
                new = self.laws.product(op, values, size, ops, held, init, agent.label)
                self.write(part, new, op, cta)

    def reduce(self, agent: Agent, e: Event) -> None:
        op = e.node
        v = self.eval(agent, op.operands["x"])
        if "payload" in op.operands:
            v = self.values.joined(v, self.eval(agent, op.operands["payload"]))
        v = self.values.renamed(self.values.computed(v), "cols" if op.name.startswith("row") else "rows")
        self.give(agent, op, v)

    def spread(self, agent: Agent, e: Event) -> None:
        v = self.eval(agent, e.node.operands["x"])
        rows = e.node.name == "col_cumsum"
        self.give(agent, e.node, self.values.renamed(self.values.computed(v), "lose r" if rows else "lose c"))

    def rename(self, agent: Agent, e: Event) -> None:
        op = e.node
        v = self.eval(agent, op.operands["x"])
        if op.name == "transpose":
            v = self.values.renamed(v, "swap")
        elif op.name == "warp_part":
            whole = op.operands["x"].type
            one = whole.rows == 64 or whole.axis == "cols"
            v = self.values.moved(v, 16 * agent.warp, 0) if one else self.values.renamed(v, "lose r")
        self.give(agent, op, v)

    def give(self, agent: Agent, op: Op, v: Value) -> None:
        for r in op.results:
            if isinstance(r, Fragment):
                agent.frags[r] = v

    def other(self, agent: Agent, e: Event) -> None:
        """An op that is not tracked: what it writes is unknown from here on."""
        op = e.node
        self.give(agent, op, self.values.lost)
        for access in op.decl.accesses:
            at = e.vals.get(access.operand)
            if access.mode != "read" and isinstance(at, ViewAt):
                self.write(at, self.values.lost, op)


_STEPS: dict[str, Step] = {
    **dict.fromkeys(("tma_load", "bulk_load", "cp_async"), Run.copy_in),
    **dict.fromkeys(("tma_store", "bulk_store", "tma_reduce", "bulk_reduce"), Run.copy_out),
    **dict.fromkeys(("store", "stmatrix", "tmem_store", "atomic_add", "atomic_min", "atomic_max"), Run.store),
    **dict.fromkeys(("ldmatrix", "tmem_load"), Run.read_matrix),
    **dict.fromkeys(("wgmma", "mma"), Run.product),
    **dict.fromkeys(
        (
            "row_sum",
            "row_max",
            "row_min",
            "row_any",
            "row_all",
            "row_argmin",
            "row_argmax",
            "col_sum",
            "col_max",
            "col_min",
        ),
        Run.reduce,
    ),
    **dict.fromkeys(("col_cumsum", "row_cumsum", "shift"), Run.spread),
    **dict.fromkeys(("operand_a", "operand_b", "transpose", "warp_part"), Run.rename),
    "load": Run.load,
    "store_scalar": Run.store_scalar,
    "tcgen05_mma": Run.pair_product,
}


def _flag(op: Op, e: Event) -> bool | None:
    """init= of a product; None where data decide it."""
    x = op.operands.get("init")
    if isinstance(x, SConst):
        return bool(x.value)
    return e.vals.get("init")


def _shape(x: Any) -> tuple[int, int]:
    """Rows and columns of a matrix operand."""
    return tuple(x.shape) if isinstance(x, View) else (x.type.rows, x.type.cols)  # type: ignore[return-value]


def _aliases(bound: BoundKernel) -> dict[Buffer, list[Buffer]]:
    """The tiles that share storage with each tile."""

    def bottom(b: Buffer) -> Buffer:
        while b.over is not None:
            b = b.over
        return b

    groups: dict[Buffer, list[Buffer]] = {}
    for b in bound.buffers:
        groups.setdefault(bottom(b), []).append(b)
    return {b: [o for o in g if o is not b] for g in groups.values() if len(g) > 1 for b in g}
