"""**Checks.** Only plain names are assigned; extents, kernel scalars, loop variables and instance numbers keep their
values; memory is written by `store` and the copy ops.

**Why.** Every access of memory is an op with declared effects; an assignment moves registers only.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/assignment",
    severity="error",
    layer="binding",
    title="Something that cannot be assigned",
    source="Cake language reference",
    line=5,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    M = 3
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
