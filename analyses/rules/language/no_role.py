"""**Checks.** Every kernel declares at least one role.

**Why.** Threads come from roles; without them nobody executes the body.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/no-role",
    severity="error",
    layer="binding",
    title="A kernel without roles",
    source="Cake language reference",
    line=2,
)

REJECTED = """
@kernel(target="sm_90a")
def empty(x: In[f32, M]):
    launch(ctas=M)
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
