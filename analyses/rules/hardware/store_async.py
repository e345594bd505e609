"""**Checks.** `store_async` stores elements of 32 bits, and its barrier belongs to the CTA that it writes to.

**Why.** The instruction takes two addresses in one CTA's shared memory: where the bytes go and the barrier that counts them.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/store-async",
    severity="error",
    layer="binding",
    title="An asynchronous store that signals another block than it writes to",
    source="PTX ISA, 'st.async'",
    line=11,
)

REJECTED = '''
@kernel(target="sm_90a")
def pair(y: Out[f32, M, 64]):
    launch(ctas=2 * M, cluster=2)
    team = role(warp)
    got = smem(f32, 64)
    ready = mbarrier()
    with team:
        if cluster_rank == 0:
            with elected():
                expect(ready[0])
        store_async(got.cols(32 * cluster_rank, 32).on(0), fragment(f32, vec(1).cols[32], 1.0), signal=ready[0])
        if cluster_rank == 0:
            wait(ready[0])
            store(y[cluster_id, :], load(got, vec(2).cols[64]))
    sync(cluster)
'''

ACCEPTED = '''
@kernel(target="sm_90a")
def pair(y: Out[f32, M, 64]):
    launch(ctas=2 * M, cluster=2)
    team = role(warp)
    got = smem(f32, 64)
    ready = mbarrier()
    with team:
        if cluster_rank == 0:
            with elected():
                expect(ready[0])
        store_async(got.cols(32 * cluster_rank, 32).on(0), fragment(f32, vec(1).cols[32], 1.0), signal=ready[0].on(0))
        if cluster_rank == 0:
            wait(ready[0])
            store(y[cluster_id, :], load(got, vec(2).cols[64]))
    sync(cluster)
'''
