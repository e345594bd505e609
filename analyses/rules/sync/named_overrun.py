"""**Checks.** A unit that only arrives knows that the previous round has completed before it arrives again.

**Why.** Both arrivals fall into one round: the count is reached by the wrong threads.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="sync/named-overrun",
    severity="error",
    layer="progress",
    title="A second round begun before the first is complete",
    source="PTX ISA, 'bar, barrier'",
    line=11,
)

REJECTED = """
@kernel(target="sm_90a")
def turns(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    writer = role(warp)
    reader = role(warp)
    line = smem(f32, 32)
    ready = named_barrier(1)
    with writer:
        store(line, load(x[cta, :], vec(1).cols[32]))
        arrive(ready[0])
        arrive(ready[0])
    with reader:
        sync(ready[0])
        sync(ready[0])
        store(y[cta, :], load(line, vec(1).cols[32]))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def turns(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    writer = role(warp)
    reader = role(warp)
    line = smem(f32, 32)
    ready = named_barrier(1)
    with writer:
        store(line, load(x[cta, :], vec(1).cols[32]))
        arrive(ready[0])
    with reader:
        sync(ready[0])
        store(y[cta, :], load(line, vec(1).cols[32]))
"""
