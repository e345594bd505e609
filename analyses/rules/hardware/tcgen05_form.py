"""**Checks.** `cta_group=` is 1 or 2.

**Why.** A product is issued for one block or for a pair.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/tcgen05-form",
    severity="error",
    layer="binding",
    title="A CTA group that does not exist",
    source="PTX ISA, 'tcgen05.mma'",
    line=22,
)

REJECTED = '''
@kernel(target="sm_100a")
def tensor(a: In[bf16, 128, K], b: In[bf16, 64, K], d: Out[f32, 128, 64]):
    where(K > 0, K % 8 == 0)
    launch(ctas=1)
    epilogue = role(warpgroup)
    producer = role(thread)
    issuer = role(thread)
    a_s = smem(bf16, 128, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    acc = tmem(f32, 128, 64, owner=issuer)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    done = mbarrier()
    for n in range(ceil_div(K, 64)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n], a[:, 64 * n:], signal=full[n])
            tma_load(b_s[n], b[:, 64 * n:], signal=full[n])
        with issuer:
            wait(full[n])
            tcgen05_mma(acc, a_s[n], b_s[n], init=n == 0, cta_group=3)
            tcgen05_commit(free[n])
    with issuer:
        tcgen05_commit(done[0])
    with epilogue:
        wait(done[0])
        x = tmem_load(acc, tmem_d[128, 64])
        tmem_load_wait()
        store(d[:, :], x)
    with producer:
        for s in range(2):
            wait(free[ceil_div(K, 64) - 2 + s])
'''

ACCEPTED = '''
@kernel(target="sm_100a")
def tensor(a: In[bf16, 128, K], b: In[bf16, 64, K], d: Out[f32, 128, 64]):
    where(K > 0, K % 8 == 0)
    launch(ctas=1)
    epilogue = role(warpgroup)
    producer = role(thread)
    issuer = role(thread)
    a_s = smem(bf16, 128, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    acc = tmem(f32, 128, 64, owner=issuer)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    done = mbarrier()
    for n in range(ceil_div(K, 64)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n], a[:, 64 * n:], signal=full[n])
            tma_load(b_s[n], b[:, 64 * n:], signal=full[n])
        with issuer:
            wait(full[n])
            tcgen05_mma(acc, a_s[n], b_s[n], init=n == 0)
            tcgen05_commit(free[n])
    with issuer:
        tcgen05_commit(done[0])
    with epilogue:
        wait(done[0])
        x = tmem_load(acc, tmem_d[128, 64])
        tmem_load_wait()
        store(d[:, :], x)
    with producer:
        for s in range(2):
            wait(free[ceil_div(K, 64) - 2 + s])
'''
