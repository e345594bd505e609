"""What a kernel's text proves about its scalars, and the alignment of rows that follows from it.

Rules and lowering ask the same functions, so that what a rule accepts is what the compiler can emit.
"""

from __future__ import annotations

import math

from cake_ir.bound import (
    SX,
    BoundKernel,
    For,
    Region,
    ScalarVar,
    SConst,
    SetScalar,
    SOp,
    SVar,
    View,
    bounded_product,
    walk,
)
from cake_ir.memo import memo

INT_MAX = (1 << 31) - 1
"""The largest value of an index expression: lowering computes them in `int`, element offsets in 64 bits."""
EXTENT_MAX = INT_MAX - (1 << 16)
"""The largest extent that a launch accepts: one more tile or one lane more still fits 32 bits."""
CP_ASYNC_BYTES = (16, 8, 4)
"""Widths of one cp.async, widest first (PTX ISA, 'cp.async')."""


def facts_of(bound: BoundKernel) -> Facts:
    """The facts of a kernel, computed once per bound object."""
    return memo(bound, "facts", lambda: Facts(bound))


class Facts:
    """What holds for every value a scalar variable takes: sign and divisibility, by a fixed point over its definitions."""

    def __init__(self, kernel: BoundKernel) -> None:
        self._given: dict[ScalarVar, int] = {}
        for where in kernel.where:
            self._learn(where.cond)
        self._defs: dict[ScalarVar, list[SX]] = {}
        steps: dict[ScalarVar, list[tuple[SX, SX]]] = {}
        for stmt in walk(kernel.body):
            if isinstance(stmt, SetScalar):
                self._defs.setdefault(stmt.var, []).append(stmt.value)
            elif isinstance(stmt, For):
                steps.setdefault(stmt.var, []).append((stmt.start, stmt.step))
        self._loops = steps
        changing = [*self._defs, *steps]
        self._divisors: dict[ScalarVar, int] = dict.fromkeys(changing, 0)
        self._signed: set[ScalarVar] = set()
        for _ in range(64):
            new = {v: self._var_divisor(v) for v in changing}
            signed = {v for v in changing if not self._var_nonnegative(v)}
            if new == self._divisors and signed == self._signed:
                break
            self._divisors, self._signed = new, signed
        else:
            self._divisors = dict.fromkeys(changing, 1)
            self._signed = set(changing)

    def _learn(self, cond: SX) -> None:
        if isinstance(cond, SOp) and cond.op == "and":
            for part in cond.args:
                self._learn(part)
        elif isinstance(cond, SOp) and cond.op == "==" and isinstance(cond.args[0], SOp) and cond.args[0].op == "%":
            x, k = cond.args[0].args
            if (
                isinstance(x, SVar)
                and isinstance(k, SConst)
                and isinstance(cond.args[1], SConst)
                and cond.args[1].value == 0
            ):
                known = self._given.get(x.var, 1)
                self._given[x.var] = math.lcm(known, int(k.value))

    def _var_divisor(self, v: ScalarVar) -> int:
        found = [self.divisor(x) for x in self._defs.get(v, [])]
        found += [math.gcd(self.divisor(start), self.divisor(step)) for start, step in self._loops.get(v, [])]
        return math.gcd(*found) if found else 1

    def _var_nonnegative(self, v: ScalarVar) -> bool:
        if v.dtype != "i32":
            return False
        return all(self.nonnegative(x) for x in self._defs.get(v, [])) and all(
            self.nonnegative(start) for start, _ in self._loops.get(v, [])
        )

    def divisor(self, x: SX) -> int:
        """A number that divides x for sure; 0 when x is zero."""
        if isinstance(x, SConst):
            return abs(int(x.value)) if not isinstance(x.value, float) else 1
        if isinstance(x, SVar):
            known = self._divisors.get(x.var, 1)
            return math.lcm(known, self._given.get(x.var, 1)) if known else 0
        args = [self.divisor(a) for a in x.args]
        if x.op in ("+", "-", "min", "max"):
            return math.gcd(*args)
        if x.op == "*":
            return bounded_product(*args)
        if x.op == "neg":
            return args[0]
        if x.op == "select":
            return math.gcd(args[1], args[2])
        if x.op == "%":
            return math.gcd(args[0], args[1])
        if x.op == "//" and isinstance(x.args[1], SConst) and args[1] and args[0] % args[1] == 0:
            return args[0] // args[1]
        if x.op == "<<" and isinstance(x.args[1], SConst):
            return args[0] << int(x.args[1].value)
        return 1

    def nonnegative(self, x: SX) -> bool:
        """Whether x >= 0 for sure."""
        if isinstance(x, SConst):
            return x.value >= 0
        if isinstance(x, SVar):
            if x.var.kind in (
                "dim",
                "cta",
                "cta_count",
                "cluster_rank",
                "cluster_id",
                "cluster_count",
                "sms",
                "instance",
                "thread",
            ):
                return True
            known = x.var in self._defs or x.var in self._loops
            return known and x.var not in self._signed
        if x.op in ("+", "*", "//", "&", "|", "max", "min", "ceil_div", ">>", "<<"):
            return all(self.nonnegative(a) for a in x.args)
        if x.op == "%":
            return self.nonnegative(x.args[1])
        if x.op == "select":
            return self.nonnegative(x.args[1]) and self.nonnegative(x.args[2])
        return x.op in ("lsb", "abs") or x.dtype == "bool"


# ---- alignment


def row_alignment(facts: Facts, region: Region) -> int:
    """Elements to which every row's first kept element is aligned (the base pointer is guarded to 16 bytes); 0: any."""
    tensor, last = region.tensor, len(region.dims) - 1
    found = 0
    for dim, d in enumerate(region.dims):
        if dim == last:
            found = math.gcd(found, facts.divisor(d.start))
        elif not (d.kind == "index" and isinstance(d.start, SConst) and d.start.value == 0):
            stride = tensor.strides[dim]
            factors = [stride] if stride is not None else tensor.extents[dim + 1 :]
            found = math.gcd(found, math.prod(facts.divisor(f) for f in factors))
    return found


def view_alignment(facts: Facts, view: View) -> int:
    """Bytes to which the first element of every row of a shared-memory view is aligned, at most the 16 of a stage."""
    b = view.buffer
    found = math.gcd(16, facts.divisor(view.col0) * b.dtype.bits // 8)
    several = not b.swizzle and (view.rows > 1 or not (isinstance(view.row0, SConst) and view.row0.value == 0))
    return math.gcd(found, b.pitch) if several else found


def cp_async_piece(facts: Facts, view: View, region: Region) -> tuple[int, int, int]:
    """(bytes of one cp.async; 0 when none fits, alignment of the global rows, alignment of the shared rows in bytes)."""
    size = view.buffer.dtype.bytes
    there, here = math.gcd(16, row_alignment(facts, region) * size), view_alignment(facts, view)
    whole = math.gcd(view.cols * size, there, here)
    return next((w for w in CP_ASYNC_BYTES if whole % w == 0), 0), there, here
