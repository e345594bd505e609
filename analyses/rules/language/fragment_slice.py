"""**Checks.** `.rows(start, count)` and `.cols(start, count)` of a fragment are static multiples of the layout's block,
inside the fragment.

**Why.** A slice selects registers; a finer one would cut through a register or lane.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/fragment-slice",
    severity="error",
    layer="binding",
    title="A register slice off the layout's grid",
    source="Cake language reference",
    line=12,
)

REJECTED = """
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
        store(d[:, :], acc.cols(0, 4))
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
