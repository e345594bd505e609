"""**Checks.** An overlay starts at a multiple of its own swizzle period.

**Why.** The swizzle uses absolute address bits: from another start the pattern is shifted and every row is read
wrong.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="derive/overlay-alignment",
    severity="error",
    layer="derivation",
    title="A swizzled overlay at a start that its pattern does not allow",
    source="CUDA C++ Programming Guide, 'TMA Swizzle'",
    line=7,
)

REJECTED = """
@kernel(target="sm_90a")
def overlay(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 4))
    team = role(warp)
    first = smem(f32, 32)
    wide = smem(bf16, 8, 64)
    tile = smem(bf16, 4, 64, swizzle=128, over=wide)
    with team:
        store(first, fragment(f32, vec(1).cols[32], 0.0))
        store(tile, load(x[4 * cta:, :], vec(8, 8)[4, 64]))
        sync(warp)
        store(y[4 * cta:, :], load(tile, vec(8, 8)[4, 64]))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def overlay(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 4))
    team = role(warp)
    wide = smem(bf16, 8, 64)
    first = smem(f32, 32)
    tile = smem(bf16, 4, 64, swizzle=128, over=wide)
    with team:
        store(first, fragment(f32, vec(1).cols[32], 0.0))
        store(tile, load(x[4 * cta:, :], vec(8, 8)[4, 64]))
        sync(warp)
        store(y[4 * cta:, :], load(tile, vec(8, 8)[4, 64]))
"""
