"""**Checks.** `cluster=` is between 1 and the limit of the target (none before sm_90), and even for `cta_group=2`.

**Why.** The assembler accepts any number; the launch fails.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/cluster-shape",
    severity="error",
    layer="binding",
    title="A cluster that the target does not form",
    source="CUDA C++ Programming Guide, 'Thread Block Clusters'",
    line=3,
)

REJECTED = '''
@kernel(target="sm_90a")
def pair(y: Out[f32, M, 32]):
    launch(ctas=2 * M, cluster=32)
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
