"""**Checks.** cp_async copies rows of a two-dimensional view as they are: no transpose, last dimension kept.

**Why.** Each thread moves 4 to 16 contiguous bytes.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/cp-async-rows",
    severity="error",
    layer="binding",
    title="cp_async of something that is not rows",
    source="PTX ISA, 'cp.async'",
    line=7,
)

REJECTED = '''
@kernel(target="sm_80")
def shared_copy(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 16))
    team = role(warp)
    tile = smem(bf16, 16, 64)
    with team:
        cp_async(tile.T, x[16 * cta:, :].T)
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
