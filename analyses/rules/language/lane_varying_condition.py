"""**Checks.** Conditions of `if` and `while` are uniform over the unit; a mask selects (`select`) or masks (`when=`).

**Why.** Collective instructions under a divergent branch hang or read garbage.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/lane-varying-condition",
    severity="error",
    layer="binding",
    title="A branch on a value that differs between lanes",
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
        if v > 0.0:
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
