"""Value semantics of the asynchronous copies: TMA, bulk, cp.async, tensor-memory loads and stores.

Sources are sampled and destinations written when the engine moves, never at issue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from analyses.value.access import (
    Part,
    fragment_result,
    overwrite_check,
    read_part,
    region_at,
    unfenced_hint,
    view_at,
    where_is,
    write_part,
)
from analyses.value.barriers import WaitUntil
from analyses.value.exprs import scalar
from analyses.value.facts import view_bytes
from analyses.value.formats import Mask, join, np_dtype
from analyses.value.machine import Agent, AsyncOp, Touched
from analyses.value.memory import MANY, Bytes
from analyses.value.ops_sync import receivers, target
from cake_ir.bound import BarUse, Op, Region, View

Compiled = tuple[bool, Callable[[Agent], Any]]


def _load(c: Any, op: Op) -> Compiled:
    """tma_load / bulk_load: bytes land late in every receiving CTA, then complete on its barrier."""
    view: View = op.operands["view"]
    region: Region = op.operands["region"]
    bar: BarUse = op.operands["signal"]
    at, source = view_at(c, view), region_at(c, region, tma=True)
    multicast = op.operands.get("multicast")
    who = receivers(multicast, lambda ag: ag.cta)
    signal, use, barrier = target(bar), scalar(bar.use), bar.barrier
    dtype, nbytes, zero = view.buffer.dtype, view_bytes(view), np.zeros((), np_dtype(view.buffer.dtype))[()]
    whole = op.name == "bulk_load"

    def issue(ag: Agent) -> None:
        home, _, idx = at(ag)
        part = source(ag)
        n, span = use(ag.env), op.span
        if whole and (part.empty or any(k != s for k, s in zip(_extent(part), part.kept, strict=True))):
            raise ag.fault("bounds", f"bulk_load leaves {region.tensor.name}: bulk copies do not clip")
        if multicast is not None:
            places = [(r, r) for r in who(ag)]
        elif bar.rank is not None:
            places = [(home, signal(ag))]
        else:
            places = [(home, home)]

        def land() -> None:
            data, undef = read_part(part, zero, ag)
            data = data.reshape(idx.shape)
            undef = None if undef is None else undef.reshape(idx.shape)
            for dest, told in places:
                dest.must_live(f"{op.name} writes its shared memory", span, ag.name)
                memory = dest.memory(view.buffer)
                overwrite_check(dest, memory, view, idx, op.name, span, ag.name)
                memory.write(dtype, idx, data, undef)
                memory.clear_writer(dtype, idx)
                told.rings[barrier].complete_tx(n, nbytes, span, f"{op.name} issued by {ag.name}")

        ag.machine.issue(AsyncOp("tma", (land,), ag, span, op.name))

    return False, issue


def _send(c: Any, op: Op) -> Compiled:
    """store_async: registers are read at issue; the bytes land late in the peer's shared memory, then complete there."""
    view: View = op.operands["view"]
    at, value = view_at(c, view), c.vx(op.operands["x"])
    use, barrier = scalar(op.operands["signal"].use), op.operands["signal"].barrier
    dtype, nbytes = view.buffer.dtype, view_bytes(view)

    def issue(ag: Agent) -> None:
        dest, memory, idx = at(ag)
        data, undef = value(ag)
        data = data.reshape(idx.shape).copy()
        undef = None if undef is None else undef.reshape(idx.shape).copy()
        n = use(ag.env)

        def land() -> None:
            dest.must_live(f"{op.name} writes its shared memory", op.span, ag.name)
            overwrite_check(dest, memory, view, idx, op.name, op.span, ag.name)
            memory.write(dtype, idx, data, undef)
            memory.clear_writer(dtype, idx)
            dest.rings[barrier].complete_tx(n, nbytes, op.span, f"{op.name} issued by {ag.name}")

        ag.machine.issue(AsyncOp("tma", (land,), ag, op.span, op.name))

    return False, issue


def _extent(part: Part) -> tuple[int, ...]:
    out = []
    for i in part.inside:
        out.append(i.stop - i.start if isinstance(i, slice) else i.size)
    return tuple(out)


