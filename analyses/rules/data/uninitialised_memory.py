"""**Checks.** Every byte of shared and tensor memory that is read was written before, on every witness shape.

**Why.** Shared memory holds what the last kernel left; NaN times zero is NaN.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/uninitialised-memory",
    severity="error",
    layer="data",
    title="Memory read that nothing has written",
    source="Cake language reference, 'Declarations'",
    line=8,
)

REJECTED = """
@kernel(target="sm_90a")
def turn(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    line = smem(f32, 32)
    with team:
        sync(warp)
        store(y[cta, :], load(line, vec(2).cols[32]))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def turn(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    line = smem(f32, 32)
    with team:
        store(line, load(x[cta, :], vec(1).cols[32]))
        sync(warp)
        store(y[cta, :], load(line, vec(2).cols[32]))
"""
