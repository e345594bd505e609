"""**Checks.** ldmatrix gives mma_a, mma_b, mma_d or wgmma_a tiles of 16-bit elements (8-bit without `.T`).

**Why.** It moves 8x8 matrices of 16-bit elements.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/ldmatrix-form",
    severity="error",
    layer="binding",
    title="ldmatrix of a type or layout it does not have",
    source="PTX ISA, 'ldmatrix'",
    line=9,
)

REJECTED = '''
@kernel(target="sm_90a")
def matrix(x: In[bf16, 16, 16], y: Out[bf16, 16, 16]):
    launch(ctas=1)
    team = role(warp)
    tile = smem(bf16, 16, 16, pad=8)
    with team:
        store(tile, load(x[:, :], vec(8, 2)[16, 16]))
        sync(warp)
        f = ldmatrix(tile, vec(8, 2)[16, 16])
        sync(warp)
        stmatrix(tile, f)
        sync(warp)
        store(y[:, :], load(tile, vec(8, 2)[16, 16]))
'''

ACCEPTED = '''
@kernel(target="sm_90a")
def matrix(x: In[bf16, 16, 16], y: Out[bf16, 16, 16]):
    launch(ctas=1)
    team = role(warp)
    tile = smem(bf16, 16, 16, pad=8)
    with team:
        store(tile, load(x[:, :], vec(8, 2)[16, 16]))
        sync(warp)
        f = ldmatrix(tile, mma_d[16, 16])
        sync(warp)
        stmatrix(tile, f)
        sync(warp)
        store(y[:, :], load(tile, vec(8, 2)[16, 16]))
'''
