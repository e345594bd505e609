"""**Checks.** Parameters, tunables, kernels, resources and targets have names of their own.

**Why.** Two resources under one name: the reader and the analyses would disagree on which is meant.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/duplicate-name",
    severity="error",
    layer="binding",
    title="A name is declared twice",
    source="Cake language reference",
    line=5,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
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
