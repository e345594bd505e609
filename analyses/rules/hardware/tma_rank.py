"""**Checks.** A tensor that TMA moves has at most 5 dimensions.

**Why.** The map has five extents.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/tma-rank",
    severity="error",
    layer="binding",
    title="More dimensions than a tensor map has",
    source="CUDA Driver API, 'Tensor Map Object Management'",
    line=13,
)

REJECTED = '''
@kernel(target="sm_90a")
def stream(x: In[bf16, A, B, C, D, M, 64], y: Out[f32, M, 64]):
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
            tma_load(tile[n], x[0, 0, 0, 0, 16 * n:, :], signal=full[n])
        with reader:
            wait(full[n])
            v = load(tile[n], vec(8, 8)[16, 64])
            fence_async()
            arrive(free[n])
            store(y[16 * n:, :], cast(v, f32))
'''

ACCEPTED = '''
@kernel(target="sm_90a")
def stream(x: In[bf16, A, B, C, M, 64], y: Out[f32, M, 64]):
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
            tma_load(tile[n], x[0, 0, 0, 16 * n:, :], signal=full[n])
        with reader:
            wait(full[n])
            v = load(tile[n], vec(8, 8)[16, 64])
            fence_async()
            arrive(free[n])
            store(y[16 * n:, :], cast(v, f32))
'''
