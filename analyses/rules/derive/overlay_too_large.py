"""**Checks.** An overlay with its stages rounded to the swizzle period fits into the tile under it.

**Why.** It would run into the next tile although the bare bytes fit.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="derive/overlay-too-large",
    severity="error",
    layer="derivation",
    title="Stages of an overlay reach past the tile under it",
    source="Cake language reference: stages are aligned to the swizzle period",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def overlay(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 4))
    team = role(warp)
    wide = smem(bf16, 12, 64)
    slots = smem(bf16, 4, 64, stages=3, swizzle=128, over=wide)
    with team:
        store(slots[0], load(x[4 * cta:, :], vec(8, 8)[4, 64]))
        sync(warp)
        store(y[4 * cta:, :], load(slots[0], vec(8, 8)[4, 64]))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def overlay(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 4))
    team = role(warp)
    wide = smem(bf16, 24, 64)
    slots = smem(bf16, 4, 64, stages=3, swizzle=128, over=wide)
    with team:
        store(slots[0], load(x[4 * cta:, :], vec(8, 8)[4, 64]))
        sync(warp)
        store(y[4 * cta:, :], load(slots[0], vec(8, 8)[4, 64]))
"""
