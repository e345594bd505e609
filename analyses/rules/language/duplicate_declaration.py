"""**Checks.** A kernel has one `launch`.

**Why.** There is one grid.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/duplicate-declaration",
    severity="error",
    layer="binding",
    title="launch declared twice",
    source="Cake language reference",
    line=4,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
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
