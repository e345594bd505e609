"""**Checks.** The launch gives every thread R0 = floor8(65536 / (threads * ctas_per_sm)) registers, at most 255. The
sum over roles of threads times `registers=` (R0 where a role asks for nothing) is at most threads times R0.

**Why.** setmaxnreg.inc blocks until the pool has enough registers. When the sum is larger it blocks for ever: a hang
without message.

**Limits.** Roles that lower their count must do so at their start; lowering emits it there.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="sync/register-pool",
    severity="error",
    layer="resources",
    title="The roles ask for more registers than the block was launched with",
    source="PTX ISA, 'setmaxnreg'; CUDA occupancy calculator (registers per thread at launch)",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, 64, K], d: Out[f32, M, 64]):
    where(K > 0, K % 8 == 0)
    launch(ctas=ceil_div(M, 64), ctas_per_sm=2)
    producer = role(thread, warps=4, registers=120)
    math = role(warpgroup, registers=200)
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
"""

ACCEPTED = """
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, 64, K], d: Out[f32, M, 64]):
    where(K > 0, K % 8 == 0)
    launch(ctas=ceil_div(M, 64), ctas_per_sm=2)
    producer = role(thread, warps=4, registers=24)
    math = role(warpgroup, registers=200)
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
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    launch = ctx.derived.launch
    if not launch.setmaxnreg:
        return
    pool = launch.threads * launch.r0
    rows = []
    for role in ctx.bound.roles:
        change = launch.setmaxnreg.get(role.name)
        rows.append((role, 32 * role.warps * (change.registers if change else launch.r0)))
    total = sum(n for _, n in rows)
    raising = [r for r, _ in rows if r.name in launch.setmaxnreg and launch.setmaxnreg[r.name].kind == "inc"]
    if total > pool and raising:
        # the role that wants most is the one that waits
        role = max(raising, key=lambda r: r.registers or 0)
        parts = " + ".join(f"{r.name} {n}" for r, n in rows)
        yield ctx.finding(
            RULE.id,
            "error",
            f"the roles ask for {total} registers ({parts});"
            f" the block is launched with {launch.threads} x {launch.r0} = {pool}",
            role.span,
            contract="setmaxnreg.inc waits until the block's pool has enough registers; the pool never grows.",
            related=tuple((r.span, f"{n} registers") for r, n in rows if r is not role),
            role=role.name,
        )
