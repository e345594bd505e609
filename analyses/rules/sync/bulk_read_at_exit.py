"""**Checks.** Every committed bulk group of a thread is waited for (`bulk_wait_read(0)` at least) before the thread
ends.

**Why.** The shared memory belongs to the next block while the copy engine still reads it.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="sync/bulk-read-at-exit",
    severity="error",
    layer="progress",
    title="A block ends while a bulk store still reads its memory",
    source="PTX ISA, 'cp.async.bulk.wait_group'",
    line=12,
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
        fence_async()
        sync(warp)
        with elected():
            tma_store(y[16 * cta:, :], tile)
            bulk_commit()
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
