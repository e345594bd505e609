"""**Checks.** Whether an arrive, expect, commit or copy runs follows from extents, indices and integer inputs, not from
computed values.

**Why.** How often a barrier is used could not be derived, nor a hang excluded.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="derive/data-dependent",
    severity="error",
    layer="derivation",
    title="Barrier traffic that only data decide",
    source="Cake architecture: derived facts follow from extents and integer inputs",
    line=10,
)

REJECTED = """
@kernel(target="sm_90a")
def branch(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    other = role(warp)
    ready = mbarrier()
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        if row_sum(v) > 0.0:
            arrive(ready[0])
    with other:
        wait(ready[0])
        store(y[cta, :], load(x[cta, :], vec(1).cols[32]))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def branch(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    other = role(warp)
    ready = mbarrier()
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        arrive(ready[0])
    with other:
        wait(ready[0])
        store(y[cta, :], load(x[cta, :], vec(1).cols[32]))
"""
