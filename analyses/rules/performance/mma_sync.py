"""**Checks.** `mma` (mma.sync) is used on sm_90a or on a target with tcgen05.

**Why.** mma.sync reaches about 0.6 of the rate of wgmma on Hopper, and less of tcgen05 on Blackwell; nothing is
exchanged behind your back, so the choice is yours.

**Limits.** Right for small or awkward shapes, and when the time is spent elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="performance/mma-sync",
    severity="advice",
    layer="performance",
    title="mma.sync on a target with faster tensor-core instructions",
    source="NVIDIA H100 architecture paper; public microbenchmarks of mma.sync on H100 (about 0.62 of the wgmma rate)",
    line=11,
)

REJECTED = """
@kernel(target="sm_90a")
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
    target = ctx.bound.target
    better = "wgmma" if target.has("wgmma") else "tcgen05_mma" if target.has("tcgen05") else None
    first = next(ctx.named("mma"), None)
    if better and first is not None:
        yield ctx.finding(
            RULE.id,
            "advice",
            f"mma.sync runs well below the tensor-core peak of {target.name}; {better} reaches it",
            first.span,
            role=first.role,
            op="mma",
        )
