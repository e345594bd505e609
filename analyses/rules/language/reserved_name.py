"""**Checks.** Names of ops, functions, declarations and built-ins are not assigned.

**Why.** A reader must know what a call is.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/reserved-name",
    severity="error",
    layer="binding",
    title="A declared name that hides an op or function",
    source="Cake language reference",
    line=5,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    load = 3
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
