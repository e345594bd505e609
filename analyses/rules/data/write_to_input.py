"""**Checks.** In and Const tensors are not written.

**Why.** Inputs are checked to be unmodified, and non-coherent loads may read stale bytes.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/write-to-input",
    severity="error",
    layer="binding",
    title="An input is written",
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
        store(x[cta, :], v + v)
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
