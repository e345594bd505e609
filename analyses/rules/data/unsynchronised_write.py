"""**Checks.** Two writes of the same memory by different units are ordered.

**Why.** Which of the two remains depends on timing.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/unsynchronised-write",
    severity="error",
    layer="data",
    title="Two writes that nothing orders",
    source="PTX ISA, 'Memory Consistency Model'",
    line=7,
)

REJECTED = """
@kernel(target="sm_90a")
def exchange(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp, count=2)
    line = smem(f32, 2, 32)
    with team as w:
        store(line[1], load(x[cta, :], vec(1).cols[32]))
        sync(team)
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
