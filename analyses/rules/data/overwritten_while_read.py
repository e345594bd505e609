"""**Checks.** A plain store is ordered after every read of what it overwrites by another unit.

**Why.** The reader sees half of the new data.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/overwritten-while-read",
    severity="error",
    layer="data",
    title="Memory overwritten while others still read it",
    source="PTX ISA, 'Memory Consistency Model'",
    line=9,
)

REJECTED = """
@kernel(target="sm_90a")
def relay(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=1)
    team = role(warp, count=2)
    line = smem(f32, 32)
    with team as w:
        for i in range(M):
            if w == 0:
                store(line, load(x[i, :], vec(1).cols[32]))
            sync(team)
            if w == 1:
                store(y[i, :], load(line, vec(1).cols[32]))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def relay(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=1)
    team = role(warp, count=2)
    line = smem(f32, 32)
    with team as w:
        for i in range(M):
            if w == 0:
                store(line, load(x[i, :], vec(1).cols[32]))
            sync(team)
            if w == 1:
                store(y[i, :], load(line, vec(1).cols[32]))
            sync(team)
"""
