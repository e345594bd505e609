"""**Checks.** Shapes, stages, layouts, register slices, unroll bounds, wait depths and swizzles are static.

**Why.** They become immediates of instructions or the shape of registers.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/not-static",
    severity="error",
    layer="binding",
    title="A value that must be known when parameters are bound",
    source="Cake language reference",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, N], y: Out[f32, M, N]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[N])
        store(y[cta, :], v + v)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
"""
