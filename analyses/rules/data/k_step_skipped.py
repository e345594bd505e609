"""**Checks.** A sum of products that reaches an output covers the whole extent that it runs over.

**Why.** A loop that starts late or ends early, or an accumulator that is cleared at each step, leaves terms out.

**Limits.** Asked of `Out` tensors whose dimensions are all rows or columns of the operands (partial sums have an index of their own), of
loops that are the same for all tiles and data (not of triangular or block-sparse ones), and of extents that are no numbers, unless
the hole lies inside. One product that takes the same part of every copied tile is left alone.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/k-step-skipped",
    severity="error",
    layer="data",
    title="Part of the summed extent is missing",
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
                tma_load(b_s[n], b[64 * tn:, 64 * k:], signal=full[n])
            with math:
                wait(full[n])
                wgmma(acc, a_s[n], b_s[n], init=True)
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
