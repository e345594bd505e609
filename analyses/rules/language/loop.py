"""**Checks.** A `for` runs over `range(...)`, `unroll(...)` or `SPACE.persistent()`, with a positive step.

**Why.** Trip counts must follow from extents and inputs, so that roles agree on them.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/loop",
    severity="error",
    layer="binding",
    title="A loop over something that is not a loop range",
    source="Cake language reference",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        for i in range(0, 4, 0):
            store(y[cta, :], load(x[cta, :], vec(1).cols[32]))
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
