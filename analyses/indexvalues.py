"""Index expressions as polynomials: extents and arguments are atoms, locals hold values, conditions and masks are facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from analyses import symbolic as S
from analyses.symbolic import Algebra, Poly, const
from cake_ir.bound import (
    ScalarVar,
    SConst,
    SOp,
    SVar,
    VCoord,
    VExpand,
    VFrag,
    VOp,
    VSplat,
    Where,
    sx_vars,
)
from cake_ir.facts import EXTENT_MAX, INT_MAX

SCALARS = (SConst, SVar, SOp)


class Values:
    """Values of scalars and of tile elements, and the facts that hold where they are read. positive: whether an expression is not
    negative by its text."""

    def __init__(self, positive: Callable[[Any], bool], algebra: Algebra | None = None) -> None:
        self.algebra = algebra or Algebra()
        self.positive = positive
        self.values: dict[ScalarVar, Poly] = {}
        self.frags: dict[Any, Poly] = {}
        self.facts: list[Poly] = []
        self.launch_wide: set[int] = set()
        """Atoms whose value a launch knows."""
        self.data: set[int] = set()
        """Atoms whose value data or loops decide."""
        self.distinct: list[Poly] = []
        """What is not zero."""
        self.apart: list[Poly] = []
        """What the condition read last says is not zero."""
        self.loose = 0
        """Conditions around the statement that could not be expressed."""

    # ---- what the launch fixes

    def declare(
        self, dims: Iterable[ScalarVar], args: Iterable[ScalarVar], sms: ScalarVar | None, where: Iterable[Where]
    ) -> None:
        """Extents, arguments and the number of SMs as atoms, with what `where` says of them."""
        a, dims, where = self.algebra, list(dims), list(where)
        multiples: dict[ScalarVar, Any] = {}
        for w in where:
            for c in conjuncts(w.cond):
                if isinstance(c, SOp) and c.op == "==" and isinstance(c.args[0], SOp) and c.args[0].op == "%":
                    x, k = c.args[0].args
                    zero = isinstance(c.args[1], SConst) and c.args[1].value == 0
                    if zero and isinstance(x, SVar) and x.var.kind == "dim" and x.var not in multiples:
                        multiples[x.var] = k
        free = [v for v in dims if v not in multiples]
        for v in [*free, *(v for v in dims if v in multiples)]:
            k = multiples.get(v)
            if k is not None and not all(x in self.values for x in sx_vars(k)):
                k = None
            if k is None:
                self.values[v] = a.atom(v.name, [{}], [const(EXTENT_MAX)], ("dim", v))
                self.launch_wide.add(len(a.atoms) - 1)
                continue
            factor = self.scalar(k)
            number = S.constant(factor)
            whole = a.atom(f"{v.name} steps", [{}], [const(EXTENT_MAX // number)] if number else [const(EXTENT_MAX)])
            self.launch_wide.add(len(a.atoms) - 1)
            self.values[v] = S.mul(factor, whole)
            if number is None:
                self.facts.append(S.add(const(EXTENT_MAX), self.values[v], -1))
        for v in args:
            if v.dtype == "i32":
                self.values[v] = a.atom(v.name, [const(-INT_MAX - 1)], [const(INT_MAX)], ("arg", v))
                self.launch_wide.add(len(a.atoms) - 1)
        if sms is not None:
            self.values[sms] = a.atom("device.sms", [const(1)], [const(1024)])
            self.launch_wide.add(len(a.atoms) - 1)
        for w in where:
            self.facts += self.conditions(w.cond)
        self.loose = 0  # what `where` says beside is asked of each witness

    # ---- values

    def scalar(self, x: Any) -> Poly:
        """The value of an index expression."""
        if isinstance(x, SConst):
            return const(int(x.value)) if not isinstance(x.value, float) else self.unknown(x)
        if isinstance(x, SVar):
            known = self.values.get(x.var)
            return known if known is not None else self.fresh(x.var)
        a = self.algebra
        if x.op in ("cast", "/") or any(y.dtype not in ("i32", "bool") for y in x.args):
            return self.unknown(x)
        if x.op == "select":
            p, q = self.scalar(x.args[1]), self.scalar(x.args[2])
            return a.either(p, q, x)
        args = [self.scalar(y) for y in x.args]
        return self.apply(x.op, args, x)

    def apply(self, op: str, args: list[Poly], key: Any) -> Poly:
        """One operation on values."""
        a = self.algebra
        if op in ("+", "-"):
            return S.add(args[0], args[1], 1 if op == "+" else -1)
        if op == "neg":
            return S.add({}, args[0], -1)
        if op == "*":
            return S.mul(args[0], args[1])
        if op in ("//", "%") and a.proves(S.add(args[1], const(-1)), self.facts):
            return a.floor_div(*args) if op == "//" else a.modulo(*args)
        if op == "ceil_div" and a.proves(S.add(args[1], const(-1)), self.facts):
            return a.floor_div(S.add(S.add(args[0], args[1]), const(-1)), args[1])
        if op == "min":
            return a.least(*args)
        if op == "max":
            return a.greatest(*args)
        k = S.constant(args[1]) if len(args) == 2 else None
        if op in ("<<", ">>") and k is not None and 0 <= k < 31:
            return S.mul(args[0], const(1 << k)) if op == "<<" else a.floor_div(args[0], const(1 << k))
        if op == "&" and k is not None and k >= 0:
            return (
                a.modulo(args[0], const(k + 1))
                if k & (k + 1) == 0
                else a.opaque("&", *args, lower=[{}], upper=[const(k)])
            )
        if op == "lsb":
            some = args[0] in self.distinct or a.proves(S.add(args[0], const(-1)), self.facts)
            low = const(0 if some else -1)
            top = next((k for k in (7, 15, 31) if a.proves(S.add(const((2 << k) - 1), args[0], -1), self.facts)), 31)
            return a.bits(args[0], low, const(top))
        if op == "&" and (k is None or k < 0):
            held = [y for y in args if a.proves(y, self.facts)]
            return a.opaque("&", *args, lower=[{}] if held else [], upper=held)
        if op == "abs":
            return a.greatest(args[0], S.add({}, args[0], -1))
        return self.unknown(key)

    def unknown(self, key: Any) -> Poly:
        """A value that nothing is known of but its sign, where the text tells it."""
        low: list[Poly] = [{}] if isinstance(key, SCALARS) and self.positive(key) else []
        found = self.algebra.atom("a value", low, [], ("x", id(key)))
        self.data.update(m[0] for m in found if m)
        return found

    def fresh(self, v: ScalarVar) -> Poly:
        """A variable whose value is not known here: loaded, or changed by a loop."""
        low: list[Poly] = [{}] if self.positive(SVar(v)) or v.dtype in ("u32", "bool") else []
        found = self.algebra.atom(v.name, low, [], None)
        self.data.add(len(self.algebra.atoms) - 1)
        self.values[v] = found
        return found

    def element(self, x: Any) -> Poly | None:
        """The value of an i32 tile expression at any one of its elements."""
        if isinstance(x, VSplat):
            return self.scalar(x.x) if x.x.dtype == "i32" else None
        if isinstance(x, VCoord):
            n = x.type.rows if x.axis == "rows" or "row" in x.axis else x.type.cols
            return self.algebra.atom(x.axis, [{}], [const(n - 1)], ("coord", x.axis, n))
        if isinstance(x, VExpand):
            return self.element(x.x)
        if isinstance(x, VFrag):
            if x.type.dtype.name != "i32":
                return None
            key = (x.frag, x.row0, x.col0)
            if key not in self.frags:
                self.frags[key] = self.algebra.atom(x.frag.name)
                self.data.add(len(self.algebra.atoms) - 1)
            return self.frags[key]
        if isinstance(x, VOp) and x.op == "select":
            p, q = self.element(x.args[1]), self.element(x.args[2])
            return self.algebra.either(p, q, x) if p is not None and q is not None else None
        if isinstance(x, VOp) and x.op in ("+", "-", "*", "neg", "min", "max", "<<", ">>", "&"):
            args = [self.element(y) for y in x.args]
            known = [p for p in args if p is not None]
            return self.apply(x.op, known, x) if len(known) == len(args) else None
        return None

    def conditions(self, cond: Any) -> list[Poly]:
        """Polynomials that are not negative where a condition holds. Counts in `loose` what they do not express."""
        if isinstance(cond, (SOp, VOp)):
            if cond.op in ("and", "&"):
                return [f for c in cond.args for f in self.conditions(c)]
            if cond.op in ("not", "~"):
                return self.negations(cond.args[0])
            if cond.op in ("<", "<=", ">", ">=", "==", "!="):
                value = self.scalar if isinstance(cond, SOp) else self.element
                if any(y.dtype != "i32" for y in cond.args if isinstance(y, SCALARS)):
                    self.loose += 1
                    return []
                a, b = value(cond.args[0]), value(cond.args[1])
                if a is None or b is None:
                    self.loose += 1
                    return []
                if cond.op == "!=":
                    self.apart.append(S.add(a, b, -1))
                    return []
                up, down = S.add(b, a, -1), S.add(a, b, -1)
                return {
                    "<": [S.add(up, const(-1))],
                    "<=": [up],
                    ">": [S.add(down, const(-1))],
                    ">=": [down],
                    "==": [up, down],
                }[cond.op]
        if not (isinstance(cond, SConst) and cond.value):
            self.loose += 1
        return []

    def negations(self, cond: Any) -> list[Poly]:
        """The same where a condition does not hold."""
        turned = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "!=": "==", "==": "!="}
        if isinstance(cond, SOp) and cond.op in turned:
            return self.conditions(SOp(turned[cond.op], cond.args, "bool"))
        if isinstance(cond, VOp) and cond.op in turned:
            return self.conditions(VOp(turned[cond.op], cond.args, cond.type))
        if isinstance(cond, (SOp, VOp)) and cond.op in ("or", "|"):
            return [f for c in cond.args for f in self.negations(c)]
        self.loose += 1
        return []


def conjuncts(x: Any) -> Iterator[Any]:
    """The parts of a conjunction."""
    if isinstance(x, SOp) and x.op == "and":
        for a in x.args:
            yield from conjuncts(a)
    else:
        yield x
