"""**Checks.** Each op lists the units (thread, warp, warpgroup, kernel level) that may execute it.

**Why.** A tensor copy issued by 32 lanes is 32 copies; a warpgroup product issued by one warp hangs.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/illegal-unit",
    severity="error",
    layer="binding",
    title="An op executed by the wrong unit",
    source="PTX ISA: each instruction states who executes it",
    line=16,
)

REJECTED = '''
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
            expect(full[n])
            v = load(tile[n], vec(8, 8)[16, 64])
            fence_async()
            arrive(free[n])
            store(y[16 * n:, :], cast(v, f32))
'''

ACCEPTED = '''
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
'''
