"""Building scalar expressions: folding, divisibility and intervals.

The builder folds what is static, so every downstream reading sees constants. `divisor` and `interval` prove alignment and
bounds of view starts from the text alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cake_ir.arithmetic import ARITH
from cake_ir.bound import SX, ScalarVar, SConst, SOp, SVar, bounded_product

ZERO = SConst(0)
STATIC_MAX = 2**63 - 1


class StaticRange(Exception):
    """A static integer that leaves 64 bits; the statement that computes it is at fault."""


_COMPARE = {"<", "<=", ">", ">=", "==", "!="}


def const(value: int | float | bool) -> SConst:
    """A constant with its natural dtype."""
    return SConst(value, "bool" if isinstance(value, bool) else "f32" if isinstance(value, float) else "i32")


def sop(op: str, *args: SX, dtype: str | None = None) -> SX:
    """An operation with constant folding. f32 constants fold in f64 and are rounded once where they are used."""
    if dtype is None:
        dtype = "bool" if op in _COMPARE or op in ("and", "or", "not") else args[-1].dtype
    if all(isinstance(a, SConst) for a in args):
        values = [a.value for a in args]  # type: ignore[union-attr]
        if op == "and":
            return SConst(all(values), "bool")
        if op == "or":
            return SConst(any(values), "bool")
        if op == "select":
            return SConst(values[1] if values[0] else values[2], dtype)
        if op == "cast":
            return SConst(
                float(values[0]) if dtype == "f32" else int(values[0]) if dtype == "i32" else values[0], dtype
            )
        if not (op in ("//", "%", "/", "ceil_div") and values[1] == 0) and op in ARITH:
            return SConst(_fold(op, values), dtype)
    if op == "select" and isinstance(args[0], SConst):
        return args[1] if args[0].value else args[2]
    if op in ("and", "or"):
        neutral = op == "and"
        kept = [a for a in args if not (isinstance(a, SConst) and bool(a.value) is neutral)]
        if any(isinstance(a, SConst) for a in kept):
            return SConst(not neutral, "bool")
        if not kept:
            return SConst(neutral, "bool")
        return kept[0] if len(kept) == 1 else SOp(op, tuple(kept), "bool")
    if dtype == "i32" and len(args) == 2:
        a, b = args
        left = a.value if isinstance(a, SConst) else None
        right = b.value if isinstance(b, SConst) else None
        if (op in ("+", "-") and right == 0) or (op in ("*", "//") and right == 1):
            return a
        if (op == "+" and left == 0) or (op == "*" and left == 1):
            return b
        if op == "*" and (left == 0 or right == 0):
            return ZERO
        if op == "%" and right == 1:
            return ZERO
        # keep constants together: (x + 3) - 4 -> x + -1
        if (
            op in ("+", "-")
            and right is not None
            and isinstance(a, SOp)
            and a.op == "+"
            and isinstance(a.args[1], SConst)
        ):
            total = a.args[1].value + (right if op == "+" else -right)
            return a.args[0] if total == 0 else SOp("+", (a.args[0], SConst(total)), "i32")
        if op == "-" and right is not None:
            return SOp("+", (a, SConst(-right)), "i32")
        if op == "+" and left is not None:
            return SOp("+", (b, a), "i32")
    return SOp(op, tuple(args), dtype)


def _fold(op: str, values: list[int | float | bool]) -> int | float | bool:
    """One folded operation. Operands fit 64 bits, so only a shift could be expensive; results must fit too."""
    if op in ("<<", ">>") and not 0 <= values[1] < 64:
        raise StaticRange(f"a shift by {values[1]}; shifts are 0 .. 63")
    result = ARITH[op](*values)
    if isinstance(result, int) and abs(result) > STATIC_MAX:
        raise StaticRange("a static integer outside 64 bits")
    return result


def divisor(x: SX, defs: Mapping[ScalarVar, SX], depth: int = 0) -> int:
    """A number that divides x for sure (0 means x is zero: every number divides it)."""
    if isinstance(x, SConst):
        return abs(int(x.value)) if not isinstance(x.value, float) else 1
    if isinstance(x, SVar):
        return divisor(defs[x.var], defs, depth + 1) if x.var in defs and depth < 12 else 1
    args = [divisor(a, defs, depth) for a in x.args]
    if x.op in ("+", "-"):
        return math.gcd(args[0], args[1])
    if x.op == "*":
        return bounded_product(*args)
    if x.op == "neg":
        return args[0]
    if x.op in ("min", "max"):
        return math.gcd(args[0], args[1])
    if x.op == "select":
        return math.gcd(args[1], args[2])
    if x.op == "%" and isinstance(x.args[1], SConst):
        return math.gcd(args[0], args[1])
    return 1


Interval = tuple[float, float]
ALL: Interval = (-math.inf, math.inf)


def interval(x: SX, ranges: Mapping[ScalarVar, Interval], defs: Mapping[ScalarVar, SX], depth: int = 0) -> Interval:
    """Bounds of an index expression over all values of its variables."""
    if isinstance(x, SConst):
        return (x.value, x.value) if not isinstance(x.value, bool) else (0, 1)
    if isinstance(x, SVar):
        if x.var in ranges:
            return ranges[x.var]
        if x.var in defs and depth < 12:
            return interval(defs[x.var], ranges, defs, depth + 1)
        return (
            (1, math.inf)
            if x.var.kind == "dim"
            else (0, math.inf)
            if x.var.kind in ("cta", "loop", "instance")
            else ALL
        )
    a = [interval(y, ranges, defs, depth) for y in x.args]
    if x.op == "+":
        return a[0][0] + a[1][0], a[0][1] + a[1][1]
    if x.op == "-":
        return a[0][0] - a[1][1], a[0][1] - a[1][0]
    if x.op == "neg":
        return -a[0][1], -a[0][0]
    if x.op == "*":
        products = [0.0 if 0 in (p, q) else p * q for p in a[0] for q in a[1]]
        return min(products), max(products)
    if x.op == "//" and isinstance(x.args[1], SConst) and x.args[1].value > 0:
        k = x.args[1].value
        return tuple(v if math.isinf(v) else v // k for v in a[0])  # type: ignore[return-value]
    if x.op == "%" and isinstance(x.args[1], SConst) and x.args[1].value > 0:
        k = x.args[1].value
        return a[0] if a[0][0] >= 0 and a[0][1] < k else (0, k - 1)
    if x.op == "min":
        return min(a[0][0], a[1][0]), min(a[0][1], a[1][1])
    if x.op == "max":
        return max(a[0][0], a[1][0]), max(a[0][1], a[1][1])
    if x.op == "select":
        return min(a[1][0], a[2][0]), max(a[1][1], a[2][1])
    return ALL
