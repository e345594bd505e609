"""Expressions as closures: uniform scalars (`scalar`) and elementwise tiles (`vector`).

f32 scalars are Python floats that hold float32 values: +, -, * and / of two f32 computed in float64 and rounded once are
correctly rounded, and so is fma (see `fused`). exp2 rcp rsqrt log2 sqrt are rounded from float64 with subnormals flushed,
tanh without: the device's `.approx` forms differ from that by a few ulp (tanh by 2^-11 relative).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from analyses.value.faults import PoisonUse
from analyses.value.formats import Mask, cast, join, np_dtype, round_scalar, some, to_f32
from cake_ir.bound import SX, VX, SConst, SVar, VCoord, VExpand, VFrag, VOp, VSplat
from cake_ir.dtypes import DTYPES

Value = tuple[np.ndarray, Mask]
Vector = Callable[[Any], Value]
Scalar = Callable[[list[Any]], Any]


class Poison:
    """An undefined scalar: arithmetic keeps it, a decision or an address raises `PoisonUse`."""

    def _same(self, *_: Any) -> Poison:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = (
        _same
    )
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = (
        _same
    )
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __invert__ = __truediv__ = __rtruediv__ = __abs__ = _same

    def __eq__(self, other: object) -> Any:
        return self

    def __ne__(self, other: object) -> Any:
        return self

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise PoisonUse

    __index__ = __int__ = __float__ = __bool__  # type: ignore[assignment]


POISON = Poison()


def _nanmin(a: Any, b: Any) -> Any:
    return b if a != a else a if b != b else min(a, b)


def _nanmax(a: Any, b: Any) -> Any:
    return b if a != a else a if b != b else max(a, b)


def _divide(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def _unary(name: str) -> Callable[[float], float]:
    return lambda a: float(_VECTOR[name](np.array([a], np.float32))[0])


def _fused(a: Any, b: Any, c: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and isinstance(c, int):
        return a * b + c
    return float(fused(*(np.array([v], np.float32) for v in (a, b, c)))[0])


_SCALAR: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divide,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "min": _nanmin,
    "max": _nanmax,
    "ceil_div": lambda a, b: -(-a // b),
    "neg": lambda a: -a,
    "not": lambda a: not a,
    "~": lambda a: ~a,
    "lsb": lambda a: (a & -a).bit_length() - 1,
    "abs": abs,
    "fma": _fused,
    "fnma": lambda a, b, c: _fused(-a, b, c),
    "fms": lambda a, b, c: _fused(a, b, -c),
    "exp2": _unary("exp2"),
    "rcp": _unary("rcp"),
    "rsqrt": _unary("rsqrt"),
    "log2": _unary("log2"),
    "sqrt": _unary("sqrt"),
    "tanh": _unary("tanh"),
}


def scalar(x: SX) -> Scalar:
    """A closure over the environment list (indexed by slot); f32 results are rounded to f32; Poison propagates."""
    if isinstance(x, SConst):
        value = round_scalar(x.value, "f32") if x.dtype == "f32" else x.value
        return lambda env: value
    if isinstance(x, SVar):
        slot = x.var.slot
        return lambda env: env[slot]
    args = [scalar(a) for a in x.args]
    name = x.dtype
    if x.op == "and":
        return lambda env: all(a(env) for a in args)
    if x.op == "or":
        return lambda env: any(a(env) for a in args)
    if x.op == "select":
        c, a, b = args
        return lambda env: a(env) if c(env) else b(env)
    if x.op == "cast":
        (a0,) = args
        return lambda env: _keep(a0(env), name)
    f = _SCALAR[x.op]
    if x.dtype == "f32":
        return _rounded(f, args)
    if len(args) == 1 or x.op in ("min", "max"):
        return _strict(f, args)
    if len(args) == 2:
        a0, a1 = args
        return lambda env: f(a0(env), a1(env))
    return lambda env: f(*(a(env) for a in args))


def _strict(f: Callable[..., Any], args: list[Scalar]) -> Scalar:
    def run(env: list[Any]) -> Any:
        vals = [a(env) for a in args]
        for v in vals:
            if v is POISON:
                return POISON
        return f(*vals)

    return run


def _keep(v: Any, name: str) -> Any:
    return POISON if v is POISON else round_scalar(v, name)


def _rounded(f: Callable[..., Any], args: list[Scalar]) -> Scalar:
    def run(env: list[Any]) -> Any:
        vals = [a(env) for a in args]
        for v in vals:
            if v is POISON:
                return POISON
        return round_scalar(f(*vals), "f32")

    return run


# ---- tiles -----------------------------------------------------------------------------------------------------------


def _approximate(f: Callable[[np.ndarray], np.ndarray], flush: bool = True) -> Callable[[np.ndarray], np.ndarray]:
    """A function rounded from float64; `flush`: subnormal arguments and results become zeros (`.ftz`)."""

    def run(x: np.ndarray) -> np.ndarray:
        y = f(flushed(x).astype(np.float64) if flush else x.astype(np.float64)).astype(np.float32)
        return flushed(y) if flush else y

    return run


_TINY = np.float32(2.0**-126)


def flushed(x: np.ndarray) -> np.ndarray:
    """Subnormal float32 values as zeros of their sign."""
    return np.where(np.abs(x) < _TINY, np.copysign(np.float32(0), x), x)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of float32 arrays, rounded once (fma.rn.f32).

    The product is exact in float64; the sum is rounded there to odd (its last bit set when it is inexact), which makes the
    second rounding to float32 correct (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums").
    """
    p, c64 = np.multiply(a, b, dtype=np.float64), c.astype(np.float64)
    s = np.atleast_1d(p + c64)
    back = s - p
    error = (p - (s - back)) + (c64 - back)
    bits = s.view(np.int64)
    inexact = ((error > 0) | (error < 0)) & ((bits & 1) == 0)
    if inexact.any():
        away = (error > 0) == (s > 0)
        s = np.where(inexact, np.where(away, bits + 1, bits - 1), bits).view(np.float64)
    return s.astype(np.float32)


