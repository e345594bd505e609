"""**Checks.** Between a store (or cp.async, stmatrix) to shared memory and an asynchronous read of it stand fence_async
of every writer and then a sync or arrive.

**Why.** The copy engine and the tensor core read through another proxy: without the fence they see old bytes,
sometimes.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/proxy-fence-missing-write",
    severity="error",
    layer="data",
    title="Stores handed to a copy or product without a proxy fence",
    source="PTX ISA, 'Proxies' and 'membar/fence'",
    line=8,
)

REJECTED = """
@kernel(target="sm_90a")
def out(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 16))
    team = role(warp)
    tile = smem(bf16, 16, 64)
    with team:
        v = load(x[16 * cta:, :], vec(8, 8)[16, 64])
        store(tile, v)
        sync(warp)
        with elected():
            tma_store(y[16 * cta:, :], tile)
            bulk_commit()
            bulk_wait_read(0)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def out(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 16))
    team = role(warp)
    tile = smem(bf16, 16, 64)
    with team:
        v = load(x[16 * cta:, :], vec(8, 8)[16, 64])
        store(tile, v)
        fence_async()
        sync(warp)
        with elected():
            tma_store(y[16 * cta:, :], tile)
            bulk_commit()
            bulk_wait_read(0)
"""
