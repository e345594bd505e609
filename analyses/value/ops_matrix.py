"""Value semantics of the matrix products: mma, wgmma, tcgen05_mma."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from analyses.value.access import unfenced_hint, view_at, where_is
from analyses.value.barriers import WaitUntil
from analyses.value.exprs import scalar
from analyses.value.formats import Mask, accumulate, cast, join, k_step, product_mask, some
from analyses.value.machine import Agent, AsyncOp, Cta
from analyses.value.ops_sync import receivers, target
from cake_ir.bound import BarUse, Op, SConst, VFrag, View

Compiled = tuple[bool, Callable[[Agent], Any]]
Product = tuple[np.ndarray, Mask]


def multiply(old: Product | None, a: Product, b: Product, step: int) -> Product:
    """old + a @ b.T with masks; old None overwrites."""
    shape = (a[0].shape[0], b[0].shape[0])
    data = accumulate(None if old is None else old[0], a[0], b[0], step)
    return data, some(product_mask(None if old is None else old[1], a[1], b[1], shape))


def _init(op: Op) -> Callable[[Agent], bool]:
    x = op.operands.get("init")
    if x is None:
        return lambda ag: False
    if isinstance(x, SConst):
        value = bool(x.value)
        return lambda ag: value
    f = scalar(x)
    return lambda ag: bool(f(ag.env))


def _part(acc: VFrag) -> tuple[slice, slice, bool]:
    t, whole = acc.type, acc.frag.type
    return (
        slice(acc.row0, acc.row0 + t.rows),
        slice(acc.col0, acc.col0 + t.cols),
        (acc.row0, acc.col0, t.rows, t.cols) == (0, 0, whole.rows, whole.cols),
    )


def _get(st: Any, r: slice, c: slice, whole: bool) -> Product:
    if whole:
        return st.data, st.undef
    return st.data[r, c], None if st.undef is None else st.undef[r, c]


def _put(st: Any, r: slice, c: slice, whole: bool, value: Product, dtype: Any) -> None:
    data, undef = cast(value[0], dtype), value[1]
    if whole:
        st.data, st.undef = data, undef
        return
    st.data = st.data.copy()
    st.data[r, c] = data
    mask = np.zeros(st.data.shape, bool) if st.undef is None else st.undef.copy()
    mask[r, c] = False if undef is None else undef
    st.undef = some(mask)


def _mma(c: Any, op: Op) -> Compiled:
    acc: VFrag = op.operands["acc"]
    r, k, whole = _part(acc)
    slot, dtype = c.slots[acc.frag], acc.type.dtype
    a, b = c.vx(op.operands["a"]), c.vx(op.operands["b"])
    step = k_step(op.operands["a"].type.dtype)

    def run(ag: Agent) -> None:
        st = ag.frags[slot]
        if st.pending or st.reading:
            ag.write_frag(slot, acc.frag, st.data, st.undef)  # raises the pending-register fault
        _put(st, r, k, whole, multiply(_get(st, r, k, whole), a(ag), b(ag), step), dtype)

    return False, run


def _async_read(ag: Agent, stmt: Any, memory: Any, view: View, idx: np.ndarray, what: str) -> Product:
    """An operand through the async proxy, at the time the engine moves."""
    data, undef, unfenced = memory.read_async(view.buffer.dtype, idx)
    if undef is not None:
        now, ag.at = ag.at, stmt
        if unfenced:
            unfenced_hint(ag, view, what)
        else:
            ag.hint(f"{what} reads bytes of {where_is(view)} that are not there yet")
        ag.at = now
    return data, undef


def _wgmma(c: Any, op: Op) -> Compiled:
    acc: VFrag = op.operands["acc"]
    r, k, whole = _part(acc)
    slot, dtype = c.slots[acc.frag], acc.type.dtype
    a, b = op.operands["a"], op.operands["b"]
    init = _init(op)
    b_at = view_at(c, b)
    step = k_step(b.buffer.dtype)
    a_at = view_at(c, a) if isinstance(a, View) else None
    a_reg = None if isinstance(a, View) else c.vx(a)
    a_slot = c.slots[a.frag] if isinstance(a, VFrag) else None

    def issue(ag: Agent) -> None:
        st = ag.frags[slot]
        if st.reading:
            raise ag.fault(
                "pending-register", f"{acc.frag.name} is accumulated into while an asynchronous op still reads it"
            )
        overwrite, stmt = init(ag), ag.at
        _, b_mem, b_idx = b_at(ag)
        b_loose = ag.unsynced(b_mem, b.buffer.dtype, b_idx, -1, "wgmma")
        reg = a_loose = None
        a_mem = a_idx = None
        if a_at is not None:
            assert isinstance(a, View)
            _, a_mem, a_idx = a_at(ag)
            a_loose = ag.unsynced(a_mem, a.buffer.dtype, a_idx, -1, "wgmma")
        else:
            assert a_reg is not None
            reg = a_reg(ag)
        held = ag.frags[a_slot] if a_slot is not None else None
        if held is not None:
            held.reading += 1
        st.pending += 1

        def compute() -> None:
            left = reg
            if left is None:
                assert isinstance(a, View)
                assert a_idx is not None
                data, undef = _async_read(ag, stmt, a_mem, a, a_idx, "wgmma")
                left = data, join(undef, a_loose)
            data, undef = _async_read(ag, stmt, b_mem, b, b_idx, "wgmma")
            right = data, join(undef, b_loose)
            old = None if overwrite else _get(st, r, k, whole)
            _put(st, r, k, whole, multiply(old, left, right, step), dtype)

        o = AsyncOp("wgmma", (compute,), ag, op.span, "wgmma")

        def retire() -> None:
            st.pending -= 1
            if held is not None:
                held.reading -= 1

        o.retire = retire
        ag.open_wgmma.append(ag.machine.issue(o, ("wgmma", ag)))

    return False, issue


def _wgmma_commit(c: Any, op: Op) -> Compiled:
    def commit(ag: Agent) -> None:
        ag.wgmma.append(ag.open_wgmma)
        ag.open_wgmma = []

    return False, commit


def _wgmma_wait(c: Any, op: Op) -> Compiled:
    k = int(op.attrs.get("k", 0))

    def wait(ag: Agent) -> Iterator[Any]:
        groups = ag.wgmma[:-k] if k else ag.wgmma
        ops = [o for g in groups for o in g]
        if not all(o.finished for o in ops):
            yield WaitUntil(lambda: all(o.finished for o in ops), "its wgmma groups")
        for o in ops:
            assert o.retire is not None
            o.retire()
        ag.wgmma = ag.wgmma[len(groups) :]

    return True, wait


# ---- tcgen05 ---------------------------------------------------------------------------------------------------------


def _pair(ag: Agent, group: int) -> list[Cta]:
    """The CTAs of the issuing leader's pair (even rank first), or the own CTA."""
    if group == 1:
        return [ag.cta]
    base = ag.cta.rank // 2 * 2
    if base + 1 >= len(ag.cta.peers):
        raise ag.fault("bounds", "cta_group=2 needs a cluster of CTA pairs")
    if ag.cta.rank != base:
        raise ag.fault("bounds", f"cta_group=2 is issued by the pair's leader (even rank), not by rank {ag.cta.rank}")
    return ag.cta.peers[base : base + 2]


