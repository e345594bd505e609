"""**Checks.** Everything that reaches into another CTA (remote arrivals, multicast copies, remote stores) happens
before that CTA exits.

**Why.** The access faults (cluster target block not present), rarely, and more often with dependent launches.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="sync/cluster-exit",
    severity="error",
    layer="progress",
    title="A block may exit while a peer still reaches into it",
    source="CUDA C++ Programming Guide, 'Distributed Shared Memory'; sglang issue 32907",
    line=8,
)

REJECTED = """
@kernel(target="sm_90a")
def pair(y: Out[f32, M, 32]):
    launch(ctas=2 * M, cluster=2)
    team = role(warp)
    ready = mbarrier()
    with team:
        arrive(ready[0].on(0))
        arrive(ready[0].on(1))
        if cluster_rank == 0:
            wait(ready[0])
            store(y[cluster_id, :], fragment(f32, vec(1).cols[32], 1.0))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def pair(y: Out[f32, M, 32]):
    launch(ctas=2 * M, cluster=2)
    team = role(warp)
    ready = mbarrier()
    with team:
        arrive(ready[0].on(0))
        arrive(ready[0].on(1))
        if cluster_rank == 0:
            wait(ready[0])
            store(y[cluster_id, :], fragment(f32, vec(1).cols[32], 1.0))
    sync(cluster)
"""
