"""Value semantics of the cross-lane register ops. Sums follow the hardware order: in-thread left to right, then a
butterfly."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from analyses.value.access import scalar_result
from analyses.value.exprs import POISON, native, scalar, splat
from analyses.value.formats import Mask
from analyses.value.machine import Agent
from cake_ir.bound import Op, ScalarVar
from cake_ir.layouts import TileType, base_of, placement

Compiled = tuple[bool, Callable[[Agent], Any]]


@lru_cache(maxsize=512)
def order_of(tile: TileType, along: str) -> np.ndarray:
    """[steps, lanes] element numbers along rows ("row": columns) or columns ("col": rows); -1 where a thread holds
    nothing.

    Column `l` is what the l-th of the lanes that share a result adds, in register order; lanes are in lane order.
    """
    axis = 1 if along == "row" else 0
    size = tile.cols if along == "row" else tile.rows
    bases = sorted({base_of(tile.layout, tile.dtype, tile.axis, tile.threads, t)[axis] for t in range(tile.threads)})
    offs = sorted({o[axis] for o in placement(tile).offsets})
    grid = np.array(offs)[:, None] + np.array(bases)[None, :]
    return np.where(grid < size, grid, -1)


def ordered(x: np.ndarray, tile: TileType, along: str, f: Callable[..., np.ndarray], neutral: Any) -> np.ndarray:
    """Reduces `x` [rows, cols] along an axis in the hardware's order: [rows, 1] or [1, cols].

    The butterfly pairs lanes at distance 1, 2, 4, ... (shfl.bfly with rising masks).
    """
    lines = x if along == "row" else x.T
    order = order_of(tile, along)
    padded = lines
    if (order < 0).any():
        padded = np.concatenate([lines, np.full((lines.shape[0], 1), neutral, x.dtype)], axis=1)
    acc = padded[:, order[0]]
    for step in order[1:]:
        acc = f(acc, padded[:, step])
    while acc.shape[1] > 1:
        if acc.shape[1] % 2:
            acc = np.concatenate([acc, np.full((acc.shape[0], 1), neutral, x.dtype)], axis=1)
        acc = f(acc[:, 0::2], acc[:, 1::2])
    return acc if along == "row" else acc.T


def _result(c: Any, target: Any) -> Callable[[Agent, np.ndarray, Mask], None]:
    """Stores a reduction: a vector fragment, or a scalar of the environment."""
    if isinstance(target, ScalarVar):
        slot, name = target.slot, target.dtype

        def put(ag: Agent, data: np.ndarray, undef: Mask) -> None:
            bad = undef is not None and bool(undef.reshape(-1)[0])
            ag.env[slot] = POISON if bad else native(data.reshape(-1)[0], name)

        return put
    slot = c.slots[target]
    shape = (target.type.rows, target.type.cols)

    def assign(ag: Agent, data: np.ndarray, undef: Mask) -> None:
        ag.write_frag(slot, target, data.reshape(shape), None if undef is None else undef.reshape(shape))

    return assign


_REDUCE: dict[str, tuple[Callable[..., np.ndarray], float]] = {
    "sum": (np.add, 0.0),
    "max": (np.fmax, -np.inf),
    "min": (np.fmin, np.inf),
}


def _reduce(c: Any, op: Op) -> Compiled:
    along, how = op.name.split("_")
    tile: TileType = op.operands["x"].type
    value, put = c.vx(op.operands["x"]), _result(c, op.results[0])
    f, neutral = _REDUCE[how]
    axis = 1 if along == "row" else 0
    dtype = tile.dtype
    if dtype.kind in "iu" and how != "sum":
        info = np.iinfo(dtype.numpy)
        neutral = info.min if how == "max" else info.max

    def run(ag: Agent) -> None:
        data, undef = value(ag)
        mask = None if undef is None else undef.any(axis=axis, keepdims=True)
        if how == "sum":
            out = ordered(data, tile, along, f, data.dtype.type(neutral))
        else:
            out = f.reduce(data, axis=axis, keepdims=True)  # type: ignore[attr-defined]
        put(ag, out, mask)

    return False, run


def _vote(c: Any, op: Op) -> Compiled:
    value, put = c.vx(op.operands["x"]), _result(c, op.results[0])
    every = op.name == "row_all"

    def run(ag: Agent) -> None:
        data, undef = value(ag)
        out = data.all(axis=1, keepdims=True) if every else data.any(axis=1, keepdims=True)
        put(ag, out, None if undef is None else undef.any(axis=1, keepdims=True))

    return False, run


def _arg(c: Any, op: Op) -> Compiled:
    value, payload = c.vx(op.operands["x"]), c.vx(op.operands["payload"])
    put_value, put_payload = _result(c, op.results[0]), _result(c, op.results[1])
    low = op.name == "row_argmin"

    def run(ag: Agent) -> None:
        (x, xu), (p, pu) = value(ag), payload(ag)
        # NaN loses; ties go to the least payload; a row of NaN gives NaN and its first payload
        pick = np.fmin if low else np.fmax
        if x.dtype.kind in "iu":
            pick = np.minimum if low else np.maximum
        best = pick.reduce(x, axis=1, keepdims=True)
        top = np.iinfo(p.dtype).max if p.dtype.kind in "iu" else np.inf
        ties = np.where(x == best, p, p.dtype.type(top)).min(axis=1, keepdims=True)
        who = np.where(best == best, ties, p[:, :1])
        mask = None
        if xu is not None or pu is not None:
            either = np.zeros(x.shape, bool)
            for u in (xu, pu):
                if u is not None:
                    either = either | u
            mask = np.asarray(either.any(axis=1, keepdims=True))
        put_value(ag, best, mask)
        put_payload(ag, who, mask)

    return False, run


def running_sum(x: np.ndarray, tile: TileType, along: str) -> np.ndarray:
    """Inclusive sums along an axis as the device forms them: runs of neighbouring elements in-thread, then shfl.up at
    distances 1, 2, 4, ... over the lanes of the line, then the carry of the runs before."""
    lines = x if along == "row" else x.T
    order = order_of(tile, along)
    run = 1
    if along == "row":
        run = tile.layout.v if tile.layout.name == "vec" else 2 if tile.layout.name in ("mma_d", "wgmma_d") else 1
    out = np.zeros_like(lines)
    carry: np.ndarray | None = None
    for first in range(0, len(order), run):
        part = order[first : first + run]
        held = np.where(part >= 0, lines[:, part], lines.dtype.type(0))  # [lines, steps, lanes]
        sums = np.cumsum(held, axis=1, dtype=lines.dtype)
        lanes = part.shape[1]
        if lanes > 1:
            total = sums[:, -1].copy()
            distance = 1
            while distance < lanes:
                total[:, distance:] = total[:, distance:] + total[:, :-distance].copy()
                distance *= 2
            before = np.concatenate([np.zeros_like(total[:, :1]), total[:, :-1]], axis=1)
            sums = sums + before[:, None]
        if carry is not None:
            sums = sums + carry[:, None, None]
        carry = sums[:, -1, -1]
        inside = part >= 0
        out[:, part[inside]] = sums[:, inside]
    return out if along == "row" else out.T


def _cumsum(c: Any, op: Op) -> Compiled:
    value, put = c.vx(op.operands["x"]), _result(c, op.results[0])
    along, tile = op.name.split("_")[0], op.operands["x"].type
    axis = 0 if along == "col" else 1

    def run(ag: Agent) -> None:
        data, undef = value(ag)
        mask = None if undef is None else np.logical_or.accumulate(undef, axis=axis)
        put(ag, running_sum(data, tile, along), mask)

    return False, run


def _pick(c: Any, op: Op) -> Compiled:
    value, at, put = c.vx(op.operands["x"]), scalar(op.operands["i"]), _result(c, op.results[0])

    def run(ag: Agent) -> None:
        data, undef = value(ag)
        i = int(at(ag.env))
        if not 0 <= i < data.size:
            raise ag.fault("bounds", f"pick takes element {i} of a vector of {data.size}")
        put(ag, data.reshape(-1)[i : i + 1], None if undef is None else undef.reshape(-1)[i : i + 1])

    return False, run


def _shift(c: Any, op: Op) -> Compiled:
    value, fill, put = c.vx(op.operands["x"]), scalar(op.operands["fill"]), _result(c, op.results[0])
    dtype = op.operands["x"].type.dtype

    def run(ag: Agent) -> None:
        data, undef = value(ag)
        first, bad = splat(fill(ag.env), dtype)
        flat = data.reshape(1, -1)
        out = np.concatenate([first, flat[:, :-1]], axis=1)
        mask = None
        if undef is not None or bad is not None:
            head = np.zeros((1, 1), bool) if bad is None else bad
            rest = np.zeros(flat.shape, bool) if undef is None else undef.reshape(1, -1)
            mask = np.concatenate([head, rest[:, :-1]], axis=1)
        put(ag, out.reshape(data.shape), None if mask is None else mask.reshape(data.shape))

    return False, run


def _row_bits(c: Any, op: Op) -> Compiled:
    value, slot = c.vx(op.operands["x"]), scalar_result(op).slot

    def run(ag: Agent) -> None:
        data, undef = value(ag)
        if undef is not None and undef.any():
            ag.env[slot] = POISON
            return
        bits = sum(1 << r for r, b in enumerate(data.reshape(-1)) if b)
        ag.env[slot] = bits

    return False, run


def _same(c: Any, op: Op) -> Compiled:
    """operand_a, operand_b: the same matrix in another layout."""
    value, put = c.vx(op.operands["x"]), _result(c, op.results[0])
    return False, lambda ag: put(ag, *value(ag))


def _transpose(c: Any, op: Op) -> Compiled:
    value, put = c.vx(op.operands["x"]), _result(c, op.results[0])

    def run(ag: Agent) -> None:
        data, undef = value(ag)
        put(ag, np.ascontiguousarray(data.T), None if undef is None else np.ascontiguousarray(undef.T))

    return False, run


def _warp_part(c: Any, op: Op) -> Compiled:
    """Rows 64i + 16w .. + 16 of a warpgroup's tile or .rows vector; .cols vectors are the same in every warp."""
    value, put = c.vx(op.operands["x"]), _result(c, op.results[0])
    tile = op.operands["x"].type

    def run(ag: Agent) -> None:
        data, undef = value(ag)
        if tile.axis != "cols":
            assert ag.warp is not None
            rows = np.arange(tile.rows).reshape(-1, 4, 16)[:, ag.warp].reshape(-1)
            data, undef = data[rows], None if undef is None else undef[rows]
        put(ag, data, undef)

    return False, run


HANDLERS = {
    **{f"{a}_{h}": _reduce for a in ("row", "col") for h in ("sum", "max", "min")},
    "row_any": _vote,
    "row_all": _vote,
    "row_argmin": _arg,
    "row_argmax": _arg,
    "col_cumsum": _cumsum,
    "row_cumsum": _cumsum,
    "pick": _pick,
    "shift": _shift,
    "row_bits": _row_bits,
    "operand_a": _same,
    "operand_b": _same,
    "transpose": _transpose,
    "warp_part": _warp_part,
}
