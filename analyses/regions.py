"""What of a kernel decides its global regions: which scalars they need, and what of it depends on data."""

from __future__ import annotations

from typing import Any

from cake_ir.arithmetic import compile_sx
from cake_ir.bound import (
    Assume,
    BoundKernel,
    For,
    Op,
    Region,
    ScalarVar,
    SConst,
    SetScalar,
    SOp,
    SVar,
    Tensor,
    While,
    sx_vars,
    walk,
)
from cake_ir.events import tainted_scalars
from cake_ir.memo import memo
from cake_ir.skeleton import compile_skeleton
from cake_ir.witness import Witness

UNCLIPPED = ("bulk_load", "bulk_store", "bulk_reduce")
"""Ops that move whole rows, whatever the tensor's extents."""
_SX = (SConst, SVar, SOp)


def region_facts(bound: BoundKernel) -> RegionFacts:
    """The facts about written regions, computed once per bound object."""
    return memo(bound, "region facts", lambda: RegionFacts(bound, True))


class RegionFacts:
    """What of a kernel decides its global regions. writes: only the ops that write an Out tensor are of interest, otherwise
    all with a dimension that nothing clips."""

    def __init__(self, bound: BoundKernel, writes: bool) -> None:
        self.bound = bound
        self.loaded: set[ScalarVar] = set()
        self.computed = tainted_scalars(bound)
        self.under_data: set[int] = set()
        self._close()
        self.sites = {
            s.site
            for s in walk(bound.body)
            if isinstance(s, Op) and any(wanted(s, n, r, writes) for n, r in regions(s))
        }
        self.writers = writers_of(bound)
        self.ordered = ordering(bound)
        self.announced = announcing(bound)
        self._known: dict[tuple[Op, str], bool] = {}
        self.needed: set[ScalarVar] = set()
        size = -1
        while size != len(self.needed):
            size = len(self.needed)
            self._need(bound.body)

    def _close(self) -> None:
        """Scalars that depend on loaded data, and sites below a branch that does, to a fixed point."""
        size = -1
        while size != len(self.loaded) + len(self.under_data):
            size = len(self.loaded) + len(self.under_data)
            self._visit(self.bound.body, False)

    def _visit(self, body: tuple[Any, ...], under: bool) -> None:
        for s in body:
            if isinstance(s, Op):
                self.loaded.update(r for r in s.results if isinstance(r, ScalarVar))
                if under:
                    self.under_data.add(s.site)
            elif isinstance(s, SetScalar):
                if under or self.depends(s.value):
                    self.loaded.add(s.var)
            else:
                by = under or any(self.depends(x) for x in control(s))
                if by and isinstance(s, For):
                    self.loaded.add(s.var)
                for part in blocks(s):
                    self._visit(part, by)

    def _need(self, body: tuple[Any, ...]) -> bool:
        """Collects the scalars that the wanted regions and the control around them read; whether there is anything wanted."""
        any_here = False
        for s in body:
            if isinstance(s, Op):
                if s.site in self.sites:
                    any_here = True
                    for _, r in regions(s):
                        for d in r.dims:
                            self.needed |= sx_vars(d.start) | (sx_vars(d.stop) if d.stop is not None else set())
                elif any(r in self.needed for r in s.results if isinstance(r, ScalarVar)):
                    any_here = True
                    for _, r in regions(s):
                        for d in r.dims:
                            self.needed |= sx_vars(d.start)
            elif isinstance(s, SetScalar):
                if s.var in self.needed:
                    any_here = True
                    self.needed |= sx_vars(s.value)
            else:
                inside = [self._need(part) for part in blocks(s)]
                if any(inside) or (isinstance(s, Assume) and control(s)):
                    any_here = any_here or any(inside)
                    for x in control(s):
                        self.needed |= sx_vars(x)
        return any_here

    def depends(self, x: Any) -> bool:
        return isinstance(x, _SX) and bool(sx_vars(x) & self.loaded)

    def certain(self, op: Op, r: Region) -> bool:
        """Whether the op's region, and whether it is reached, are the same for all data."""
        return op.site not in self.under_data and not any(
            d.kind == "gather" or self.depends(d.start) or (d.stop is not None and self.depends(d.stop)) for d in r.dims
        )

    def known(self, op: Op, operand: str) -> bool:
        """Whether the run knows the op's region: it depends at most on loaded indices, which the witness chooses as the
        kernel assumes them, not on computed data."""
        answer = self._known.get((op, operand))
        if answer is None:
            answer = self._known[op, operand] = self._knows(op, op.operands[operand])
        return answer

    def _knows(self, op: Op, r: Region) -> bool:
        free = self.computed
        return op.operands.get("when") is None and not any(
            d.kind == "gather" or sx_vars(d.start) & free or (d.stop is not None and sx_vars(d.stop) & free)
            for d in r.dims
        )


