"""**Checks.** Between a `tmem_store` and the next access of its columns stands `tmem_store_wait`.

**Why.** Old values are read.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/tmem-store-wait",
    severity="error",
    layer="data",
    title="A tensor memory store used before it is complete",
    source="PTX ISA, 'tcgen05.wait'",
    line=29,
)

REJECTED = """
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
        tmem_store(acc, fragment(f32, tmem_d[128, 64], 1.0))
        x = tmem_load(acc, tmem_d[128, 64])
        tmem_load_wait()
        store(d[:, :], x)
    with producer:
        for s in range(2):
            wait(free[ceil_div(K, 64) - 2 + s])
"""

ACCEPTED = """
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
        tmem_store(acc, fragment(f32, tmem_d[128, 64], 1.0))
        tmem_store_wait()
        x = tmem_load(acc, tmem_d[128, 64])
        tmem_load_wait()
        store(d[:, :], x)
    with producer:
        for s in range(2):
            wait(free[ceil_div(K, 64) - 2 + s])
"""
