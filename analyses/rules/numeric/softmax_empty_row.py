"""**Checks.** In `exp2(a - b)` not both sides may be -inf. A value may be -inf when it comes from the constant -inf
(fill of a load, start of a running maximum, mask) through max, reductions and arithmetic; `select(m == -inf, 0.0,
m)` makes it finite.

**Why.** A fully masked row gives -inf - (-inf) = NaN, which then spreads through the sum and the output.

**Limits.** Data that are -inf by themselves are the contract's business; only what the text introduces is followed.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context, fragments_of
from analyses.numeric import expressions, leaf, may_be_minus_infinity
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="numeric/softmax-empty-row",
    severity="warning",
    layer="performance",
    title="exp2(x - peak) is NaN for a row in which nothing is valid",
    source="IEEE 754: -inf - (-inf) is NaN; flashinfer pull request 4401",
    line=10,
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
        base = top
        e = exp2(v - base)
        total = row_sum(e)
        store(y[cta, :], e * select(total == 0.0, 0.0, rcp(total)))
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
    if not any(x.op == "exp2" for _, x, _ in expressions(ctx)):
        return
    may = may_be_minus_infinity(ctx)
    seen: set[frozenset[str]] = set()
    for stmt, x, _ in expressions(ctx):
        if x.op != "exp2":
            continue
        inner = leaf(x.args[0])
        args = getattr(inner, "args", ())
        op = getattr(inner, "op", "")
        left, right = (args[:1], args[1:]) if op == "-" else (args[:2], args[2:]) if op == "fms" else ((), ())
        if op == "fnma":
            left, right = args[2:], args[:2]
        if any(may(a) for a in left) and any(may(a) for a in right):
            peaks = frozenset(f.name for a in right for f in fragments_of(a))
            if peaks in seen:
                continue  # one subtrahend, one finding
            seen.add(peaks)
            yield ctx.finding(
                RULE.id,
                "warning",
                "both sides of this difference are -inf for a row in which nothing is valid, and exp2 of it is NaN;"
                " make the subtrahend finite: select(m == -inf, 0.0, m)",
                stmt.span,
                contract="A fully masked row has a defined result.",
                role=getattr(stmt, "role", None),
            )
