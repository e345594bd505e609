"""Which values may be minus infinity or zero because nothing valid was there (a masked row, an empty range).

A small may-analysis over one bound program, seeds in the text only: the constant -inf (as fill, initial value or operand
of select) and sums that start at 0.0. Values that loads bring are taken to be finite. Guards `select(x == -inf, a, x)` and
`select(x == 0.0, a, f(x))` are recognised, also through a named mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from analyses.context import Context
from cake_ir.bound import Fragment, Let, Op, ScalarVar, SConst, SetScalar, SOp, SVar, VExpand, VFrag, VOp, VSplat

_KEEP = ("row_max", "row_sum", "row_min", "row_cumsum", "pick", "shift", "warp_part", "col_max", "col_sum")


def leaf(x: Any) -> Any:
    """The variable, fragment or constant under splats and expansions, or the node itself."""
    while isinstance(x, (VSplat, VExpand)):
        x = x.x
    return x


def place(x: Any) -> ScalarVar | Fragment | None:
    """The named value an expression is, or None."""
    x = leaf(x)
    return x.var if isinstance(x, SVar) else x.frag if isinstance(x, VFrag) else None


def constant(x: Any) -> float | None:
    """The number of a constant."""
    x = leaf(x)
    return float(x.value) if isinstance(x, SConst) and not isinstance(x.value, bool) else None


class MayBe:
    """Fixpoint of one property over named values. `rule(node, recur)` says whether an operation may have it."""

    def __init__(self, ctx: Context, seed: Callable[[float], bool], rule: Callable[[Any, MayBe], bool]) -> None:
        self.seed, self.rule = seed, rule
        self.named: set[ScalarVar | Fragment] = set()
        self.values: dict[ScalarVar | Fragment, list[Any]] = {}
        for s in ctx.statements:
            if isinstance(s, Let) and s.value is not None:
                self.values.setdefault(s.frag, []).append(s.value)
            elif isinstance(s, SetScalar):
                self.values.setdefault(s.var, []).append(s.value)
        ops = [o for o in ctx.ops if o.name in _KEEP or "fill" in o.operands]
        changed = True
        while changed:
            before = len(self.named)
            self.named |= {name for name, values in self.values.items() if any(self(v) for v in values)}
            for o in ops:
                if self("fill" in o.operands and o.operands["fill"]) or (o.name in _KEEP and self(o.operands.get("x"))):
                    self.named |= set(o.results)
            changed = len(self.named) > before

    def __call__(self, x: Any) -> bool:
        if x is None or x is False:
            return False
        x = leaf(x)
        if isinstance(x, SConst):
            value = constant(x)
            return value is not None and self.seed(value)
        name = place(x)
        if name is not None:
            return name in self.named
        return isinstance(x, (SOp, VOp)) and self.rule(x, self)

    def guarded(self, cond: Any, value: float) -> Any:
        """The named value that `cond` compares with `value`, or None."""
        cond = leaf(cond)
        name = place(cond)
        if name is not None and len(self.values.get(name, ())) == 1:
            cond = leaf(self.values[name][0])
        if isinstance(cond, (SOp, VOp)) and cond.op == "==":
            a, b = cond.args
            if constant(b) == value:
                return place(a)
            if constant(a) == value:
                return place(b)
        return None


def _minus_infinity(x: Any, may: MayBe) -> bool:
    a = x.args
    if x.op in ("max", "max3"):
        return all(may(v) for v in a)
    if x.op == "select":
        name = may.guarded(a[0], -math.inf)
        return may(a[1]) or (may(a[2]) and (name is None or place(a[2]) is not name))
    if x.op in ("+", "-", "*", "min", "min3", "fma", "fms", "fnma", "cast", "neg"):
        return any(may(v) for v in a)
    return False


def may_be_minus_infinity(ctx: Context) -> MayBe:
    """Values that are -inf when nothing valid was there."""
    return MayBe(ctx, lambda v: v == -math.inf, _minus_infinity)


def may_be_zero_sum(ctx: Context, infinite: MayBe) -> MayBe:
    """Sums that stay 0.0 when nothing valid was there."""

    def rule(x: Any, may: MayBe) -> bool:
        a = x.args
        if x.op == "exp2":
            return infinite(a[0])
        if x.op == "+":
            return all(may(v) for v in a)
        if x.op == "*":
            return any(may(v) for v in a)
        if x.op == "fma":
            return (may(a[0]) or may(a[1])) and may(a[2])
        if x.op == "select":
            name = may.guarded(a[0], 0.0)
            return may(a[1]) or (may(a[2]) and (name is None or place(a[2]) is not name))
        return x.op in ("max", "cast") and all(may(v) for v in a)

    return MayBe(ctx, lambda v: v == 0.0, rule)


def expressions(ctx: Context) -> Iterator[tuple[Any, Any, tuple[Any, ...]]]:
    """(statement, operation, enclosing operations outermost first) of every elementwise operation in the program."""

    def visit(stmt: Any, x: Any, above: tuple[Any, ...]) -> Iterator[tuple[Any, Any, tuple[Any, ...]]]:
        x = leaf(x)
        if isinstance(x, (SOp, VOp)):
            yield stmt, x, above
            for a in x.args:
                yield from visit(stmt, a, (*above, x))

    for s in ctx.statements:
        if isinstance(s, (Let, SetScalar)):
            yield from visit(s, s.value, ())
        elif isinstance(s, Op):
            for v in s.operands.values():
                yield from visit(s, v, ())
