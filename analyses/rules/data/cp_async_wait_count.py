"""**Checks.** Data of cp_async are used behind a `cp_async_wait(k)` that leaves at most the younger groups pending,
counting commits, not stages.

**Why.** Old bytes are read when memory is slow.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/cp-async-wait-count",
    severity="error",
    layer="data",
    title="cp.async data used before their group is complete",
    source="PTX ISA, 'cp.async.wait_group'",
    line=11,
)

REJECTED = """
@kernel(target="sm_80")
def copy(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 32))
    team = role(warp)
    tile = smem(bf16, 16, 64, stages=2)
    with team:
        for n in unroll(2):
            cp_async(tile[n], x[32 * cta + 16 * n:, :])
            cp_async_commit()
        for n in unroll(2):
            cp_async_wait(1)
            sync(warp)
            store(y[32 * cta + 16 * n:, :], load(tile[n], vec(8, 8)[16, 64]))
"""

ACCEPTED = """
@kernel(target="sm_80")
def copy(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 32))
    team = role(warp)
    tile = smem(bf16, 16, 64, stages=2)
    with team:
        for n in unroll(2):
            cp_async(tile[n], x[32 * cta + 16 * n:, :])
            cp_async_commit()
        for n in unroll(2):
            cp_async_wait(1 - n)
            sync(warp)
            store(y[32 * cta + 16 * n:, :], load(tile[n], vec(8, 8)[16, 64]))
"""
