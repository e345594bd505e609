"""**Checks.** Keyword arguments are those of the declaration.

**Why.** A misspelt option would otherwise silently do nothing.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/unknown-argument",
    severity="error",
    layer="binding",
    title="An argument that the op does not have",
    source="Cake language reference",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32], fil=0.0)
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