def _group(ag: Agent, unit: str) -> list[AsyncOp]:
    return ag.open_bulk["T" if unit == "T" else "G"]


def _store(c: Any, op: Op) -> Compiled:
    """tma_store, bulk_store, tma_reduce, bulk_reduce: reads shared memory late, then writes global memory later
    still."""
    view: View = op.operands["view"]
    region: Region = op.operands["region"]
    at, dest = view_at(c, view), region_at(c, region, tma=True)
    when = None if op.operands.get("when") is None else c.vx(op.operands["when"])
    gather = any(d.kind == "gather" for d in region.dims)
    reduce = op.attrs.get("op") if op.name.endswith("reduce") else None
    whole = op.name.startswith("bulk")
    dtype = view.buffer.dtype

    def issue(ag: Agent) -> None:
        _, memory, idx = at(ag)
        active = None
        if when is not None:
            mask, undef = when(ag)
            if undef is not None and undef.any():
                raise ag.fault_poison(f"the mask of {op.name} is undefined")
            active = mask.reshape(-1)
        part = dest(ag, active) if gather else dest(ag)
        if whole and not gather and (part.empty or any(k != s for k, s in zip(_extent(part), part.kept, strict=True))):
            raise ag.fault("bounds", f"{op.name} leaves {region.tensor.name}: bulk copies do not clip")
        got: list[tuple[np.ndarray, Mask]] = []
        stmt = ag.at

        loose = ag.unsynced(memory, dtype, idx, ag.first_thread() if op.unit == "T" else -1, op.name)

        def sample() -> None:
            data, undef, unfenced = memory.read_async(dtype, idx)
            undef = join(undef, loose)
            if unfenced:
                now, ag.at = ag.at, stmt
                unfenced_hint(ag, view, op.name)
                ag.at = now
            got.append((data, undef))

        def write() -> None:
            data, undef = got[0]
            now, ag.at = ag.at, stmt
            try:
                if reduce is None:
                    write_part(part, data, undef, None, ag, op.span, ag.name, op.name)
                elif active is not None and not gather:
                    update_part(part, data, undef, reduce, ag, op, np.broadcast_to(_rows(active, part), part.kept))
                else:
                    update_part(part, data, undef, reduce, ag, op, None)
            finally:
                ag.at = now

        copy = AsyncOp("store", (sample, write), ag, op.span, op.name)
        copy.source = (memory, dtype, idx)
        _group(ag, op.unit).append(ag.machine.issue(copy))

    return False, issue


def _rows(active: np.ndarray, part: Part) -> np.ndarray:
    return active.reshape((-1,) + (1,) * (len(part.kept) - 1))


_UPDATE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {"min": np.fmin, "max": np.fmax}


