"""Uniform and per-thread scalars: what is known about them, and their C text.

All index arithmetic of the emitted kernel, addresses inside shared memory and descriptors included, is built as `SX`
first and printed here, so that tests can evaluate what was printed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable

from cake_ir.binding.scalars import const, sop
from cake_ir.bound import SX, ScalarVar, SConst, SOp, SVar
from cake_ir.facts import Facts
from lowering.helpers import Helpers

__all__ = ["Facts", "Printer", "add", "const", "div", "f32_text", "mod", "mul", "sop", "split_sum", "var"]

INT_MAX = (1 << 31) - 1


def add(*terms: SX | int) -> SX:
    """A sum with constants folded into one trailing term."""
    total, rest = 0, []
    for term in terms:
        x = const(term) if isinstance(term, int) else term
        base, offset = split_sum(x)
        total += offset
        if base is not None:
            rest.append(base)
    if not rest:
        return const(total)
    out = rest[0]
    for term in rest[1:]:
        out = SOp("+", (out, term), "i32")
    return SOp("+", (out, const(total)), "i32") if total else out


def split_sum(x: SX) -> tuple[SX | None, int]:
    """x as (non-constant part, constant)."""
    if isinstance(x, SConst):
        return None, int(x.value)
    if isinstance(x, SOp) and x.dtype == "i32":
        if x.op == "+" and isinstance(x.args[1], SConst):
            base, offset = split_sum(x.args[0])
            return base, offset + int(x.args[1].value)
        if x.op == "-" and isinstance(x.args[1], SConst):
            base, offset = split_sum(x.args[0])
            return base, offset - int(x.args[1].value)
    return x, 0


def mul(x: SX, k: int) -> SX:
    """x * k, distributed over a constant offset."""
    if k == 0:
        return const(0)
    base, offset = split_sum(x)
    if base is None:
        return const(offset * k)
    if k == 1:
        return x
    scaled = SOp("*", (base, const(k)), "i32")
    return SOp("+", (scaled, const(offset * k)), "i32") if offset else scaled


def div(x: SX, k: int) -> SX:
    """floor(x / k)."""
    return sop("//", x, const(k))


def mod(x: SX, k: int) -> SX:
    """x mod k, in 0..k-1."""
    return sop("%", x, const(k))


def var(name: str, slot: int, kind: str = "thread") -> SVar:
    """A per-thread quantity of the emitted code (lane, warp in unit ...)."""
    return SVar(ScalarVar(name, kind, "i32", slot))


def f32_text(value: float) -> str:
    """A float literal that names exactly the rounded value."""
    if math.isinf(value):
        return "__int_as_float(0x7f800000)" if value > 0 else "__int_as_float(static_cast<int>(0xff800000u))"
    if math.isnan(value):
        return "__int_as_float(0x7fffffff)"
    try:
        rounded = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return f32_text(math.copysign(math.inf, value))
    return f"{rounded!r}f"


class Printer:
    """C text of scalar expressions."""

    def __init__(self, facts: Facts, helpers: Helpers, name: Callable[[ScalarVar], str]) -> None:
        self.facts = facts
        self._helpers = helpers
        self._name = name

    def __call__(self, x: SX) -> str:
        """The expression, safe to use as an operand."""
        text = self.top(x)
        simple = text.replace("_", "").replace(".", "").isalnum() or (text.endswith(")") and _is_call(text))
        return text if simple else f"({text})"

    def top(self, x: SX) -> str:
        """The expression, without outer parentheses."""
        if isinstance(x, SConst):
            if x.dtype == "bool" or isinstance(x.value, bool):
                return "true" if x.value else "false"
            if x.dtype == "f32" or isinstance(x.value, float):
                return f32_text(float(x.value))
            return str(x.value) if abs(int(x.value)) <= INT_MAX else f"{x.value}ll"
        if isinstance(x, SVar):
            return self._name(x.var)
        if x.dtype == "f32" or any(a.dtype == "f32" for a in x.args):
            return self._float(x)
        return self._int(x)

    def _fold(self, op: str, args: Iterable[SX]) -> str:
        return f" {op} ".join(self(a) for a in args)

    def _int(self, x: SOp) -> str:
        op, args = x.op, x.args
        if op in ("//", "%"):
            return self._floor(op, args[0], args[1])
        if op == "ceil_div":
            a, b = args
            if self.facts.nonnegative(a) and isinstance(b, SConst):
                return self._floor("//", add(a, int(b.value) - 1), b)
            if self.facts.nonnegative(a) and self.facts.nonnegative(b):
                return f"({self(a)} + {self(b)} - 1) / {self(b)}"
            return f"-{self._helpers.use('floor_div')}(-{self(a)}, {self(b)})"
        if op in ("and", "or"):
            return self._fold("&&" if op == "and" else "||", args)
        if op == "not":
            return f"!{self(args[0])}"
        if op in ("neg", "~"):
            return f"{'-' if op == 'neg' else '~'}{self(args[0])}"
        if op in ("min", "max"):
            return f"{op}({', '.join(self.top(a) for a in args)})"
        if op == "select":
            return f"{self(args[0])} ? {self(args[1])} : {self(args[2])}"
        if op == "abs":
            return f"abs({self.top(args[0])})"
        if op == "lsb":
            return f"__ffs({self.top(args[0])}) - 1"
        if op == "cast":
            return self._cast(x)
        if op == "+" and isinstance(args[1], SConst) and args[1].value < 0:
            return f"{self(args[0])} - {-args[1].value}"
        return self._fold(op, args)

    def _floor(self, op: str, a: SX, b: SX) -> str:
        """`//` and `%` round down, as the language has them; C rounds to zero, so signs decide the form."""
        if isinstance(b, SConst) and b.value > 0:
            k = int(b.value)
            if k & (k - 1) == 0:
                return f"{self(a)} >> {k.bit_length() - 1}" if op == "//" else f"{self(a)} & {k - 1}"
        if self.facts.nonnegative(a) and self.facts.nonnegative(b):
            return f"{self._helpers.use('udiv' if op == '//' else 'umod')}({self.top(a)}, {self.top(b)})"
        return f"{self._helpers.use('floor_div' if op == '//' else 'floor_mod')}({self.top(a)}, {self.top(b)})"

    def _float(self, x: SOp) -> str:
        op, args = x.op, x.args
        if op == "cast":
            return self._cast(x)
        if op == "*":
            return f"__fmul_rn({self.top(args[0])}, {self.top(args[1])})"
        if op == "fma":
            return f"__fmaf_rn({', '.join(self.top(a) for a in args)})"
        if op in ("min", "max"):
            return f"f{op}f({', '.join(self.top(a) for a in args)})"
        if op in ("exp2", "rcp", "rsqrt", "log2", "sqrt", "tanh"):
            return f"{self._helpers.use(op)}({self.top(args[0])})"
        if op == "abs":
            return f"fabsf({self.top(args[0])})"
        if op == "neg":
            return f"-{self(args[0])}"
        if op == "/":
            return f"__fdiv_rn({self.top(args[0])}, {self.top(args[1])})"
        if op == "select":
            return f"{self(args[0])} ? {self(args[1])} : {self(args[2])}"
        return self._fold(op, args)

    def _cast(self, x: SOp) -> str:
        source, target = x.args[0].dtype, x.dtype
        text = self.top(x.args[0])
        if source == target:
            return text
        if target == "f32":
            if source in ("bf16", "f16"):
                return f"{self._helpers.use(source + '_bits')}({text})"
            return f"__int2float_rn({text})" if source in ("i32", "bool") else f"static_cast<float>({text})"
        if target == "i32" and source == "f32":
            return f"__float2int_rz({text})"
        return (
            f"static_cast<int>({text})"
            if target == "i32"
            else f"static_cast<bool>({text})"
            if target == "bool"
            else text
        )


def _is_call(text: str) -> bool:
    """Whether the whole text is one call, so that it needs no parentheses."""
    head = text.split("(", 1)[0]
    if not head or not head.replace("_", "").replace(":", "").replace("<", "").replace(">", "").isalnum():
        return False
    depth = 0
    for i, ch in enumerate(text):
        depth += ch == "("
        depth -= ch == ")"
        if depth == 0 and ch == ")":
            return i == len(text) - 1
    return False


def sx_text(x: SX) -> str:
    """An expression in the language's notation."""
    if isinstance(x, SConst):
        return str(x.value)
    if isinstance(x, SVar):
        return x.var.name
    args = [sx_text(a) for a in x.args]
    if x.op in ("min", "max", "ceil_div", "select", "lsb", "cast", "abs", "fma") or (
        x.op.isalpha() and x.op not in ("and", "or", "not", "neg")
    ):
        return f"{x.op}({', '.join(args)})"
    if len(args) == 1:
        return f"({'-' if x.op == 'neg' else x.op + ' '}{args[0]})"
    return "(" + f" {x.op} ".join(args) + ")"
