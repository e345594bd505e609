"""**Checks.** Rows and columns are multiples of the layout's block; vec moves at most 16 bytes per thread.

**Why.** The layout is owned by an instruction form with a fixed tile.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/layout-shape",
    severity="error",
    layer="binding",
    title="A shape that the layout does not have",
    source="Cake language reference",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(8).cols[256])
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
