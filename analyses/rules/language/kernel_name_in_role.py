"""**Checks.** A role block reads kernel-level names and does not assign them.

**Why.** The other roles would go on with the old value: counters would drift apart.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/kernel-name-in-role",
    severity="error",
    layer="binding",
    title="A kernel-level name assigned in a role",
    source="Cake language reference",
    line=9,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    n = 0
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
        n = 1
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    n = 0
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
"""
