"""**Checks.** Bulk groups are waited for by the thread that issued and committed them.

**Why.** The wait of another thread has nothing to wait for and passes at once.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/group-owner",
    severity="error",
    layer="data",
    title="A bulk group waited for by another thread",
    source="PTX ISA, 'cp.async.bulk.commit_group': groups are per thread",
    line=10,
)

REJECTED = """
@kernel(target="sm_90a")
def out(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=1)
    team = role(warp, count=2)
    tile = smem(bf16, 16, 64)
    with team as w:
        for i in range(ceil_div(M, 16)):
            if w == 1:
                with elected():
                    bulk_wait_read(0)
            sync(team)
            if w == 1:
                store(tile, load(x[16 * i:, :], vec(8, 8)[16, 64]))
                fence_async()
            sync(team)
            if w == 0:
                with elected():
                    tma_store(y[16 * i:, :], tile)
                    bulk_commit()
        if w == 0:
            with elected():
                bulk_wait_read(0)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def out(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=1)
    team = role(warp, count=2)
    tile = smem(bf16, 16, 64)
    with team as w:
        for i in range(ceil_div(M, 16)):
            if w == 0:
                with elected():
                    bulk_wait_read(0)
            sync(team)
            if w == 1:
                store(tile, load(x[16 * i:, :], vec(8, 8)[16, 64]))
                fence_async()
            sync(team)
            if w == 0:
                with elected():
                    tma_store(y[16 * i:, :], tile)
                    bulk_commit()
        if w == 0:
            with elected():
                bulk_wait_read(0)
"""
