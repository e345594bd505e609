"""**Checks.** `.on(rank)` and `multicast=` name ranks from 0 to cluster - 1.

**Why.** The address of a block that does not exist faults, or lands in another cluster.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/cluster-rank",
    severity="error",
    layer="binding",
    title="A rank outside the cluster",
    source="PTX ISA, 'mapa'",
    line=8,
)

REJECTED = '''
@kernel(target="sm_90a")
def pair(y: Out[f32, M, 32]):
    launch(ctas=2 * M, cluster=2)
    team = role(warp)
    ready = mbarrier()
    with team:
        arrive(ready[0].on(0))
        arrive(ready[0].on(2))
        wait(ready[0])
        if cluster_rank == 0:
            store(y[cluster_id, :], fragment(f32, vec(1).cols[32], 1.0))
    sync(cluster)
'''

ACCEPTED = '''
@kernel(target="sm_90a")
def pair(y: Out[f32, M, 32]):
    launch(ctas=2 * M, cluster=2)
    team = role(warp)
    ready = mbarrier()
    with team:
        arrive(ready[0].on(0))
        arrive(ready[0].on(1))
        wait(ready[0])
        if cluster_rank == 0:
            store(y[cluster_id, :], fragment(f32, vec(1).cols[32], 1.0))
    sync(cluster)
'''
