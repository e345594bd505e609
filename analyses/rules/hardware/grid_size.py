"""**Checks.** A number of CTAs that the text fixes is between 0 and 2^31 - 1.

**Why.** The launch is refused at run time. Zero CTAs are no launch, which is legal.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/grid-size",
    severity="error",
    layer="binding",
    title="A grid that no launch takes",
    source="CUDA C++ Programming Guide, 'Technical Specifications per Compute Capability'",
    line=3,
)

REJECTED = '''
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=2147483648)
    team = role(warp)
    with team:
        store(y[cta, :], load(x[cta, :], vec(1).cols[32]))
'''

ACCEPTED = '''
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        store(y[cta, :], load(x[cta, :], vec(1).cols[32]))
'''
