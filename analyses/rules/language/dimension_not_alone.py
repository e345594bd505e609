"""**Checks.** A runtime dimension stands alone in at least one extent of some tensor.

**Why.** Its value is read from there at launch.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/dimension-not-alone",
    severity="error",
    layer="binding",
    title="A dimension that no extent gives",
    source="Cake language reference",
    line=2,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 2 * K], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
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
