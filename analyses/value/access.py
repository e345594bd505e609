"""Operands at run time: views as (memory, element indices), regions as (index tuple, the part that exists)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from analyses.value.exprs import scalar, vector
from analyses.value.faults import PoisonUse, ValueFault
from analyses.value.formats import Mask, np_dtype
from analyses.value.machine import Agent, Cta
from analyses.value.memory import Bytes, GlobalTensor
from analyses.value.ops_sync import peer
from cake_ir.bound import Fragment, Op, Region, ScalarVar, View

ViewAt = Callable[[Agent], tuple[Cta, Bytes, np.ndarray]]


def view_at(c: Any, v: View) -> ViewAt:
    """(CTA, memory, element indices [as the author sees the view]) of a view."""
    b, memory_map = v.buffer, c.machine.map
    use = None if v.use is None else scalar(v.use)
    row0, col0 = scalar(v.row0), scalar(v.col0)
    rank = None if v.rank is None else scalar(v.rank)
    rows, cols = b.rows, b.cols

    def at(ag: Agent) -> tuple[Cta, Bytes, np.ndarray]:
        env = ag.env
        slot = 0
        if use is not None:
            n = use(env)
            if n < 0:
                raise ag.fault("bounds", f"{b.name}[{n}]: negative use number")
            slot = n % b.stages
        r, k = row0(env), col0(env)
        if r < 0 or k < 0 or r + v.rows > rows or k + v.cols > cols:
            raise ag.fault(
                "bounds", f"view rows {r}..{r + v.rows}, columns {k}..{k + v.cols} leave {b.name} [{rows}, {cols}]"
            )
        cta = ag.cta if rank is None else peer(ag, rank(env))
        return cta, cta.memory(b), memory_map.index(v, slot, int(r), int(k))

    return at


def fragment_result(op: Op, i: int = 0) -> Fragment:
    """A result that the declaration makes a fragment."""
    result = op.results[i]
    assert isinstance(result, Fragment)
    return result


def scalar_result(op: Op) -> ScalarVar:
    """A result that the declaration makes a scalar."""
    result = op.results[0]
    assert isinstance(result, ScalarVar)
    return result


def where_is(v: View) -> str:
    """Short name of a view for messages."""
    return v.buffer.name


@dataclass(frozen=True, slots=True)
class Part:
    """The existing part of a region: `index` addresses the tensor (kept dimensions in tensor order), `inside`
    selects the same elements in an array of the kept shape. gather: the kept axis that an index vector selects,
    inside_rows its indices."""

    tensor: GlobalTensor
    index: tuple[Any, ...]
    inside: tuple[Any, ...]
    kept: tuple[int, ...]
    transposed: bool
    empty: bool
    gather: int | None = None
    inside_rows: Any = ()

    def place(self, data: np.ndarray, fill: Any) -> np.ndarray:
        """Data of the part, spread into the full kept shape (as the author sees it, 2-D)."""
        if data.shape == self.kept:
            full = data
        else:
            full = np.full(self.kept, fill, dtype=data.dtype)
            if not self.empty:
                full[self.inside] = data
        if self.transposed:
            full = full.T
        return full

    def take(self, x: np.ndarray) -> np.ndarray:
        """The elements of `x` (any shape of the same size as the region) that exist, in kept order."""
        full = self.shape(x)
        return full[self.inside]

    def shape(self, x: np.ndarray) -> np.ndarray:
        """`x` as an array in kept order."""
        if self.transposed:
            return x.reshape(self.kept[::-1]).T
        return x.reshape(self.kept)


def region_at(c: Any, r: Region, tma: bool = False) -> Callable[..., Part]:
    """The existing part of a region. at(agent, active=None): `active` selects elements of the region, or gathered
    rows. tma: a tensor copy, whose innermost start is a multiple of 16 bytes."""
    tensor: GlobalTensor = c.machine.tensors[r.tensor.name]
    starts = [scalar(d.start) for d in r.dims]
    stops = [None if d.stop is None else scalar(d.stop) for d in r.dims]
    rows = [None if d.rows is None else vector(d.rows, c.slots) for d in r.dims]
    kinds = [d.kind for d in r.dims]
    kept = tuple(d.size for d in r.dims if d.kind != "index")
    sizes = [d.size for d in r.dims]
    shape, name, bits = tensor.shape, r.tensor.name, r.tensor.dtype.bits

    def at(ag: Agent, active: np.ndarray | None = None) -> Part:
        env = ag.env
        index: list[Any] = []
        inside: list[Any] = []
        empty, axis, gathered = False, None, ()
        for d, kind in enumerate(kinds):
            if kind == "gather":
                wanted = active
                if active is not None and active.size != sizes[d]:
                    wanted = _along(active, kept, len(inside), r.transposed)
                gather = rows[d]
                assert gather is not None
                who, chosen = _gather(ag, gather, shape[d], wanted, name)
                index.append(who)
                inside.append(chosen)
                empty |= not len(who)
                axis, gathered = len(inside) - 1, who
                continue
            start = int(starts[d](env))
            if kind == "index":
                if not 0 <= start < shape[d]:
                    raise ag.fault("bounds", f"index {start} of dimension {d} of {name} is outside 0..{shape[d] - 1}")
                index.append(start)
                continue
            if start < 0:
                raise ag.fault("bounds", f"region of {name} starts at {start} in dimension {d}")
            if tma and d == len(kinds) - 1 and start * bits % 128:
                raise ag.fault("tma-coordinate", f"the copy starts at {start} in the innermost dimension of {name}")
            end = min(shape[d], start + sizes[d])
            if stops[d] is not None:
                end = min(end, int(stops[d](env)))  # type: ignore[misc]
            n = max(0, end - start)
            index.append(slice(start, start + n))
            inside.append(slice(0, n))
            empty |= n == 0
        return Part(tensor, _mesh(index), _mesh(inside), kept, r.transposed, empty, axis, gathered)

    return at


def _along(mask: np.ndarray, kept: tuple[int, ...], axis: int, transposed: bool) -> np.ndarray:
    """Which entries of a kept axis have any selected element."""
    full = mask.reshape(kept[::-1]).T if transposed else mask.reshape(kept)
    return np.asarray(full.any(axis=tuple(i for i in range(len(kept)) if i != axis)))


def _gather(ag: Agent, rows: Any, extent: int, active: np.ndarray | None, name: str) -> tuple[np.ndarray, np.ndarray]:
    data, undef = rows(ag)
    who, mask = data.reshape(-1), None if undef is None else np.broadcast_to(undef, data.shape).reshape(-1)
    chosen = np.arange(len(who)) if active is None else np.flatnonzero(active.reshape(-1))
    who = who[chosen]
    if mask is not None and mask[chosen].any():
        raise PoisonUse
    if len(who) and (who.min() < 0 or who.max() >= extent):
        bad = int(who[(who < 0) | (who >= extent)][0])
        raise ag.fault("bounds", f"gathered row {bad} of {name} is outside 0..{extent - 1}")
    return who, chosen


def _mesh(index: list[Any]) -> tuple[Any, ...]:
    """Slices as they are; with an index array every kept dimension becomes an open-mesh array (numpy's mixed
    indexing moves axes otherwise)."""
    if not any(isinstance(i, np.ndarray) for i in index):
        return tuple(index)
    n = sum(not isinstance(i, int) for i in index)
    out, axis = [], 0
    for i in index:
        if isinstance(i, int):
            out.append(i)
            continue
        line = i if isinstance(i, np.ndarray) else np.arange(i.start, i.stop)
        out.append(line.reshape((1,) * axis + (-1,) + (1,) * (n - axis - 1)))
        axis += 1
    return tuple(out)


def read_part(part: Part, fill: Any, ag: Agent, quiet: bool = False) -> tuple[np.ndarray, Mask]:
    """Region -> array of the kept shape (2-D transposed applied) and undefined mask."""
    t = part.tensor
    data = part.place(t.data[part.index], fill)
    if t.undef is None:
        return data, None
    mask = t.undef[part.index]
    if not mask.any():
        return data, None
    if not quiet:
        ag.hint(f"reads elements of {t.tensor.name} that nobody has written")
    return data, part.place(mask, False)


def write_part(
    part: Part, x: np.ndarray, undef: Mask, when: np.ndarray | None, ag: Agent, span: Any, name: str, what: str
) -> None:
    """Array -> region; elements outside, or not selected by `when`, are skipped. Poison is a fault."""
    if part.empty:
        return
    x = np.broadcast_to(x, x.shape)
    if when is None:
        if undef is not None and part.take(undef).any():
            raise ag.fault_poison(f"{what} writes undefined values to {part.tensor.tensor.name}")
        part.tensor.write(part.index, part.take(x), span, name)
        return
    chosen = np.zeros(part.kept, bool)
    chosen[part.inside] = part.take(when)
    if undef is not None and (part.shape(undef) & chosen).any():
        raise ag.fault_poison(f"{what} writes undefined values to {part.tensor.tensor.name}")
    picked = part.take(when)
    grid = np.broadcast_arrays(*np.ix_(*(_line(i, n) for i, n in zip(part.index, part.tensor.shape, strict=True))))
    flat = tuple(g.reshape(picked.shape)[picked] for g in grid)
    part.tensor.write(flat, part.take(x)[picked], span, name)


def _line(i: Any, n: int) -> np.ndarray:
    if isinstance(i, slice):
        return np.arange(*i.indices(n))
    return np.asarray(i).reshape(-1)


def fill_value(c: Any, x: Any, dtype: Any) -> Callable[[Agent], Any]:
    """The fill of a load as an element of its dtype."""
    from analyses.value.exprs import splat

    if x is None:
        zero = np.zeros((), np_dtype(dtype))[()]
        return lambda ag: zero
    f = scalar(x)

    def value(ag: Agent) -> Any:
        v = f(ag.env)
        data, undef = splat(v, dtype)
        if undef is not None:
            raise PoisonUse
        return data[0, 0]

    return value


def unfenced_hint(ag: Agent, v: View, what: str) -> None:
    """Why an asynchronous read gave poison."""
    ag.hint(
        f"{what} reads {where_is(v)} through the async proxy while generic writes to it are not fenced"
        " (fence_async by every writer)"
    )


def overwrite_check(cta: Cta, memory: Bytes, v: View, idx: np.ndarray, what: str, span: Any, agent: str) -> None:
    """An asynchronous write over generic accesses that were never fenced."""
    if memory.any_unfenced_read(v.buffer.dtype, idx):
        raise ValueFault(
            "race-proxy",
            f"{what} overwrites bytes of {where_is(v)} in CTA {cta.number} whose generic reads were never fenced",
            span,
            agent,
        )
    if memory.any_unfenced(v.buffer.dtype, idx):
        raise ValueFault(
            "race-proxy",
            f"{what} overwrites bytes of {where_is(v)} in CTA {cta.number} whose generic writes were never fenced",
            span,
            agent,
        )
