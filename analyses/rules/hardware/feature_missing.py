"""**Checks.** Every op, form and option exists on the kernel's target, matched exactly.

**Why.** Nothing is stepped down to another architecture behind your back: wgmma does not exist on sm_100a, TMA not
on sm_80.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/feature-missing",
    severity="error",
    layer="binding",
    title="An instruction that the target does not have",
    source="PTX ISA, target notes of each instruction",
    line=10,
)

REJECTED = '''
@kernel(target="sm_80")
def shared_copy(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 16))
    team = role(warp)
    tile = smem(bf16, 16, 64)
    with team:
        cp_async(tile, x[16 * cta:, :])
        cp_async_commit()
        cp_async_wait(0)
        fence_async()
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
