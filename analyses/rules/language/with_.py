"""**Checks.** `with ROLE:`, `with ROLE as i:`, `with elected():` or `with warps() as w:`.

**Why.** These are the only scopes: they say who executes.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/with",
    severity="error",
    layer="binding",
    title="A with block of another form",
    source="Cake language reference",
    line=5,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with cta:
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
