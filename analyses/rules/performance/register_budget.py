"""**Checks.** Per role: registers of the fragments alive at the worst statement plus 32 for addresses, counters and
scalars, against the role's `registers=` (or the launch value).

**Why.** Above the budget ptxas spills to local memory, usually in the main loop.

**Limits.** An estimate: ptxas may recompute or reuse. The build report has the real numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.registers import OVERHEAD, budget
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="performance/register-budget",
    severity="warning",
    layer="performance",
    title="Live fragments leave too few registers for the rest",
    source="NVIDIA/cutlass pull request 2219 (128x208 f32: spills at 232 registers, none at 240)",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, 216, K], d: Out[f32, M, 216]):
    where(K > 0, K % 8 == 0)
    launch(ctas=ceil_div(M, 64), ctas_per_sm=1)
    producer = role(thread, warps=4)
    math = role(warpgroup, registers=136)
    a_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 216, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    with math:
        acc = fragment(f32, wgmma_d[64, 216])
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
"""

ACCEPTED = """
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, 208, K], d: Out[f32, M, 208]):
    where(K > 0, K % 8 == 0)
    launch(ctas=ceil_div(M, 64), ctas_per_sm=1)
    producer = role(thread, warps=4)
    math = role(warpgroup, registers=136)
    a_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 208, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    with math:
        acc = fragment(f32, wgmma_d[64, 208])
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
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    roles = {r.name: r for r in ctx.bound.roles}
    for row in budget(ctx.bound, ctx.derived):
        if row["left"] < 0 and row["fragments"] > 0:
            parts = ", ".join(f"{a['name']} {a['registers']}" for a in row["alive"][:6])
            yield ctx.finding(
                RULE.id,
                "warning",
                f"role {row['role']} has {row['budget']} registers per thread ({row['source']}); its fragments need"
                f" {row['fragments']} at line {row['line']} ({parts}) and about {OVERHEAD} go to the rest",
                roles[row["role"]].span,
                contract="What does not fit into registers is spilled to local memory.",
                role=row["role"],
            )
