"""**Checks.** All `tmem` declarations of a kernel name the same `owner=` role.

**Why.** One warp allocates the columns of the whole block and frees them: two allocations could wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="hardware/tmem-owner",
    severity="error",
    layer="resources",
    title="Tensor memory tiles name different owners",
    source="PTX ISA, 'tcgen05.alloc' and 'tcgen05.dealloc'",
    line=11,
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
    more = tmem(f32, 128, 32, owner=producer)
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
        x = tmem_load(acc, tmem_d[128, 64])
        tmem_load_wait()
        store(d[:, :], x)
    with producer:
        for s in range(2):
            wait(free[ceil_div(K, 64) - 2 + s])
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    tiles = [b for b in ctx.bound.buffers if b.space == "tmem"]
    for b in tiles[1:]:
        if b.owner is not tiles[0].owner and b.owner is not None and tiles[0].owner is not None:
            yield ctx.finding(
                RULE.id,
                "error",
                f"'{b.name}' is owned by {b.owner.name}, '{tiles[0].name}' by {tiles[0].owner.name};"
                " one role allocates for the block",
                b.span,
                contract="One warp allocates and frees the tensor memory of a block.",
                related=((tiles[0].span, f"'{tiles[0].name}' is declared here"),),
                resource=b.name,
            )
