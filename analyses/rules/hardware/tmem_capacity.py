"""**Checks.** The columns of all tensor memory tiles and stages, rounded up to a power of two of at least 32, are at
most 512 per SM, counting `ctas_per_sm` blocks.

**Why.** tcgen05.alloc blocks until columns are free: too many in one block never return, and a second block waits
for the first.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="hardware/tmem-capacity",
    severity="error",
    layer="resources",
    title="Tensor memory exceeds 512 columns",
    source="PTX ISA, 'Tensor Memory' and 'tcgen05.alloc'",
    line=10,
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
    acc = tmem(f32, 128, 64, stages=9, owner=issuer)
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
            tcgen05_mma(acc[0], a_s[n], b_s[n], init=n == 0)
            tcgen05_commit(free[n])
    with issuer:
        tcgen05_commit(done[0])
    with epilogue:
        wait(done[0])
        x = tmem_load(acc[0], tmem_d[128, 64])
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
    d, launch = ctx.derived, ctx.bound.launch
    if not d.tmem:
        return
    limit = ctx.bound.target.value("tmem_columns")
    need = d.tmem_columns * launch.ctas_per_sm
    if need > limit:
        first, *rest = d.tmem
        blocks = f" for each of {launch.ctas_per_sm} blocks" if launch.ctas_per_sm > 1 else ""
        yield ctx.finding(
            RULE.id,
            "error",
            f"tensor memory needs {d.tmem_columns} columns{blocks}; an SM has {limit}",
            first.span,
            contract="Allocations are powers of two from 32 to 512 columns, 512 per SM for all resident blocks.",
            related=tuple((b.span, f"{b.name} starts at column {d.tmem[b]}") for b in rest),
            resource=first.name,
        )
