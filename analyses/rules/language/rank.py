"""**Checks.** The kept dimensions of a region, the shape of the view and the shape of the registers agree in number and
size.

**Why.** A copy between different shapes has no meaning; dropping a dimension is written as an index.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/rank",
    severity="error",
    layer="binding",
    title="Dimensions that do not correspond",
    source="Cake language reference",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta:, :], vec(1).cols[32])
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