def update_part(
    part: Part, x: np.ndarray, undef: Mask, how: str, ag: Agent, op: Op, when: np.ndarray | None
) -> np.ndarray:
    """Element-wise add/min/max into a region; each addition rounds to the tensor's dtype. Repeated gathered rows add
    up in row order (the hardware's order is not defined). Returns, in the kept shape, what each element met; 0 where
    nothing was updated."""
    before = np.zeros(part.kept, part.tensor.data.dtype)
    if part.empty:
        return before
    t = part.tensor
    data = part.take(x)
    chosen = np.ones(data.shape, bool) if when is None else part.take(when)
    if undef is not None and (part.take(undef) & chosen).any():
        raise ag.fault_poison(f"{op.name} adds undefined values to {t.tensor.name}")
    if t.tensor.direction != "InOut":
        raise ag.fault("bounds", f"{op.name} updates {t.tensor.name}, which is {t.tensor.direction}")

    def combine(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        if how != "add":
            return _UPDATE[how](old, new)
        if old.dtype.kind in "iu":
            return old + new
        wide = old.astype(np.float64) + new.astype(np.float64)
        return wide.astype(np.float32).astype(old.dtype)

    if t.undef is not None and t.undef[part.index][chosen].any():
        raise ag.fault_poison(f"{op.name} updates elements of {t.tensor.name} that nobody has written")
    axis = part.gather
    if axis is None or len(np.unique(part.inside_rows)) == len(part.inside_rows):
        old = t.data[part.index].copy()
        t.data[part.index] = np.where(chosen, combine(old, data), old)
        before[part.inside] = np.where(chosen, old, before.dtype.type(0))
        return before
    met = np.zeros_like(data)
    for row in range(data.shape[axis]):  # one row after the other: indices repeat
        cut = (slice(None),) * axis + (slice(row, row + 1),)
        index = tuple(i if isinstance(i, int) or i.shape[axis] == 1 else i[cut] for i in part.index)
        old = t.data[index].copy()
        t.data[index] = np.where(chosen[cut], combine(old, data[cut]), old)
        met[cut] = np.where(chosen[cut], old, met.dtype.type(0))
    before[part.inside] = met
    return before


def _commit(c: Any, op: Op) -> Compiled:
    keys = ("T",) if op.unit == "T" else ("T", "G")

    def commit(ag: Agent) -> None:
        for k in keys:
            ag.bulk[k].append(ag.open_bulk[k])
            ag.open_bulk[k] = []

    return False, commit


def _wait_bulk(c: Any, op: Op) -> Compiled:
    keys = ("T",) if op.unit == "T" else ("T", "G")
    k = _depth(op)
    steps = 1 if op.name == "bulk_wait_read" else 2
    alone = c.role.unit != "thread"  # each thread waits for its own copies

    def wait(ag: Agent) -> Iterator[Any]:
        for key in keys:
            groups = ag.bulk[key]
            retired = [o for g in (groups[:-k] if k else groups) for o in g]
            ops = [o for g in (groups[:-k] if k else groups) for o in g if o.done < steps]
            if ops:
                yield WaitUntil(lambda ops=ops: all(o.done >= steps for o in ops), "its bulk groups")
            for o in retired if alone else ():
                if o.source is not None:
                    ag.waited_alone.append(o.source)
                    o.source = None
            ag.bulk[key] = groups[-max(k, 8) :] if len(groups) > 16 else groups

    return True, wait


def _depth(op: Op) -> int:
    return int(op.attrs.get("k", 0))


def _cp_async(c: Any, op: Op) -> Compiled:
    view: View = op.operands["view"]
    at, source = view_at(c, view), region_at(c, op.operands["region"])
    dtype, zero, unit = view.buffer.dtype, np.zeros((), np_dtype(view.buffer.dtype))[()], op.unit

    def issue(ag: Agent) -> None:
        _, memory, idx = at(ag)
        part = source(ag)

        def land() -> None:
            data, undef = read_part(part, zero, ag)
            memory.write(dtype, idx, data.reshape(idx.shape), None if undef is None else undef.reshape(idx.shape))
            generic_written(ag, memory, dtype, idx, unit, MANY)

        ag.open_cp.append(ag.machine.issue(AsyncOp("cp_async", (land,), ag, op.span, op.name), ("cp", ag)))

    return False, issue


def generic_written(ag: Agent, memory: Any, dtype: Any, idx: np.ndarray, unit: str, threads: np.ndarray | int) -> None:
    """Marks a generic write by `threads` of the unit: unseen by its other threads until a sync, and by the async proxy
    until a fence (only kernels that have an async proxy care)."""
    if ag.waited_alone and unit != "T":
        _check_waited_alone(ag, memory, dtype, idx)
    memory.mark_writer(dtype, idx, (ag.epoch, ag.warp_epoch), threads, ag.warp)
    ag.dirty = ag.wrote = True
    if ag.machine.proxied:
        memory.mark_unfenced(dtype, idx)
        ag.unfenced.append(Touched(memory, dtype, idx, unit, read=False))


def generic_read(ag: Agent, memory: Bytes, view: View, idx: np.ndarray, unit: str) -> None:
    """Marks a generic read that a later asynchronous write may overtake (buffers that copies fill, until a fence)."""
    if view.buffer in ag.machine.refilled:
        memory.mark_read(view.buffer.dtype, idx)
        ag.unfenced.append(Touched(memory, view.buffer.dtype, idx, unit, read=True))


def _check_waited_alone(ag: Agent, memory: Any, dtype: Any, idx: np.ndarray) -> None:
    """All threads of the unit overwrite what a bulk copy reads, while only the first of them knows that it has been read."""
    for other, of, source in ag.waited_alone:
        if other is memory and (
            source is idx or np.intersect1d(source * of.bytes // dtype.bytes, idx, assume_unique=False).size
        ):
            raise ag.fault(
                "race-unit", "the unit overwrites the source of a bulk copy that only the issuing thread has waited for"
            )


def _cp_commit(c: Any, op: Op) -> Compiled:
    def commit(ag: Agent) -> None:
        ag.cp.append(ag.open_cp)
        ag.open_cp = []

    return False, commit


def _cp_wait(c: Any, op: Op) -> Compiled:
    k = _depth(op)

    def wait(ag: Agent) -> Iterator[Any]:
        ops = [o for g in (ag.cp[:-k] if k else ag.cp) for o in g if not o.finished]
        if ops:
            yield WaitUntil(lambda: all(o.finished for o in ops), "its cp.async groups")
        ag.cp = ag.cp[-max(k, 1) :]

    return True, wait


def _cp_arrive(c: Any, op: Op) -> Compiled:
    bar: BarUse = op.operands["bar"]
    use, barrier, where = scalar(bar.use), bar.barrier, target(bar)
    n = 32 if op.unit == "W" else 128

    def issue(ag: Agent) -> None:
        number, ring = use(ag.env), where(ag).rings[barrier]
        step = lambda: ring.arrive(number, n, op.span, ag.name)  # noqa: E731 - one delayed action
        ag.machine.issue(AsyncOp("cp_async", (step,), ag, op.span, op.name), ("cp", ag))

    return False, issue


# ---- tensor memory ---------------------------------------------------------------------------------------------------


def _tmem_load(c: Any, op: Op) -> Compiled:
    view: View = op.operands["view"]
    at = view_at(c, view)
    frag = fragment_result(op)
    slot = c.slots[frag]
    dtype = view.buffer.dtype

    def issue(ag: Agent) -> None:
        _, memory, idx = at(ag)
        st = ag.frags[slot]
        if st.pending or st.reading:
            ag.write_frag(slot, frag, st.data, st.undef)  # raises the pending-register fault
        st.pending += 1
        stmt = ag.at

        def read() -> tuple[Any, Any]:
            data, undef = memory.read(dtype, idx)
            if undef is not None:
                now, ag.at = ag.at, stmt
                ag.hint(f"tmem_load reads columns of {where_is(view)} that nothing has written yet")
                ag.at = now
            return data, undef

        at_once = read() if ag.machine.at_once() else None

        def arrive() -> None:
            st.pending -= 1
            st.data, st.undef = at_once or read()

        ag.tmem_loads.append(arrive)

    return False, issue


def _tmem_store(c: Any, op: Op) -> Compiled:
    view: View = op.operands["view"]
    at, value = view_at(c, view), c.vx(op.operands["x"])
    dtype = view.buffer.dtype

    def issue(ag: Agent) -> None:
        _, memory, idx = at(ag)
        data, undef = value(ag)
        if ag.machine.at_once():
            memory.write(dtype, idx, data, undef)
        else:
            ag.tmem_stores.append(lambda: memory.write(dtype, idx, data, undef))

    return False, issue


def _tmem_wait(c: Any, op: Op) -> Compiled:
    loads = op.name == "tmem_load_wait"

    def wait(ag: Agent) -> None:
        queue = ag.tmem_loads if loads else ag.tmem_stores
        for step in queue:
            step()
        queue.clear()

    return False, wait


HANDLERS = {
    "tma_load": _load,
    "bulk_load": _load,
    "store_async": _send,
    "tma_store": _store,
    "bulk_store": _store,
    "tma_reduce": _store,
    "bulk_reduce": _store,
    "bulk_commit": _commit,
    "bulk_wait_read": _wait_bulk,
    "bulk_wait": _wait_bulk,
    "cp_async": _cp_async,
    "cp_async_commit": _cp_commit,
    "cp_async_wait": _cp_wait,
    "cp_async_arrive": _cp_arrive,
    "tmem_load": _tmem_load,
    "tmem_load_wait": _tmem_wait,
    "tmem_store": _tmem_store,
    "tmem_store_wait": _tmem_wait,
}
