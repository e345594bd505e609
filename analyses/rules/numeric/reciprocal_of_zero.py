"""**Checks.** The operand of `rcp` is not a sum that can stay 0.0: one that starts at 0.0 and only adds `exp2` of
values that may be -inf. `select(s == 0.0, 0.0, rcp(s))` gives such a row a defined result.

**Why.** 1/0 is infinity and 0 times infinity is NaN: the masked row becomes NaN instead of zeros.

**Limits.** Sums of data are not followed, only sums that the text makes empty.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.numeric import expressions, may_be_minus_infinity, may_be_zero_sum, place
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="numeric/reciprocal-of-zero",
    severity="warning",
    layer="performance",
    title="rcp of a sum that is zero for a row in which nothing is valid",
    source="IEEE 754: 1/0 is infinity, 0 * infinity is NaN; flashinfer pull request 4401",
    line=12,
)

REJECTED = """
@kernel(target="sm_90a")
def softmax(x: In[f32, M, N], y: Out[f32, M, N]):
    where(N <= 1024, N % 4 == 0)
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(4).cols[1024], fill=-inf)
        top = row_max(v)
        base = select(top == -inf, 0.0, top)
        e = exp2(v - base)
        total = row_sum(e)
        store(y[cta, :], e * rcp(total))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def softmax(x: In[f32, M, N], y: Out[f32, M, N]):
    where(N <= 1024, N % 4 == 0)
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(4).cols[1024], fill=-inf)
        top = row_max(v)
        base = select(top == -inf, 0.0, top)
        e = exp2(v - base)
        total = row_sum(e)
        store(y[cta, :], e * select(total == 0.0, 0.0, rcp(total)))
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    if not any(x.op == "rcp" for _, x, _ in expressions(ctx)):
        return
    infinite = may_be_minus_infinity(ctx)
    may = may_be_zero_sum(ctx, infinite)
    for stmt, x, above in expressions(ctx):
        name = place(x.args[0]) if x.op == "rcp" else None
        if name is None or not infinite.named or not may(x.args[0]):
            continue
        if any(o.op == "select" and may.guarded(o.args[0], 0.0) is name for o in above):
            continue
        yield ctx.finding(
            RULE.id,
            "warning",
            f"'{name.name}' is 0.0 for a row in which nothing is valid;"
            f" write select({name.name} == 0.0, 0.0, rcp({name.name}))",
            stmt.span,
            contract="A fully masked row has a defined result.",
        )
