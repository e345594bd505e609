"""What each operation of a uniform scalar expression computes. Imports next to nothing: the host path evaluates sizes with it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any


def _shifted(a: int, b: int) -> int:
    """`a << b`. Raises ValueError where b is negative or no kernel can mean it."""
    if b > 4096:
        raise ValueError("shift count")
    return a << b


FAST: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "<<": _shifted,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "/": operator.truediv,
}


ARITH: dict[str, Callable[..., Any]] = {
    **FAST,
    "min": min,
    "max": max,
    "ceil_div": lambda a, b: -(-a // b),
    "neg": operator.neg,
    "not": operator.not_,
    "~": operator.invert,
    "lsb": lambda a: (a & -a).bit_length() - 1,
    "abs": abs,
    "fma": lambda a, b, c: a * b + c,
    "cast": lambda a: a,
    "exp2": lambda a: 2.0**a if a > -1e4 else 0.0,
    "rcp": lambda a: 1.0 / a if a else math.inf,
    "rsqrt": lambda a: 1.0 / math.sqrt(a) if a > 0 else math.inf,
    "log2": lambda a: math.log2(a) if a > 0 else -math.inf,
    "sqrt": lambda a: math.sqrt(a),
    "tanh": math.tanh,
}
