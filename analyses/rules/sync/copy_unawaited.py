"""**Checks.** Every use of a barrier that a copy signals is waited for in the receiving CTA before it exits.

**Why.** The copy may still write when the shared memory belongs to the next block.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="sync/copy-unawaited",
    severity="error",
    layer="progress",
    title="A copy into a block that nobody waits for",
    source="PTX ISA, 'mbarrier'",
    line=10,
)

REJECTED = """
@kernel(target="sm_90a")
def fetch(x: In[f32, M, 64], y: Out[f32, M, 64]):
    launch(ctas=M)
    producer = role(thread)
    reader = role(warp)
    line = smem(f32, 64)
    full = mbarrier()
    with producer:
        expect(full[0])
        bulk_load(line, x[cta, :], signal=full[0])
    with reader:
        store(y[cta, :], fragment(f32, vec(2).cols[64], 0.0))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def fetch(x: In[f32, M, 64], y: Out[f32, M, 64]):
    launch(ctas=M)
    producer = role(thread)
    reader = role(warp)
    line = smem(f32, 64)
    full = mbarrier()
    with producer:
        expect(full[0])
        bulk_load(line, x[cta, :], signal=full[0])
    with reader:
        wait(full[0])
        store(y[cta, :], load(line, vec(2).cols[64]))
"""
