"""**Checks.** The source of a bulk store is overwritten only after a `bulk_wait_read(k)` with k small enough to cover
its group, and a sync behind it.

**Why.** The copy engine reads the new data: rows of the next tile appear in this one.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/bulk-wait-depth",
    severity="error",
    layer="data",
    title="The source of a bulk store overwritten too early",
    source="PTX ISA, 'cp.async.bulk.wait_group'",
    line=9,
)

REJECTED = """
@kernel(target="sm_90a")
def out(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=1)
    team = role(warp)
    tile = smem(bf16, 16, 64)
    with team:
        for i in range(ceil_div(M, 16)):
            with elected():
                bulk_wait_read(1)
            sync(warp)
            store(tile, load(x[16 * i:, :], vec(8, 8)[16, 64]))
            fence_async()
            sync(warp)
            with elected():
                tma_store(y[16 * i:, :], tile)
                bulk_commit()
        with elected():
            bulk_wait_read(0)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def out(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=1)
    team = role(warp)
    tile = smem(bf16, 16, 64)
    with team:
        for i in range(ceil_div(M, 16)):
            with elected():
                bulk_wait_read(0)
            sync(warp)
            store(tile, load(x[16 * i:, :], vec(8, 8)[16, 64]))
            fence_async()
            sync(warp)
            with elected():
                tma_store(y[16 * i:, :], tile)
                bulk_commit()
        with elected():
            bulk_wait_read(0)
"""
