"""**Checks.** A copy from global memory and stmatrix write to the own CTA; `multicast=` of a tensor copy writes the same place in several.

**Why.** There is no form with a remote destination alone.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/remote-destination",
    severity="error",
    layer="binding",
    title="A tensor copy into another block",
    source="PTX ISA, 'cp.async.bulk.tensor'",
    line=10,
)

REJECTED = '''
@kernel(target="sm_90a")
def pair(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=2 * ceil_div(M, 16), cluster=2)
    producer = role(thread)
    reader = role(warp)
    tile = smem(bf16, 16, 64)
    full = mbarrier()
    with producer:
        expect(full[0])
        tma_load(tile.on(0), x[16 * cluster_id:, :], signal=full[0])
    with reader:
        wait(full[0])
        v = load(tile, vec(8, 8)[16, 64])
        if cluster_rank == 0:
            store(y[16 * cluster_id:, :], v)
    sync(cluster)
'''

ACCEPTED = '''
@kernel(target="sm_90a")
def pair(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=2 * ceil_div(M, 16), cluster=2)
    producer = role(thread)
    reader = role(warp)
    tile = smem(bf16, 16, 64)
    full = mbarrier()
    with producer:
        expect(full[0])
        tma_load(tile, x[16 * cluster_id:, :], signal=full[0])
    with reader:
        wait(full[0])
        v = load(tile, vec(8, 8)[16, 64])
        if cluster_rank == 0:
            store(y[16 * cluster_id:, :], v)
    sync(cluster)
'''
