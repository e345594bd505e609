"""**Checks.** 8-bit and tf32 operands are not transposed views.

**Why.** There is no such form; other compilers silently fall back to a slower instruction.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/mma-major",
    severity="error",
    layer="binding",
    title="An 8-bit operand that is not K-major",
    source="PTX ISA, 'wgmma.mma_async': transpose immediates exist for f16 and bf16 only",
    line=21,
)

REJECTED = '''
@kernel(target="sm_90a")
def product(a: In[e4m3, M, K], b: In[e4m3, 64, K], d: Out[f32, M, 64]):
    where(K > 0, K % 16 == 0)
    launch(ctas=ceil_div(M, 64))
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(e4m3, 64, 64, stages=2, swizzle=64)
    b_s = smem(e4m3, 64, 64, stages=2, swizzle=64)
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
            wgmma(acc, a_s[n], b_s[n].T, init=n == 0)
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
    with math:
        store(d[64 * cta:, :], acc)
'''

ACCEPTED = '''
@kernel(target="sm_90a")
def product(a: In[e4m3, M, K], b: In[e4m3, 64, K], d: Out[f32, M, 64]):
    where(K > 0, K % 16 == 0)
    launch(ctas=ceil_div(M, 64))
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(e4m3, 64, 64, stages=2, swizzle=64)
    b_s = smem(e4m3, 64, 64, stages=2, swizzle=64)
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