def regions(op: Op) -> list[tuple[str, Region]]:
    """The global regions of an op with their operand names."""
    return [(n, r) for n, r in op.operands.items() if isinstance(r, Region)]


def mode_of(op: Op, operand: str) -> str:
    """How an op accesses an operand: read | write | update."""
    return next((a.mode for a in op.decl.accesses if a.operand == operand), "read")


def wanted(op: Op, operand: str, r: Region, writes: bool) -> bool:
    """Whether a region is of interest: written, or with a dimension that nothing clips."""
    if writes:
        return (r.tensor.direction == "Out" and mode_of(op, operand) == "write") or r.tensor.direction == "InOut"
    return op.name in UNCLIPPED or any(
        d.kind == "index" or (d.kind == "slice" and not counts_up(d.start)) for d in r.dims
    )


def counts_up(x: Any) -> bool:
    """Whether a start is not negative by its form alone: sums and products of extents, indices and positive literals."""
    if isinstance(x, SConst):
        return x.value >= 0
    if isinstance(x, SVar):
        return x.var.kind in (
            "dim",
            "cta",
            "cta_count",
            "cluster_rank",
            "cluster_id",
            "cluster_count",
            "sms",
            "instance",
        )
    return (
        isinstance(x, SOp)
        and x.op in ("+", "*", "//", "%", "min", "max", "ceil_div")
        and all(counts_up(a) for a in x.args)
    )


def control(s: Any) -> list[Any]:
    """The scalar expressions that decide whether and how often the blocks of a statement run."""
    return [x for n in ("start", "stop", "step", "cond") if isinstance(x := getattr(s, n, None), _SX)]


def blocks(s: Any) -> list[tuple[Any, ...]]:
    """The blocks inside a statement."""
    return [part for n in ("prelude", "body", "then", "orelse") if (part := getattr(s, n, None))]


def writers_of(bound: BoundKernel) -> dict[Tensor, list[tuple[Op, Region]]]:
    found: dict[Tensor, list[tuple[Op, Region]]] = {}
    for s in walk(bound.body):
        if isinstance(s, Op):
            for name, r in regions(s):
                if mode_of(s, name) == "write":
                    found.setdefault(r.tensor, []).append((s, r))
    return found


def ordering(bound: BoundKernel) -> bool:
    """Whether the kernel has anything that may order the accesses of two agents to global memory."""
    return any(
        isinstance(s, While)
        or (
            isinstance(s, Op)
            and s.name in ("wait", "arrive", "sync", "named_arrive")
            and s.attrs.get("scope") != "warp"
        )
        for s in walk(bound.body)
    )


def announcing(bound: BoundKernel) -> bool:
    """Whether CTAs of different clusters may order accesses: by a grid-wide sync, or by flags that are polled. What an atomic returns
    orders nothing: it is relaxed, so that the last one to come does not see what the others wrote before."""
    return any(
        isinstance(s, While) or (isinstance(s, Op) and s.name == "sync" and s.attrs.get("scope") == "grid")
        for s in walk(bound.body)
    )


def distinct_data(bound: BoundKernel, w: Witness) -> bool:
    """Whether the integers that a witness loads are all different, as rows of a permutation or starts of groups that are not empty
    are. Two accesses that meet on other data may be kept apart by what the contract says of them."""
    if w.oracle.pattern != "ramp":
        return False
    skeleton = compile_skeleton(bound)
    env = skeleton.environment(w.shape, {}, w.sms)
    tensors = [s.operands["src"].tensor for s in skeleton.int_loads if isinstance(s.operands.get("src"), Region)]
    return all(len(t.extents) == 1 and compile_sx(t.extents[0])(env) - 1 <= w.oracle.top for t in tensors)
