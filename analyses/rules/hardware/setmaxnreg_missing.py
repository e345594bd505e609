"""**Checks.** `registers=` is written for a target that has setmaxnreg.

**Why.** On other targets all threads keep the launch value; a schedule that counts on more registers spills.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="hardware/setmaxnreg-missing",
    severity="warning",
    layer="resources",
    title="registers= has no effect on this target",
    source="PTX ISA, 'setmaxnreg': sm_90a, sm_100a, sm_120a",
    line=5,
)

REJECTED = """
@kernel(target="sm_80")
def small(a: In[bf16, 16, K], b: In[bf16, 8, K], d: Out[f32, 16, 8]):
    where(K % 16 == 0)
    launch(ctas=1)
    math = role(warp, registers=128)
    with math:
        acc = fragment(f32, mma_d[16, 8], 0)
        for k in range(K // 16):
            fa = load(a[:, 16 * k:], mma_a[16, 16])
            fb = load(b[:, 16 * k:], mma_b[8, 16])
            mma(acc, fa, fb)
        store(d[:, :], acc)
"""

ACCEPTED = """
@kernel(target="sm_80")
def small(a: In[bf16, 16, K], b: In[bf16, 8, K], d: Out[f32, 16, 8]):
    where(K % 16 == 0)
    launch(ctas=1)
    math = role(warp)
    with math:
        acc = fragment(f32, mma_d[16, 8], 0)
        for k in range(K // 16):
            fa = load(a[:, 16 * k:], mma_a[16, 16])
            fb = load(b[:, 16 * k:], mma_b[8, 16])
            mma(acc, fa, fb)
        store(d[:, :], acc)
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    if ctx.bound.target.has("setmaxnreg"):
        return
    for role in ctx.bound.roles:
        if role.registers is not None:
            yield ctx.finding(
                RULE.id,
                "warning",
                f"registers={role.registers} of role {role.name} is ignored: {ctx.bound.target.name} has no setmaxnreg;"
                f" every thread keeps {ctx.derived.launch.r0}",
                role.span,
                role=role.name,
            )
