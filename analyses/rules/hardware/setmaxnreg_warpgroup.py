"""**Checks.** The roles with `registers=` are made of whole warpgroups: every warpgroup that has one of them is four warps of
roles that all say the same number. One role of 4 warps does it (a thread role says `warps=4`), and so do several roles
of one warpgroup that agree, such as a thread role with `warps=2` and two warps of another one.

**Why.** When only some warps of a warpgroup lower their count nothing is released, and the role that raises its own
waits for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="hardware/setmaxnreg-warpgroup",
    severity="error",
    layer="resources",
    title="A role with registers= is not made of whole warpgroups",
    source="PTX ISA, 'setmaxnreg': executed by all warps of a warpgroup",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, 64, K], d: Out[f32, M, 64]):
    where(K > 0, K % 8 == 0)
    launch(ctas=ceil_div(M, 64))
    math = role(warpgroup)
    producer = role(thread, registers=24)
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
    math = role(warpgroup)
    producer = role(thread, warps=4, registers=24)
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
    if not ctx.bound.target.has("setmaxnreg") or all(r.registers is None for r in ctx.bound.roles):
        return
    wants = {w: role for role in ctx.bound.roles for w in range(role.first_warp, role.first_warp + role.warps)}
    told: set[str] = set()
    for first in range(0, max(wants, default=-1) + 1, 4):
        group = [wants.get(w) for w in range(first, first + 4)]
        asking = [r for r in group if r is not None and r.registers is not None]
        if not asking or (None not in group and len({r.registers for r in group if r is not None}) == 1):
            continue
        for role in asking:
            if role.name in told:
                continue
            told.add(role.name)
            last = role.first_warp + role.warps - 1
            others = sorted({r.name for r in group if r is not None and r.registers != role.registers})
            why = f"; {', '.join(others)} in the same warpgroup asks for another number" if others else ""
            yield ctx.finding(
                RULE.id,
                "error",
                f"role {role.name} with registers={role.registers} is made of warps {role.first_warp} .. {last};"
                f" whole warpgroups are needed{why}",
                role.span,
                contract="setmaxnreg is executed by all four warps of a warpgroup, with one value.",
                role=role.name,
            )
