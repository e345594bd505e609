"""**Checks.** Every kernel declares `launch(ctas=...)`.

**Why.** The grid is part of the program; nothing guesses it.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/no-launch",
    severity="error",
    layer="binding",
    title="A kernel without launch",
    source="Cake language reference",
    line=2,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
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
