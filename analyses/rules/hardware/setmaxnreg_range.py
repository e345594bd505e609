"""**Checks.** `registers=` of a role is a multiple of 8 between 24 and 240. 248 and 256 are legal operands, but no
thread can use more than 255, and the assembler plans for the launch value anyway.

**Why.** ptxas rejects the kernel, pointing at generated code instead of the role.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="hardware/setmaxnreg-range",
    severity="error",
    layer="resources",
    title="registers= is not a value the instruction takes",
    source="PTX ISA, 'setmaxnreg'",
    line=5,
)

REJECTED = """
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, 64, K], d: Out[f32, M, 64]):
    where(K > 0, K % 8 == 0)
    launch(ctas=ceil_div(M, 64))
    producer = role(thread, warps=4, registers=20)
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
"""

ACCEPTED = """
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, 64, K], d: Out[f32, M, 64]):
    where(K > 0, K % 8 == 0)
    launch(ctas=ceil_div(M, 64))
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
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    for role in ctx.bound.roles:
        r = role.registers
        if r is not None and ctx.bound.target.has("setmaxnreg") and (r % 8 or not 24 <= r <= 240):
            near = min(240, max(24, (r + 7) // 8 * 8))
            yield ctx.finding(
                RULE.id,
                "error",
                f"registers={r} of role {role.name}; legal are multiples of 8 from 24 to 240, the next is {near}",
                role.span,
                contract="setmaxnreg takes 24 .. 256 in steps of 8; above 240 nothing is gained.",
                role=role.name,
            )
