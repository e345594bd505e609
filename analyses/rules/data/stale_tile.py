"""**Checks.** Where an output names the extent of an operand's rows or columns, a tile of a product is stored at the coordinates that it
was computed from.

**Why.** An accumulator, stage or register tile of another step is stored: all values are right, at a wrong place.

**Limits.** Reported if nothing else in the tile comes from the place where it is stored and the distance is always the same, or if
other tiles of the same store are at their place. Permutations, taps, lags and loaded indices are left alone.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/stale-tile",
    severity="error",
    layer="data",
    title="A product is stored where another tile belongs",
    source="PTX ISA, 'Matrix multiply-accumulate instructions': D = A * B + C over one common index",
    line=32,
)

REJECTED = """
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[f32, M, N]):
    where(K > 0, K % 8 == 0, N % 4 == 0)
    tiles = tile_space(ceil_div(M, 128), ceil_div(N, 64))
    launch(ctas=min(tiles.count, device.sms))
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 128, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    n = 0
    for tm, tn in tiles.persistent():
        with math:
            upper = fragment(f32, wgmma_d[64, 64])
            lower = fragment(f32, wgmma_d[64, 64])
        for k in range(ceil_div(K, 64)):
            with producer:
                wait(free[n - 2])
                expect(full[n])
                tma_load(a_s[n], a[128 * tm:, 64 * k:], signal=full[n])
                tma_load(b_s[n], b[64 * tn:, 64 * k:], signal=full[n])
            with math:
                wait(full[n])
                wgmma(upper, a_s[n].rows(0, 64), b_s[n], init=k == 0)
                wgmma(lower, a_s[n].rows(64, 64), b_s[n], init=k == 0)
                wgmma_commit()
                wgmma_wait(0)
                arrive(free[n])
            n += 1
        with math:
            store(d[128 * tm:, 64 * tn:], lower)
            store(d[128 * tm + 64:, 64 * tn:], upper)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[f32, M, N]):
    where(K > 0, K % 8 == 0, N % 4 == 0)
    tiles = tile_space(ceil_div(M, 128), ceil_div(N, 64))
    launch(ctas=min(tiles.count, device.sms))
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 128, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    n = 0
    for tm, tn in tiles.persistent():
        with math:
            upper = fragment(f32, wgmma_d[64, 64])
            lower = fragment(f32, wgmma_d[64, 64])
        for k in range(ceil_div(K, 64)):
            with producer:
                wait(free[n - 2])
                expect(full[n])
                tma_load(a_s[n], a[128 * tm:, 64 * k:], signal=full[n])
                tma_load(b_s[n], b[64 * tn:, 64 * k:], signal=full[n])
            with math:
                wait(full[n])
                wgmma(upper, a_s[n].rows(0, 64), b_s[n], init=k == 0)
                wgmma(lower, a_s[n].rows(64, 64), b_s[n], init=k == 0)
                wgmma_commit()
                wgmma_wait(0)
                arrive(free[n])
            n += 1
        with math:
            store(d[128 * tm:, 64 * tn:], upper)
            store(d[128 * tm + 64:, 64 * tn:], lower)
"""
