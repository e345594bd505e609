"""**Checks.** Every round that some unit begins is completed by all its participants before the kernel ends.

**Why.** A sync waits for ever; an arrive leaves a count behind that the next user of the id inherits.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="sync/named-left-open",
    severity="error",
    layer="progress",
    title="A round of a named barrier that is never completed",
    source="PTX ISA, 'bar, barrier'",
    line=13,
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
    with reader:
        sync(ready[0])
        arrive(ready[0])
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
