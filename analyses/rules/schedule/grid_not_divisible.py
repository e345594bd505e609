"""**Checks.** `ctas=` is a multiple of `cluster=`: by its factors, or on every witness shape.

**Why.** The launch is refused for exactly those shapes, so it works in the test and fails in the field.

**Limits.** Where the factors do not tell, the witness shapes decide and the property is only checked.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="schedule/grid-not-divisible",
    severity="error",
    layer="resources",
    title="The number of CTAs is not a multiple of the cluster",
    source="CUDA C++ Programming Guide, 'Thread Block Clusters': the grid is a multiple of the cluster",
    line=3,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, N], y: Out[f32, M, N]):
    launch(ctas=M, cluster=4)
    team = role(warp)
    with team:
        v = load(x[cluster_id, :], vec(1).cols[32])
        if cluster_rank == 0:
            store(y[cluster_id, :], v + v)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, N], y: Out[f32, M, N]):
    launch(ctas=4 * M, cluster=4)
    team = role(warp)
    with team:
        v = load(x[cluster_id, :], vec(1).cols[32])
        if cluster_rank == 0:
            store(y[cluster_id, :], v + v)
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    launch = ctx.bound.launch
    if launch.cluster == 1:
        return
    d = ctx.divisor(launch.ctas)
    if d == 0 or d % launch.cluster == 0:
        return
    for w in ctx.derived.witnesses:
        if w.cta_count % launch.cluster:
            yield ctx.finding(
                RULE.id,
                "error",
                f"{w.cta_count} CTAs are launched for {w.describe()}; a cluster has {launch.cluster}",
                launch.span,
                contract="The grid is a multiple of the cluster; round it up and mask the work.",
            )
            return
