"""**Checks.** Only ops with results stand in expressions.

**Why.** Stores, waits and arrivals give nothing.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/no-value",
    severity="error",
    layer="binding",
    title="An op without result used as a value",
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
        store(y[cta, :], v + sync(warp))
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
