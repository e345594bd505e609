"""**Checks.** The last dimension of the tensor is kept by the box.

**Why.** The inner box extent is a multiple of 16 bytes; a single element is not.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/tma-inner-dimension",
    severity="error",
    layer="binding",
    title="The innermost dimension is dropped",
    source="CUDA Driver API, 'Tensor Map Object Management'",
    line=10,
)

REJECTED = '''
@kernel(target="sm_90a")
def fetch(x: In[f32, M, 64], y: Out[f32, M, 64]):
    launch(ctas=M)
    producer = role(thread)
    reader = role(warp)
    line = smem(f32, 64)
    full = mbarrier()
    with producer:
        expect(full[0])
        tma_load(line, x[0:, cta], signal=full[0])
    with reader:
        wait(full[0])
        store(y[cta, :], load(line, vec(2).cols[64]))
'''

ACCEPTED = '''
@kernel(target="sm_90a")
def fetch(x: In[f32, M, 64], y: Out[f32, M, 64]):
    launch(ctas=M)
    producer = role(thread)
    reader = role(warp)
    line = smem(f32, 64)
    full = mbarrier()
    with producer:
        expect(full[0])
        tma_load(line, x[cta, 0:], signal=full[0])
    with reader:
        wait(full[0])
        store(y[cta, :], load(line, vec(2).cols[64]))
'''
