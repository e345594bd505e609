"""**Checks.** Where use numbers repeat (a counter restarts per tile), the parity they stand for equals the phase of the
slot.

**Why.** Waits pass at once or never, but only when the trip count is odd in units of the ring.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="sync/phase-drift",
    severity="error",
    layer="progress",
    title="Use numbers that restart in another phase",
    source="PTX ISA, 'mbarrier'",
    line=20,
)

REJECTED = """
@kernel(target="sm_90a")
def tiles(x: In[bf16, R, K], y: Out[f32, R // 8]):
    where(K > 0, K % 64 == 0, R % 8 == 0)
    launch(ctas=1)
    producer = role(thread)
    math = role(warp)
    x_s = smem(bf16, 8, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    for tile in range(ceil_div(R, 8)):
        first = tile * (K // 64)
        with producer:
            for n in range(K // 64):
                wait(free[first + n - 2])
                expect(full[first + n])
                tma_load(x_s[first + n], x[8 * tile:, n * 64:], signal=full[first + n])
        with math:
            total = 0.0
            for n in range(K // 64):
                wait(full[n])
                total = total + row_sum(col_sum(cast(load(x_s[first + n], vec(8, 8)[8, 64]), f32)))
                fence_async()
                arrive(free[first + n])
            store(y[tile], total)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def tiles(x: In[bf16, R, K], y: Out[f32, R // 8]):
    where(K > 0, K % 64 == 0, R % 8 == 0)
    launch(ctas=1)
    producer = role(thread)
    math = role(warp)
    x_s = smem(bf16, 8, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    for tile in range(ceil_div(R, 8)):
        first = tile * (K // 64)
        with producer:
            for n in range(K // 64):
                wait(free[first + n - 2])
                expect(full[first + n])
                tma_load(x_s[first + n], x[8 * tile:, n * 64:], signal=full[first + n])
        with math:
            total = 0.0
            for n in range(K // 64):
                wait(full[first + n])
                total = total + row_sum(col_sum(cast(load(x_s[first + n], vec(8, 8)[8, 64]), f32)))
                fence_async()
                arrive(free[first + n])
            store(y[tile], total)
"""
