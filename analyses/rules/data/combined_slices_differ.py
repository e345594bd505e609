"""**Checks.** Where a tile of a product and a copied vector or tile name one extent along the same axis, they are combined at the
same coordinates of it.

**Why.** Row m of a product meets the scale of another row, column n the bias of another column.

**Limits.** Shifts below 8 (the next token's label, a tap), by a half, third or quarter of the extent, and those that vary without ever
being 0, are left alone.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/combined-slices-differ",
    severity="error",
    layer="data",
    title="A product is combined with another slice",
    source="PTX ISA, 'Matrix multiply-accumulate instructions': D = A * B + C over one common index",
    line=30,
)

REJECTED = """
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, N, K], bias: In[f32, N], d: Out[f32, M, N]):
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
            store(d[64 * tm:, 64 * tn:], acc + load(bias[64 * tn + 16:], wgmma_d.cols[64])[None, :])
"""

ACCEPTED = """
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, N, K], bias: In[f32, N], d: Out[f32, M, N]):
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
            store(d[64 * tm:, 64 * tn:], acc + load(bias[64 * tn:], wgmma_d.cols[64])[None, :])
"""
