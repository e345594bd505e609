"""**Checks.** Where both operands of a matrix product are summed over one named extent, they hold the same slice of it.

**Why.** Element k of one operand is multiplied with another element of the other: the result is a number of no meaning, and nothing
faults.

**Limits.** Extents are compared as they are written. Shifts that a program may mean are left alone: a shift that other products of the
two tensors do not have (taps, lags), one by a half, third or quarter of the extent (planes, gates side by side), and one tensor
multiplied with itself.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/mma-slices-differ",
    severity="error",
    layer="data",
    title="Operands of a product hold different slices",
    source="PTX ISA, 'Matrix multiply-accumulate instructions': D = A * B + C over one common index",
    line=24,
)

REJECTED = """
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[f32, M, N]):
    where(K > 0, K % 8 == 0, N % 4 == 0)
    tiles = tile_space(ceil_div(M, 64), ceil_div(N, 64))
    launch(ctas=min(tiles.count, device.sms))
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    n = 0
    for tm, tn in tiles.persistent():
        with math:
            acc = fragment(f32, wgmma_d[64, 64])
        for k in range(ceil_div(K, 64)):
            with producer:
                wait(free[n - 2])
                expect(full[n])
                tma_load(a_s[n], a[64 * tm:, 64 * k:], signal=full[n])
                tma_load(b_s[n], b[64 * tn:, 64 * k + 64:], signal=full[n])
            with math:
                wait(full[n])
                wgmma(acc, a_s[n], b_s[n], init=k == 0)
                wgmma_commit()
                wgmma_wait(0)
                arrive(free[n])
            n += 1
        with math:
            store(d[64 * tm:, 64 * tn:], acc)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[f32, M, N]):
    where(K > 0, K % 8 == 0, N % 4 == 0)
    tiles = tile_space(ceil_div(M, 64), ceil_div(N, 64))
    launch(ctas=min(tiles.count, device.sms))
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    n = 0
    for tm, tn in tiles.persistent():
        with math:
            acc = fragment(f32, wgmma_d[64, 64])
        for k in range(ceil_div(K, 64)):
            with producer:
                wait(free[n - 2])
                expect(full[n])
                tma_load(a_s[n], a[64 * tm:, 64 * k:], signal=full[n])
                tma_load(b_s[n], b[64 * tn:, 64 * k:], signal=full[n])
            with math:
                wait(full[n])
                wgmma(acc, a_s[n], b_s[n], init=k == 0)
                wgmma_commit()
                wgmma_wait(0)
                arrive(free[n])
            n += 1
        with math:
            store(d[64 * tm:, 64 * tn:], acc)
"""
