"""Uniform scalar expressions as closures."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from cake_ir.bound import SX, SConst, SVar
from cake_ir.operations import ARITH, FAST

__all__ = ["ARITH", "compile_sx"]


def compile_sx(x: SX) -> Callable[[list[Any]], Any]:
    """A closure over an environment list (indexed by `ScalarVar.slot`). f32 arithmetic is not rounded here: the value
    reading owns numerics; the skeleton uses scalars for control only."""
    if isinstance(x, SConst):
        value = x.value
        return lambda env: value
    if isinstance(x, SVar):
        return itemgetter(x.var.slot)
    if len(x.args) == 2 and (short := _short(x.op, *x.args)) is not None:
        return short
    args = [compile_sx(a) for a in x.args]
    if x.op in ("and", "or"):
        return _connected(x.op == "or", args)
    if x.op == "select":
        c, a, b = args
        return lambda env: a(env) if c(env) else b(env)
    f = ARITH[x.op]
    if len(args) == 1:
        a0 = args[0]
        return lambda env: f(a0(env))
    if len(args) == 2:
        a0, a1 = args
        return lambda env: f(a0(env), a1(env))
    a0, a1, a2 = args
    return lambda env: f(a0(env), a1(env), a2(env))


def _connected(by: bool, args: list[Callable[[list[Any]], Any]]) -> Callable[[list[Any]], bool]:
    """`and` (by False) or `or` (by True): the first operand that is `by` decides."""

    def connected(env: list[Any]) -> bool:
        for a in args:
            if bool(a(env)) is by:
                return by
        return not by

    return connected


def _short(op: str, a: SX, b: SX) -> Callable[[list[Any]], Any] | None:
    """The common binary operations in one call instead of three: most time of a run is spent in index arithmetic."""
    f = FAST.get(op)
    if f is None:
        return None
    if isinstance(b, SConst):
        k = b.value
        if op == "+":
            if isinstance(a, SVar):
                slot = a.var.slot
                return lambda env: env[slot] + k
            a0 = compile_sx(a)
            return lambda env: a0(env) + k
        if op == "*":
            if isinstance(a, SVar):
                slot = a.var.slot
                return lambda env: env[slot] * k
            a0 = compile_sx(a)
            return lambda env: a0(env) * k
        a0 = compile_sx(a)
        return lambda env: f(a0(env), k)
    a0, a1 = compile_sx(a), compile_sx(b)
    if op == "+":
        return lambda env: a0(env) + a1(env)
    if op == "*":
        return lambda env: a0(env) * a1(env)
    return lambda env: f(a0(env), a1(env))
