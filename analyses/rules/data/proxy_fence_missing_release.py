"""**Checks.** Units that read a stage with plain loads execute fence_async before the arrive that lets a copy overwrite
it.

**Why.** The copy may overtake the loads: wrong rows, only in large grids. Seen on an H200 with ldmatrix.

**Limits.** Strict on purpose: waiting for a product that used the loaded registers may be enough, but nothing
promises it.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/proxy-fence-missing-release",
    severity="error",
    layer="data",
    title="A stage read by loads is released to a copy without a fence",
    source="PTX ISA, 'Proxies' and 'membar/fence'; measured on an H200",
    line=16,
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
            arrive(free[n])
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
