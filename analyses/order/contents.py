"""Whether undefined contents matter: padding that no output shows is no fault.

The order reading sees that memory is read which nothing has written, or only stores under a mask. Which elements are
undefined, and where they go, is a question about values; the value reading tracks it element by element, so it is asked, at
the very shape, under up to three choices of data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analyses.order import findings as rule
from cake_ir.arithmetic import compile_sx
from cake_ir.bound import BoundKernel, Op, Region, ScalarVar, walk
from cake_ir.skeleton import compile_skeleton
from cake_ir.witness import Witness

if TYPE_CHECKING:
    from analyses.order.log import Log

CTAS = 24
ELEMENTS = 1 << 20
"""Launches with more are not run; their findings stand."""


def settle(bound: BoundKernel, w: Witness, log: Log) -> None:
    """Drops findings about undefined memory that no output shows at the shape where they were met, and keeps reads of what
    only masked stores have written where an output shows them."""
    holes = dict(log.found["holes"])
    log.found["holes"].clear()
    blank = [k for k, d in log.found["data"].items() if d.rule == rule.UNINIT_MEMORY]
    others = len(log.found["data"]) > len(blank) or bool(log.found["dead"])
    if others or not (blank or holes):
        return
    shown = _shown(bound, w)
    if shown is False:
        for k in blank:
            del log.found["data"][k]
            log.more.pop(k, None)
    elif shown and not blank:
        log.found["data"].update(holes)


def _shown(bound: BoundKernel, w: Witness) -> bool | None:
    """True: an undefined value reaches memory, an address, a mask or a branch; False: none does; None: not run to the end."""
    from analyses.value import ValueFault, interpret

    if w.cta_count > CTAS:
        return None
    scalars: dict[str, Any] = {a.name: 1 for a in bound.args} | dict(w.dims)
    steering = _steering(bound)
    whole = {t.name for t in bound.tensors}
    ended = False
    for filled in (whole, steering, set[str]()):
        tensors = _tensors(bound, w, filled)
        if tensors is None:
            return None
        try:
            interpret(bound, tensors, scalars, sms=w.sms)
            ended = (
                ended or steering <= filled
            )  # without the data that steer it, a run may skip the very reads in question
        except ValueFault as fault:
            if fault.kind == "poison":
                return True
            if fault.kind not in ("assume", "where"):
                return None
    return False if ended else None


def _steering(bound: BoundKernel) -> set[str]:
    """Integer tensors whose elements become scalars: lengths, offsets, conditions."""
    return {
        s.operands["src"].tensor.name
        for s in walk(bound.body)
        if isinstance(s, Op)
        and isinstance(s.operands.get("src"), Region)
        and any(isinstance(r, ScalarVar) for r in s.results)
    }


def _tensors(bound: BoundKernel, w: Witness, filled: set[str]) -> dict[str, Any] | None:
    """Inputs of a launch: floats that differ, integers as the witness chose them (in the tensors of `filled`) or zero."""
    import numpy as np

    from analyses.value.formats import np_dtype

    skeleton = compile_skeleton(bound)
    env = skeleton.environment(w.shape, {}, w.sms)
    rng = np.random.default_rng(7)
    found: dict[str, Any] = {}
    for number, t in enumerate(bound.tensors):
        shape = tuple(int(x(env)) for x in map(compile_sx, t.extents))
        if int(np.prod(shape)) > ELEMENTS:
            return None
        dtype = np.dtype(np_dtype(t.dtype))
        if dtype.kind in "iub":
            last = (
                [w.oracle.value(i, shape[-1], number) if t.name in filled else 0 for i in range(shape[-1])]
                if shape
                else []
            )
            found[t.name] = np.broadcast_to(np.asarray(last, dtype), shape).copy()
        else:
            found[t.name] = rng.standard_normal(shape).astype(dtype)
    return found
