"""**Checks.** Where lanes of one unit read what other lanes wrote, `sync(warp)` or `sync(warpgroup)` stands between.
Equal lane maps need none.

**Why.** Lanes of a warp do not run in lockstep.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/lane-race",
    severity="error",
    layer="data",
    title="Lanes exchange data through memory without a sync",
    source="CUDA C++ Programming Guide, 'Independent Thread Scheduling'",
    line=8,
)

REJECTED = """
@kernel(target="sm_90a")
def turn(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    line = smem(f32, 32)
    with team:
        store(line, load(x[cta, :], vec(1).cols[32]))
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
