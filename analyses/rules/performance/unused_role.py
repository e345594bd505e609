"""**Checks.** Every role has a role block with at least one op.

**Why.** Its warps take registers from the others and wait at every block-wide barrier.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="performance/unused-role",
    severity="warning",
    layer="performance",
    title="A role does nothing",
    source="Cake language reference, 'Roles and projection'",
    line=5,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    spare = role(warp)
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
    busy = {o.role for o in ctx.ops}
    for role in ctx.bound.roles:
        if role.name not in busy:
            yield ctx.finding(
                RULE.id, "warning", f"role {role.name} ({role.warps} warps) executes no op", role.span, role=role.name
            )
