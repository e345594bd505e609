"""**Checks.** `cluster=` is at most 8.

**Why.** Larger clusters need an opt-in attribute, and on devices with fewer SMs per cluster of SMs the launch is
refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="hardware/cluster-portable",
    severity="warning",
    layer="performance",
    title="The cluster is larger than the portable size",
    source="CUDA C++ Programming Guide, 'Thread Block Clusters'",
    line=3,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=16 * M, cluster=16)
    team = role(warp)
    with team:
        v = load(x[cluster_id, :], vec(1).cols[32])
        if cluster_rank == 0:
            store(y[cluster_id, :], v + v)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=8 * M, cluster=8)
    team = role(warp)
    with team:
        v = load(x[cluster_id, :], vec(1).cols[32])
        if cluster_rank == 0:
            store(y[cluster_id, :], v + v)
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    launch = ctx.bound.launch
    if launch.cluster > 1:
        portable = ctx.bound.target.value("cluster_max_portable")
        if launch.cluster > portable:
            yield ctx.finding(
                RULE.id,
                "warning",
                f"cluster={launch.cluster} is above the portable size of {portable}:"
                " it needs an opt-in and may not fit every device",
                launch.span,
            )
