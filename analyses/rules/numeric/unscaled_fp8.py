"""**Checks.** A value of `exp2` is not cast to an 8-bit float as it is.

**Why.** Weights of a softmax lie between 0 and 1. e4m3 keeps three bits of them down to 2^-6 and nothing below 2^-10, e5m2
two bits; most of the range of the format stays empty. Multiplied by a power of two before the cast, and the result divided by
it, they keep far more.

**Limits.** Only casts whose operand is an `exp2` by name or in place; any product in between counts as a scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from analyses.context import Context
from analyses.numeric import expressions, leaf, place
from analyses.rules import Rule
from cake_ir.bound import Let, SetScalar, SOp, VOp
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="numeric/unscaled-fp8",
    severity="warning",
    layer="performance",
    title="Softmax weights are cast to 8 bits without a scale",
    source="OCP 8-bit floating point specification (e4m3: bias 7, 3 mantissa bits; least subnormal 2^-9)",
    line=7,
)

REJECTED = """
@kernel(target="sm_90a")
def weights(x: In[f32, M, 128], y: Out[e4m3, M, 128]):
    launch(ctas=M)
    team = role(warp)
    with team:
        p = exp2(load(x[cta, :], vec(4).cols[128]))
        store(y[cta, :], cast(p, e4m3))
"""

ACCEPTED = REJECTED.replace("cast(p, e4m3)", "cast(p * 256.0, e4m3)")


def check(ctx: Context) -> Iterator[Diagnostic]:
    values: dict[Any, list[Any]] = {}
    for s in ctx.statements:
        if isinstance(s, Let) and s.value is not None:
            values.setdefault(s.frag, []).append(s.value)
        elif isinstance(s, SetScalar):
            values.setdefault(s.var, []).append(s.value)
    seen: set[tuple[int, int]] = set()
    for stmt, x, _ in expressions(ctx):
        dtype = getattr(getattr(x, "type", None), "dtype", None)
        if x.op != "cast" or dtype is None or dtype.name not in ("e4m3", "e5m2"):
            continue
        inner = leaf(x.args[0])
        name = place(inner)
        sources = [leaf(v) for v in values.get(name, ())] if name is not None else [inner]
        if sources and all(isinstance(v, (SOp, VOp)) and v.op == "exp2" for v in sources):
            where = (stmt.span.line, stmt.span.col)
            if where not in seen:
                seen.add(where)
                yield ctx.finding(
                    RULE.id,
                    "warning",
                    f"values between 0 and 1 are cast to {dtype}, which flushes everything below "
                    f"{'2^-10' if dtype.name == 'e4m3' else '2^-17'}; scale them into the format's range first",
                    stmt.span,
                    contract="A cast to 8 bits comes last, and of values that fill the format's range.",
                    role=getattr(stmt, "role", None),
                )
