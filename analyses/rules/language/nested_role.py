"""**Checks.** Role blocks stand at kernel level.

**Why.** A warp has one role.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/nested-role",
    severity="error",
    layer="binding",
    title="A role block inside a role block",
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
        with team:
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
