"""**Checks.** All tcgen05 products of a kernel use one `cta_group`.

**Why.** Allocation, products and commits of a kernel are all for one CTA or all for a pair; with both the behaviour is
undefined: a commit tracks the products of its own group alone.

**Limits.** Products under a condition count as well, whatever the condition.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="hardware/tcgen05-mixed-groups",
    severity="error",
    layer="resources",
    title="Products for one CTA and for a pair in one kernel",
    source="PTX ISA, 'tcgen05: CTA pair' (all tcgen05 instructions of a kernel have the same .cta_group)",
    line=22,
)

REJECTED = """
@kernel(target="sm_100a")
def pair(a: In[bf16, 256, 64], b: In[bf16, 128, 64], d: Out[f32, 256, 128]):
    launch(ctas=2, cluster=2)
    epilogue = role(warpgroup)
    producer = role(thread)
    issuer = role(thread)
    a_s = smem(bf16, 128, 64, swizzle=128)
    b_s = smem(bf16, 64, 64, swizzle=128)
    acc = tmem(f32, 128, 128, owner=issuer)
    own = tmem(f32, 128, 64, owner=issuer)
    full = mbarrier()
    done = mbarrier()
    with producer:
        if cluster_rank == 0:
            expect(full[0])
        tma_load(a_s, a[128 * cluster_rank:, :], signal=full[0].on(0))
        tma_load(b_s, b[64 * cluster_rank:, :], signal=full[0].on(0))
    with issuer:
        if cluster_rank == 0:
            wait(full[0])
            tcgen05_mma(acc, a_s, b_s, init=True, cta_group=2)
            tcgen05_mma(own, a_s, b_s, init=True)
            tcgen05_commit(done[0], multicast=cluster)
    with epilogue:
        wait(done[0])
        x = tmem_load(acc, tmem_d[128, 128])
        tmem_load_wait()
        store(d[128 * cluster_rank:, :], x)
    sync(cluster)
"""

ACCEPTED = REJECTED.replace("            tcgen05_mma(own, a_s, b_s, init=True)\n", "").replace(
    "    own = tmem(f32, 128, 64, owner=issuer)\n", ""
)


def check(ctx: Context) -> Iterator[Diagnostic]:
    products = list(ctx.named("tcgen05_mma"))
    pairs = [o for o in products if o.attrs.get("cta_group", 1) == 2]
    alone = [o for o in products if o.attrs.get("cta_group", 1) != 2]
    if not pairs or not alone:
        return
    few, many = (alone, pairs) if len(alone) <= len(pairs) else (pairs, alone)
    yield ctx.finding(
        RULE.id,
        "error",
        f"this product has cta_group={few[0].attrs.get('cta_group', 1)}, another one of the kernel"
        f" cta_group={many[0].attrs.get('cta_group', 1)}; all tcgen05 instructions of a kernel are for one group size",
        few[0].span,
        contract="All tcgen05 instructions of a kernel have the same .cta_group.",
        related=((many[0].span, "the other group size"),),
        op="tcgen05_mma",
    )
