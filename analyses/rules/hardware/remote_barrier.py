"""**Checks.** `wait` and `expect` name barriers of the own CTA; arrivals may go to another with `.on(rank)`.

**Why.** The instruction does not exist for remote barriers.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/remote-barrier",
    severity="error",
    layer="binding",
    title="A wait or expect on a barrier of another block",
    source="PTX ISA, 'mbarrier': only arrive has a remote form",
    line=9,
)

REJECTED = '''
@kernel(target="sm_90a")
def pair(y: Out[f32, M, 32]):
    launch(ctas=2 * M, cluster=2)
    team = role(warp)
    ready = mbarrier()
    with team:
        arrive(ready[0].on(0))
        arrive(ready[0].on(1))
        wait(ready[0].on(1))
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