def _tcgen05_mma(c: Any, op: Op) -> Compiled:
    acc, a, b = op.operands["acc"], op.operands["a"], op.operands["b"]
    acc_at, a_at, b_at = view_at(c, acc), view_at(c, a), view_at(c, b)
    init, group = _init(op), int(op.attrs.get("cta_group", 1) or 1)
    step = k_step(b.buffer.dtype)

    def issue(ag: Agent) -> None:
        pair = _pair(ag, group)
        overwrite, stmt = init(ag), ag.at
        acc_idx, a_idx, b_idx = acc_at(ag)[2], a_at(ag)[2], b_at(ag)[2]

        def compute() -> None:
            left = [_async_read(ag, stmt, cta.memory(a.buffer), a, a_idx, "tcgen05_mma") for cta in pair]
            right = [_async_read(ag, stmt, cta.memory(b.buffer), b, b_idx, "tcgen05_mma") for cta in pair]
            masks = [u for _, u in right]
            undef = None
            if any(u is not None for u in masks):
                undef = np.concatenate([np.zeros(d.shape, bool) if u is None else u for d, u in right])
            both = (np.concatenate([d for d, _ in right]), undef) if len(right) > 1 else right[0]
            for cta, rows in zip(pair, left, strict=True):
                memory = cta.memory(acc.buffer)
                old = None if overwrite else memory.read(acc.buffer.dtype, acc_idx)
                data, mask = multiply(old, rows, both, step)
                memory.write(acc.buffer.dtype, acc_idx, cast(data, acc.buffer.dtype), mask)

        ag.machine.issue(AsyncOp("tcgen05", (compute,), ag, op.span, op.name), ("tcgen05", ag))

    return False, issue


def _tcgen05_commit(c: Any, op: Op) -> Compiled:
    bar: BarUse = op.operands["bar"]
    use, barrier = scalar(bar.use), bar.barrier
    who = receivers(op.operands.get("multicast"), target(bar))

    def commit(ag: Agent) -> None:
        n, told = use(ag.env), who(ag)

        def arrive() -> None:
            for cta in told:
                cta.rings[barrier].arrive(n, 1, op.span, f"tcgen05_commit of {ag.name}")

        ag.machine.issue(AsyncOp("tcgen05", (arrive,), ag, op.span, op.name), ("tcgen05", ag))

    return False, commit


HANDLERS = {
    "mma": _mma,
    "wgmma": _wgmma,
    "wgmma_commit": _wgmma_commit,
    "wgmma_wait": _wgmma_wait,
    "tcgen05_mma": _tcgen05_mma,
    "tcgen05_commit": _tcgen05_commit,
}
