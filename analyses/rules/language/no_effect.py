"""**Checks.** Declarations get a name, and results of ops are used.

**Why.** Usually a lost assignment.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/no-effect",
    severity="error",
    layer="binding",
    title="A statement without effect",
    source="Cake language reference",
    line=7,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        row_sum(v)
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
