"""**Checks.** A slot does not complete use n + stages before every waiter for use n has passed.

**Why.** The parity looks pending again and the waiter sleeps one round longer, or for ever.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="sync/phase-missed",
    severity="error",
    layer="progress",
    title="A waiter may be overtaken by the next completion",
    source="PTX ISA, 'mbarrier'",
    line=11,
)

REJECTED = """
@kernel(target="sm_90a")
def signal(y: Out[f32, M, 32]):
    launch(ctas=M)
    fast = role(warp)
    slow = role(warp)
    ready = mbarrier(stages=1)
    with fast:
        arrive(ready[0])
        arrive(ready[1])
    with slow:
        wait(ready[0])
        wait(ready[1])
        store(y[cta, :], fragment(f32, vec(1).cols[32], 1.0))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def signal(y: Out[f32, M, 32]):
    launch(ctas=M)
    fast = role(warp)
    slow = role(warp)
    ready = mbarrier(stages=2)
    with fast:
        arrive(ready[0])
        arrive(ready[1])
    with slow:
        wait(ready[0])
        wait(ready[1])
        store(y[cta, :], fragment(f32, vec(1).cols[32], 1.0))
"""
