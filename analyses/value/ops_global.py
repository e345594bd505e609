"""Value semantics of the generic-proxy memory ops: load, store, ldmatrix, stmatrix, scalars, atomics."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from analyses.value.access import (
    fill_value,
    fragment_result,
    read_part,
    region_at,
    scalar_result,
    view_at,
    where_is,
    write_part,
)
from analyses.value.exprs import POISON, native, scalar, splat
from analyses.value.formats import Mask, cast, join
from analyses.value.machine import Agent
from analyses.value.memory import MANY
from analyses.value.ops_copy import generic_read, generic_written, update_part
from cake_ir.bound import Op, Region, View
from cake_ir.layouts import TileType, base_of, placement

Compiled = tuple[bool, Callable[[Agent], Any]]


@lru_cache(maxsize=512)
def threads_of(tile: TileType) -> tuple[np.ndarray, np.ndarray]:
    """(writer, reader) thread of every element of a register tile [rows, cols], counted inside the unit.

    A replicated vector is written by its first holder, and read by several threads: reader -1.
    """
    first: np.ndarray = np.full((tile.rows, tile.cols), -1)
    holders: np.ndarray = np.zeros((tile.rows, tile.cols), int)
    offsets = np.array(placement(tile).offsets).reshape(-1, 2)
    for t in range(tile.threads):
        at = offsets + base_of(tile.layout, tile.dtype, tile.axis, tile.threads, t)
        at = at[(at[:, 0] < tile.rows) & (at[:, 1] < tile.cols)]
        place: Any = (at[:, 0], at[:, 1])
        holders[place] += 1
        first[place] = np.where(first[place] < 0, t, first[place])
    return first, np.where(holders == 1, first, -1)


class _Threads:
    """Threads of the elements of a tile, as numbers inside the role instance; `several` stays what it is."""

    def __init__(self, threads: np.ndarray | int, several: int, shape: tuple[int, int]) -> None:
        self.threads: np.ndarray = np.broadcast_to(np.asarray(threads), shape)
        self.several = several
        self.known: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}

    def of(self, first: int, shape: tuple[int, ...]) -> np.ndarray:
        """For a unit whose first thread is `first`, in the shape of a view."""
        key = (first, shape)
        if key not in self.known:
            moved = np.where(self.threads == self.several, self.several, self.threads + first)
            self.known[key] = np.ascontiguousarray(moved).reshape(shape)
        return self.known[key]


def _load(c: Any, op: Op) -> Compiled:
    frag = fragment_result(op)
    slot, shape = c.slots[frag], (frag.type.rows, frag.type.cols)
    src = op.operands["view" if op.name == "ldmatrix" else "src"]
    if isinstance(src, View):
        at, dtype = view_at(c, src), src.buffer.dtype
        readers = _Threads(-1 if op.name == "ldmatrix" else threads_of(frag.type)[1], -1, shape)

        def from_view(ag: Agent) -> None:
            _, memory, idx = at(ag)
            data, undef = memory.read(dtype, idx)
            generic_read(ag, memory, src, idx, op.unit)
            if undef is not None:
                ag.hint(f"{op.name} reads bytes of {where_is(src)} that are not there yet")
            if ag.dirty:
                who = readers.of(ag.first_thread(), idx.shape)
                undef = join(undef, ag.unsynced(memory, dtype, idx, who, op.name))
            if undef is not None:
                undef = undef.reshape(shape)
            ag.write_frag(slot, frag, data.reshape(shape), undef)

        return False, from_view
    region, dtype = region_at(c, src), src.tensor.dtype
    fill = fill_value(c, op.operands.get("fill"), dtype)

    def from_global(ag: Agent) -> None:
        data, undef = read_part(region(ag), fill(ag), ag)
        ag.write_frag(slot, frag, data.reshape(shape), None if undef is None else undef.reshape(shape))

    return False, from_global


def _load_scalar(c: Any, op: Op) -> Compiled:
    src, slot = op.operands["src"], scalar_result(op).slot
    if isinstance(src, View):
        at, dtype = view_at(c, src), src.buffer.dtype

        def from_view(ag: Agent) -> None:
            _, memory, idx = at(ag)
            data, undef = memory.read(dtype, idx)
            generic_read(ag, memory, src, idx, op.unit)
            one = op.unit == "T" or ag.role.unit == "thread"
            undef = join(undef, ag.unsynced(memory, dtype, idx, ag.first_thread() if one else -1, "load"))
            if undef is not None:
                ag.hint(f"load reads a cell of {where_is(src)} that is not there yet")
            ag.env[slot] = POISON if undef is not None else native(data.reshape(-1)[0], dtype.name)

        return False, from_view
    region, dtype = region_at(c, src), src.tensor.dtype

    def from_global(ag: Agent) -> None:
        part = region(ag)
        t = part.tensor
        if t.undef is not None and t.undef[part.index]:
            ag.hint(f"load reads an element of {t.tensor.name} that nobody has written")
            ag.env[slot] = POISON
        else:
            ag.env[slot] = native(t.data[part.index], dtype.name)

    return False, from_global


def _mask(c: Any, op: Op) -> Callable[[Agent], np.ndarray | None]:
    when = op.operands.get("when")
    if when is None:
        return lambda ag: None
    f = c.vx(when)

    def mask(ag: Agent) -> np.ndarray:
        data, undef = f(ag)
        if undef is not None and undef.any():
            raise ag.fault_poison(f"the mask of {op.name} is undefined")
        return data

    return mask


def _store(c: Any, op: Op) -> Compiled:
    dst = op.operands["view" if op.name == "stmatrix" else "dst"]
    value, mask, unit = c.vx(op.operands["x"]), _mask(c, op), op.unit
    if isinstance(dst, View):
        at, dtype = view_at(c, dst), dst.buffer.dtype
        tile = op.operands["x"].type
        writers = _Threads(MANY if op.name == "stmatrix" else threads_of(tile)[0], MANY, (tile.rows, tile.cols))

        def to_view(ag: Agent) -> None:
            _, memory, idx = at(ag)
            data, undef = value(ag)
            when = mask(ag)
            data = data.reshape(idx.shape)
            undef = None if undef is None else undef.reshape(idx.shape)
            who = writers.of(ag.first_thread(), idx.shape)
            if when is not None:
                when = when.reshape(idx.shape)
                idx, data, who = idx[when], data[when], who[when]
                undef = None if undef is None else undef[when]
            memory.write(dtype, idx, data, undef)
            generic_written(ag, memory, dtype, idx, unit, who)

        return False, to_view
    region = region_at(c, dst)

    def to_global(ag: Agent) -> None:
        data, undef = value(ag)
        when = mask(ag)
        part = region(ag, when) if when is not None and _gathers(dst) else region(ag)
        write_part(part, data, undef, when, ag, op.span, ag.name, "store")

    return False, to_global


def _gathers(region: Region) -> bool:
    return any(d.kind == "gather" for d in region.dims)


def _store_scalar(c: Any, op: Op) -> Compiled:
    dst, value = op.operands["dst"], scalar(op.operands["x"])
    dtype = dst.buffer.dtype if isinstance(dst, View) else dst.tensor.dtype
    if isinstance(dst, View):
        at, unit = view_at(c, dst), op.unit

        def to_view(ag: Agent) -> None:
            _, memory, idx = at(ag)
            data, undef = splat(value(ag.env), dtype)
            memory.write(dtype, idx, data.reshape(idx.shape), None if undef is None else undef.reshape(idx.shape))
            generic_written(ag, memory, dtype, idx, unit, ag.first_thread())

        return False, to_view
    region = region_at(c, dst)

    def to_global(ag: Agent) -> None:
        data, undef = splat(value(ag.env), dtype)
        if undef is not None:
            raise ag.fault_poison(f"store writes an undefined scalar to {dst.tensor.name}")
        part = region(ag)
        part.tensor.write(part.index, data.reshape(()), op.span, ag.name)

    return False, to_global


def _splatted(x: Any, dtype: Any) -> Callable[[Agent], tuple[np.ndarray, Mask]]:
    f = scalar(x)
    return lambda ag: splat(f(ag.env), dtype)


def _atomic(c: Any, op: Op) -> Compiled:
    """red.global and atom.global: elementwise, in place, at once."""
    target: Region = op.operands["region"]
    region, how, mask = region_at(c, target), op.name.rsplit("_", 1)[1], _mask(c, op)
    x = op.operands["x"]
    tile = hasattr(x, "type")
    value = c.vx(x) if tile else _splatted(x, target.tensor.dtype)
    dtype = target.tensor.dtype
    got = fragment_result(op) if op.results else None

    def update(ag: Agent) -> None:
        data, undef = value(ag)
        when = mask(ag)
        gather = _gathers(target)
        part = region(ag, when) if when is not None and gather else region(ag)
        undef2: Mask = undef
        if not part.kept:
            data, undef2 = data.reshape(()), None if undef is None else undef.reshape(())
        met = update_part(part, cast(data, dtype), undef2, how, ag, op, when)
        if got is not None:
            ag.write_frag(c.slots[got], got, (met.T if part.transposed else met).reshape(data.shape), None)

    return False, update


HANDLERS = {
    "load": _load,
    "load_scalar": _load_scalar,
    "store": _store,
    "store_scalar": _store_scalar,
    "ldmatrix": _load,
    "stmatrix": _store,
    "atomic_add": _atomic,
    "atomic_min": _atomic,
    "atomic_max": _atomic,
    "atomic_fetch_add": _atomic,
}
