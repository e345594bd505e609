"""**Checks.** Only waits may name a negative use number (they pass); arrivals, copies and views of staged tiles may not.

**Why.** There is no completion -1 to arrive for, and no slot -1: the arrival would count for another use, the access would leave
the tile.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="sync/negative-use",
    severity="error",
    layer="progress",
    title="An arrival or access for a use below zero",
    source="PTX ISA, 'mbarrier'",
    line=18,
)

REJECTED = """
@kernel(target="sm_90a")
def stream(x: In[bf16, M, 64], y: Out[f32, M, 64]):
    launch(ctas=1)
    producer = role(thread)
    reader = role(warp)
    tile = smem(bf16, 16, 64, stages=2)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    for n in range(ceil_div(M, 16)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(tile[n], x[16 * n:, :], signal=full[n])
        with reader:
            wait(full[n])
            v = load(tile[n], vec(8, 8)[16, 64])
            fence_async()
            arrive(free[n - 1])
            store(y[16 * n:, :], cast(v, f32))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def stream(x: In[bf16, M, 64], y: Out[f32, M, 64]):
    launch(ctas=1)
    producer = role(thread)
    reader = role(warp)
    tile = smem(bf16, 16, 64, stages=2)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    for n in range(ceil_div(M, 16)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(tile[n], x[16 * n:, :], signal=full[n])
        with reader:
            wait(full[n])
            v = load(tile[n], vec(8, 8)[16, 64])
            fence_async()
            arrive(free[n])
            store(y[16 * n:, :], cast(v, f32))
"""
