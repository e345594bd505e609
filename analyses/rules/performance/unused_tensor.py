"""**Checks.** Every `In`, `Const` and `InOut` tensor is named by some op, or one of its dimensions is needed from it
alone.

**Why.** Usually a copy from the wrong tensor: two operands loaded from one.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.bound import sx_vars
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="performance/unused-tensor",
    severity="warning",
    layer="performance",
    title="An input tensor is never read",
    source="Cake language reference, 'A file'",
    line=2,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], w: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    used = {r.tensor for _, _, r in ctx.regions}
    for t in ctx.bound.tensors:
        others = {v for o in ctx.bound.tensors if o is not t for e in o.extents for v in sx_vars(e)}
        only_here = {v for e in t.extents for v in sx_vars(e)} - others
        if t.direction != "Out" and t not in used and not only_here:
            yield ctx.finding(
                RULE.id, "warning", f"'{t.name}' is {t.direction} and no op reads it", t.span, resource=t.name
            )
