"""**Checks.** A fragment without fill is written before it is read.

**Why.** Registers hold what was there before.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/uninitialised-register",
    severity="error",
    layer="data",
    title="A fragment read that holds nothing",
    source="Cake language reference, 'Declarations'",
    line=7,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = fragment(f32, vec(1).cols[32])
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
