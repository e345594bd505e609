"""**Checks.** Storage that two tiles share is read through the tile that was written last.

**Why.** The bytes of the other tile are read as if they were this one's.

**Limits.** Tiles of one form (element type, shape, stages, swizzle) are two names of the same tile until both have been written.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/overlay-stale-read",
    severity="error",
    layer="data",
    title="Shared storage read through the wrong name",
    source="Cake language reference, 'Declarations': over=",
    line=11,
)

REJECTED = """
@kernel(target="sm_90a")
def overlay(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    first = smem(f32, 32)
    second = smem(f32, 32, over=first)
    with team:
        store(first, load(x[cta, :], vec(1).cols[32]))
        v = load(first, vec(1).cols[32])
        store(second, v + v)
        store(y[cta, :], load(first, vec(1).cols[32]))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def overlay(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    first = smem(f32, 32)
    second = smem(f32, 32, over=first)
    with team:
        store(first, load(x[cta, :], vec(1).cols[32]))
        v = load(first, vec(1).cols[32])
        store(second, v + v)
        store(y[cta, :], load(second, vec(1).cols[32]))
"""
