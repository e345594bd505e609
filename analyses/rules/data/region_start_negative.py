"""**Checks.** The static start of a region is not negative.

**Why.** Loads clip at the end, not before the start.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/region-start-negative",
    severity="error",
    layer="binding",
    title="A region starts before the tensor",
    source="Cake language reference",
    line=6,
)

REJECTED = '''
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, -4:], vec(1).cols[32])
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
