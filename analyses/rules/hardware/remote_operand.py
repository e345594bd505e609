"""**Checks.** wgmma and tcgen05 operands (a pair's tcgen05 reads both by itself), what ldmatrix reads and what a copy to global memory
reads lie in the own CTA.

**Why.** Descriptors and these instructions address shared::cta; `load` and `store` reach into another block.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/remote-operand",
    severity="error",
    layer="binding",
    title="A matrix operand in another block",
    source="PTX ISA, 'wgmma.mma_async': descriptors address shared::cta",
    line=21,
)

REJECTED = '''
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, 64, K], d: Out[f32, M, 64]):
    where(K > 0, K % 8 == 0)
    launch(ctas=2 * ceil_div(M, 128), cluster=2)
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    with math:
        acc = fragment(f32, wgmma_d[64, 64])
    for n in range(ceil_div(K, 64)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n], a[64 * cta:, 64 * n:], signal=full[n])
            tma_load(b_s[n], b[:, 64 * n:], signal=full[n])
        with math:
            wait(full[n])
            wgmma(acc, a_s[n], b_s[n].on(0), init=n == 0)
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
    with math:
        store(d[64 * cta:, :], acc)
'''

ACCEPTED = '''
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, 64, K], d: Out[f32, M, 64]):
    where(K > 0, K % 8 == 0)
    launch(ctas=2 * ceil_div(M, 128), cluster=2)
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    with math:
        acc = fragment(f32, wgmma_d[64, 64])
    for n in range(ceil_div(K, 64)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n], a[64 * cta:, 64 * n:], signal=full[n])
            tma_load(b_s[n], b[:, 64 * n:], signal=full[n])
        with math:
            wait(full[n])
            wgmma(acc, a_s[n], b_s[n], init=n == 0)
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
    with math:
        store(d[64 * cta:, :], acc)
'''
