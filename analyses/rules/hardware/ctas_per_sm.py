"""**Checks.** `ctas_per_sm=` is between 1 and the block limit of an SM.

**Why.** It sets the launch bounds, and with them the registers per thread.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/ctas-per-sm",
    severity="error",
    layer="binding",
    title="More blocks per SM than the target holds",
    source="CUDA C++ Programming Guide, 'Technical Specifications per Compute Capability'",
    line=3,
)

REJECTED = '''
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M, ctas_per_sm=40)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
'''

ACCEPTED = '''
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
'''
