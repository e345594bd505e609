"""**Checks.** The static conditions of `where` hold for the bound tunables.

**Why.** `where` relates tunables to each other; a variant outside it was never meant to exist.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/where-unsatisfied",
    severity="error",
    layer="binding",
    title="The bindings contradict where",
    source="Cake language reference",
    line=3,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    where(2 > 3)
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
