"""**Checks.** Out tensors are written and not read.

**Why.** Their memory holds nothing before; evaluation poisons it. Use InOut.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/read-of-output",
    severity="error",
    layer="binding",
    title="An Out tensor is read",
    source="Cake language reference",
    line=7,
)

REJECTED = '''
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], load(y[cta, :], vec(1).cols[32]))
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
