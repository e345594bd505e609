"""**Checks.** `over=x` needs at most the bytes of x.

**Why.** It would run into the next tile.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/over-too-large",
    severity="error",
    layer="binding",
    title="An overlay larger than the tile under it",
    source="Cake language reference",
    line=6,
)

REJECTED = '''
@kernel(target="sm_80")
def shared_copy(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 16))
    team = role(warp)
    tile = smem(bf16, 16, 64)
    wide = smem(f32, 16, 64, over=tile)
    with team:
        cp_async(tile, x[16 * cta:, :])
        cp_async_commit()
        cp_async_wait(0)
        sync(warp)
        store(y[16 * cta:, :], load(tile, vec(8, 8)[16, 64]))
'''

ACCEPTED = '''
@kernel(target="sm_80")
def shared_copy(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 16))
    team = role(warp)
    tile = smem(bf16, 16, 64)
    with team:
        cp_async(tile, x[16 * cta:, :])
        cp_async_commit()
        cp_async_wait(0)
        sync(warp)
        store(y[16 * cta:, :], load(tile, vec(8, 8)[16, 64]))
'''
