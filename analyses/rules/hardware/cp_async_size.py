"""**Checks.** The bytes of a row are a multiple of 4.

**Why.** The instruction moves 4, 8 or 16 bytes.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/cp-async-size",
    severity="error",
    layer="binding",
    title="Rows that cp_async cannot divide",
    source="PTX ISA, 'cp.async': 4, 8 or 16 bytes",
    line=7,
)

REJECTED = '''
@kernel(target="sm_80")
def shared_copy(x: In[bf16, M, 63], y: Out[bf16, M, 63]):
    launch(ctas=ceil_div(M, 16))
    team = role(warp)
    tile = smem(bf16, 16, 63)
    with team:
        cp_async(tile, x[16 * cta:, :])
        cp_async_commit()
        cp_async_wait(0)
        sync(warp)
        store(y[16 * cta:, :], load(tile, vec(1)[16, 63]))
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
