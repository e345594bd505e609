"""**Checks.** A read of what another unit wrote is ordered by a sync or by an arrive and a wait.

**Why.** Old bytes are read, depending on which warp is ahead.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/unsynchronised-read",
    severity="error",
    layer="data",
    title="A read that nothing orders after the write",
    source="PTX ISA, 'Memory Consistency Model'",
    line=9,
)

REJECTED = """
@kernel(target="sm_90a")
def exchange(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp, count=2)
    line = smem(f32, 2, 32)
    with team as w:
        store(line[w], load(x[cta, :], vec(1).cols[32]))
        if w == 0:
            store(y[cta, :], load(line[1], vec(1).cols[32]))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def exchange(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp, count=2)
    line = smem(f32, 2, 32)
    with team as w:
        store(line[w], load(x[cta, :], vec(1).cols[32]))
        sync(team)
        if w == 0:
            store(y[cta, :], load(line[1], vec(1).cols[32]))
"""
