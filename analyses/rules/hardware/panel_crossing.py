"""**Checks.** `.cols` of a swizzled tile stays inside one panel (a span of columns) or takes whole ones. Operands of matrix
instructions, `ldmatrix` and `stmatrix`, which address every K step by itself, may also start at a panel and end inside one.

**Why.** Panels lie one after the other in memory: columns 32 to 95 of a 128-byte panel of bf16 are not adjacent.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/panel-crossing",
    severity="error",
    layer="binding",
    title="Columns across panels of a swizzled tile",
    source="CUDA C++ Programming Guide, 'TMA Swizzle'",
    line=21,
)

REJECTED = '''
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, 64, 2 * K], d: Out[f32, M, 64]):
    where(K > 0, K % 8 == 0)
    launch(ctas=ceil_div(M, 64))
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 128, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    with math:
        acc = fragment(f32, wgmma_d[64, 64])
    for n in range(ceil_div(K, 64)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n], a[64 * cta:, 64 * n:], signal=full[n])
            tma_load(b_s[n], b[:, 128 * n:], signal=full[n])
        with math:
            wait(full[n])
            wgmma(acc, a_s[n], b_s[n].cols(32, 64), init=n == 0)
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
    with math:
        store(d[64 * cta:, :], acc)
'''

ACCEPTED = '''
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, 64, 2 * K], d: Out[f32, M, 64]):
    where(K > 0, K % 8 == 0)
    launch(ctas=ceil_div(M, 64))
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 128, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    with math:
        acc = fragment(f32, wgmma_d[64, 64])
    for n in range(ceil_div(K, 64)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n], a[64 * cta:, 64 * n:], signal=full[n])
            tma_load(b_s[n], b[:, 128 * n:], signal=full[n])
        with math:
            wait(full[n])
            wgmma(acc, a_s[n], b_s[n].cols(64, 64), init=n == 0)
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
    with math:
        store(d[64 * cta:, :], acc)
'''
