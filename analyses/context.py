"""What a rule check sees: the bound kernel, its derived facts and a few look-ups that several rules share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from cake_ir.binding.scalars import divisor, interval
from cake_ir.bound import (
    SX,
    BoundKernel,
    Buffer,
    Fragment,
    Op,
    Region,
    SConst,
    SOp,
    SVar,
    VExpand,
    VFrag,
    View,
    VOp,
    VSplat,
    walk,
)
from cake_ir.derive import Derived
from cake_ir.diagnostics import Diagnostic, Family, Fix, Related, Severity, Span, Subject

SCALARS = (SConst, SVar, SOp)
TILES = (VFrag, VSplat, VExpand, VOp)


@dataclass(frozen=True, eq=False)
class Context:
    """One kernel under check. Everything is computed on demand and once."""

    bound: BoundKernel
    derived: Derived

    # ---- look-ups

    @cached_property
    def statements(self) -> tuple[Any, ...]:
        """Every statement, depth first, in text order."""
        return tuple(walk(self.bound.body))

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """Every op, in text order."""
        return tuple(s for s in self.statements if isinstance(s, Op))

    def named(self, *names: str) -> Iterator[Op]:
        """The ops of these names."""
        return (o for o in self.ops if o.name in names)

    @cached_property
    def views(self) -> tuple[tuple[Op, View], ...]:
        """Every on-chip view with its op."""
        return tuple((o, v) for o in self.ops for v in o.operands.values() if isinstance(v, View))

    @cached_property
    def regions(self) -> tuple[tuple[Op, str, Region], ...]:
        """Every global region with its op and how it is accessed (read, write, update)."""
        found = []
        for o in self.ops:
            modes = {a.operand: a.mode for a in o.decl.accesses}
            found += [(o, modes.get(k, "read"), v) for k, v in o.operands.items() if isinstance(v, Region)]
        return tuple(found)

    @cached_property
    def used_buffers(self) -> frozenset[Buffer]:
        """Buffers that some op touches, and those they lie over."""
        found: set[Buffer] = set()
        for _, v in self.views:
            b: Buffer | None = v.buffer
            while b is not None:
                found.add(b)
                b = b.over
        return frozenset(found)

    # ---- arithmetic

    def bounds(self, x: SX) -> tuple[float, float]:
        """Interval of an index over everything the program admits."""
        return interval(x, self.bound.notes.get("ranges", {}), self.bound.notes.get("definitions", {}))

    def divisor(self, x: SX) -> int:
        """A number that divides x for sure; facts `e % c == 0` of `where` count. 0 means x is zero."""
        return divisor(x, self._with_where)

    @cached_property
    def _with_where(self) -> dict[Any, SX]:
        """Definitions, with `X % c == 0` read as X = c * (something)."""
        known = dict(self.bound.notes.get("definitions", {}))
        for w in self.bound.where:
            for c in w.cond.args if isinstance(w.cond, SOp) and w.cond.op == "and" else (w.cond,):
                if isinstance(c, SOp) and c.op == "==" and isinstance(c.args[0], SOp) and c.args[0].op == "%":
                    value, modulus = c.args[0].args
                    zero = isinstance(c.args[1], SConst) and c.args[1].value == 0
                    if zero and isinstance(value, SVar) and isinstance(modulus, SConst):
                        old = divisor(known[value.var], known) if value.var in known else 1
                        m = int(modulus.value)
                        if m > 0 and (old == 0 or old % m):
                            # an opaque factor: divisor() only sees the constant
                            known[value.var] = SOp("*", (SConst(m), SOp("lsb", (SVar(value.var),))), "i32")
        return known

    # ---- findings

    def finding(
        self,
        rule: str,
        severity: Severity,
        message: str,
        span: Span,
        *,
        contract: str = "",
        related: tuple[tuple[Span, str], ...] = (),
        fixes: tuple[Fix, ...] = (),
        **subject: Any,
    ) -> Diagnostic:
        """A diagnostic of this kernel. The family is the rule's prefix (`sync` belongs to safety)."""
        prefix = rule.split("/")[0]
        family = cast(Family, "safety" if prefix == "sync" else prefix)
        return Diagnostic(
            rule=rule,
            family=family,
            severity=severity,
            message=message,
            span=span,
            contract=contract,
            related=tuple(Related(span=s, message=m) for s, m in related),
            fixes=fixes,
            subject=Subject(kernel=self.bound.name, **subject),
        )


def fragments_of(x: Any) -> set[Fragment]:
    """Every fragment that an operand or expression reads."""
    if isinstance(x, VFrag):
        return {x.frag}
    if isinstance(x, Fragment):
        return {x}
    if isinstance(x, VOp):
        return set().union(*(fragments_of(a) for a in x.args)) if x.args else set()
    if isinstance(x, VExpand):
        return fragments_of(x.x)
    if isinstance(x, Region):
        return set().union(*(fragments_of(d.rows) for d in x.dims if d.rows is not None))
    return set()