def _fma(sign_product: int, sign_c: int) -> Callable[..., np.ndarray]:
    def run(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        if a.dtype.kind in "iu":
            p = a * b
            return (p if sign_product > 0 else -p) + (c if sign_c > 0 else -c)
        return fused(a if sign_product > 0 else -a, b, c if sign_c > 0 else -c)

    return run


_VECTOR: dict[str, Callable[..., np.ndarray]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "neg": np.negative,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
    "&": np.bitwise_and,
    "|": np.bitwise_or,
    "^": np.bitwise_xor,
    "~": np.invert,
    "not": np.logical_not,
    "and": np.logical_and,
    "or": np.logical_or,
    "<<": np.left_shift,
    ">>": np.right_shift,
    "min": np.fmin,
    "max": np.fmax,
    "min3": lambda a, b, c: np.fmin(np.fmin(a, b), c),
    "max3": lambda a, b, c: np.fmax(np.fmax(a, b), c),
    "abs": np.abs,
    "exp2": _approximate(np.exp2),
    "rcp": _approximate(lambda a: 1.0 / a),
    "rsqrt": _approximate(lambda a: 1.0 / np.sqrt(a)),
    "log2": _approximate(np.log2),
    "sqrt": _approximate(np.sqrt),
    "tanh": _approximate(np.tanh, flush=False),
    "fma": _fma(1, 1),
    "fnma": _fma(-1, 1),
    "fms": _fma(1, -1),
}


def splat(value: Any, dtype: Any) -> Value:
    """A uniform scalar as a [1, 1] array of `dtype`. An index outside the type's range raises OverflowError."""
    nd = np_dtype(dtype)
    if value is POISON:
        return np.zeros((1, 1), nd), np.ones((1, 1), bool)
    if nd.kind in "iu" and isinstance(value, float):
        value = round_scalar(value, dtype.name)
    if dtype.bits == 32 and dtype.name != "tf32":
        return np.array([[value]], nd), None
    if dtype.kind == "f":
        return cast(np.full((1, 1), value, np.float32), dtype), None
    return np.full((1, 1), value, nd), None


def vector(x: VX, slots: dict[Any, int]) -> Vector:
    """A closure over the agent. slots: fragment -> index into `agent.frags`. The result may be [1, 1] or a
    broadcastable vector where the expression is uniform; `fit` widens it."""
    if isinstance(x, VFrag):
        return _fragment(x, slots[x.frag])
    if isinstance(x, VSplat):
        f, dtype = scalar(x.x), x.type.dtype
        if isinstance(x.x, SConst):
            const = splat(f([]), dtype)
            return lambda ag: const
        return lambda ag: splat(f(ag.env), dtype)
    if isinstance(x, VExpand):
        return vector(x.x, slots)  # vectors are kept [n, 1] or [1, n]: numpy broadcasts them
    if isinstance(x, VCoord):
        n = x.type.rows if x.axis in ("row", "rows") else x.type.cols
        line = np.arange(n, dtype=np.int32)
        coord = line[:, None] if x.axis in ("row", "rows") else line[None, :]
        return lambda ag: (coord, None)
    return _operation(x, slots)


def _fragment(x: VFrag, slot: int) -> Vector:
    rows, cols = x.type.rows, x.type.cols
    r, c = slice(x.row0, x.row0 + rows), slice(x.col0, x.col0 + cols)
    if (x.row0, x.col0) == (0, 0) and (rows, cols) == (x.frag.type.rows, x.frag.type.cols):

        def whole(ag: Any) -> Value:
            st = ag.frags[slot]
            if st.pending:
                ag.fault_pending(x.frag, st)
            return st.data, st.undef

        return whole

    def part(ag: Any) -> Value:
        st = ag.frags[slot]
        if st.pending:
            ag.fault_pending(x.frag, st)
        return st.data[r, c], None if st.undef is None else some(st.undef[r, c])

    return part


def _operation(x: VOp, slots: dict[Any, int]) -> Vector:
    args = [vector(a, slots) for a in x.args]
    dtype = x.type.dtype
    if x.op == "select":
        m, a, b = args
        nd = np_dtype(dtype)

        def choose(ag: Any) -> Value:
            (c, cu), (p, pu), (q, qu) = m(ag), a(ag), b(ag)
            undef = cu
            if pu is not None or qu is not None:
                none = np.zeros((1, 1), bool)
                undef = join(cu, np.where(c, none if pu is None else pu, none if qu is None else qu))
            return np.where(c, p, q).astype(nd, copy=False), undef

        return choose
    if x.op == "cast":
        (a0,) = args
        src = x.args[0].type.dtype

        def convert(ag: Any) -> Value:
            d, u = a0(ag)
            return cast(to_f32(d) if src.kind == "f" else d, dtype) if src is not dtype else d, u

        return convert
    if x.op == "bitcast":
        (a0,) = args
        nd = np_dtype(dtype)

        def bits(ag: Any) -> Value:
            d, u = a0(ag)
            return np.ascontiguousarray(d).view(nd), u

        return bits
    f = _VECTOR[x.op]
    if len(args) == 1:
        (a0,) = args

        def one(ag: Any) -> Value:
            d, u = a0(ag)
            return f(d), u

        return one
    if len(args) == 2:
        a0, a1 = args

        def two(ag: Any) -> Value:
            (d, u), (e, v) = a0(ag), a1(ag)
            return f(d, e), (u if v is None else v if u is None else u | v)

        return two

    def many(ag: Any) -> Value:
        vals = [a(ag) for a in args]
        return f(*(d for d, _ in vals)), join(*(u for _, u in vals))

    return many


def fit(value: Value, shape: tuple[int, int]) -> Value:
    """Widens a broadcast value to `shape`."""
    d, u = value
    if d.shape != shape:
        d = np.broadcast_to(d, shape)
    if u is not None and u.shape != shape:
        u = np.broadcast_to(u, shape)
    return d, u


def native(item: Any, name: str) -> Any:
    """A numpy element as the Python scalar kept in environments."""
    kind = DTYPES[name].kind if name in DTYPES else "i"
    return bool(item) if kind == "b" else float(item) if kind == "f" else int(item)
