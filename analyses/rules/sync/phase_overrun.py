"""**Checks.** An arrival for use n comes after use n - stages of that slot has completed, and its agent knows it.

**Why.** The hardware counts it for the phase the slot is in: parity then tells the waiters something else.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="sync/phase-overrun",
    severity="error",
    layer="progress",
    title="An arrival that meets another phase than its own",
    source="PTX ISA, 'mbarrier'",
    line=12,
)

REJECTED = """
@kernel(target="sm_90a")
def twice(y: Out[f32, M, 32]):
    launch(ctas=M)
    early = role(warp)
    late = role(warp)
    ready = mbarrier()
    with early:
        arrive(ready[0])
        wait(ready[0])
        store(y[cta, :], fragment(f32, vec(1).cols[32], 1.0))
    with late:
        arrive(ready[1])
"""

ACCEPTED = """
@kernel(target="sm_90a")
def twice(y: Out[f32, M, 32]):
    launch(ctas=M)
    early = role(warp)
    late = role(warp)
    ready = mbarrier(stages=2)
    with early:
        arrive(ready[0])
        wait(ready[0])
        store(y[cta, :], fragment(f32, vec(1).cols[32], 1.0))
    with late:
        arrive(ready[1])
"""
