"""**Checks.** The names in `target=` are known targets, spelt exactly (sm_90a is not sm_90).

**Why.** Facts and instruction forms come from the target's table; there is no default.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/unknown-target",
    severity="error",
    layer="binding",
    title="A target that is not known",
    source="Cake targets: sm_80, sm_89, sm_90a, sm_100a, sm_103a, sm_120a",
    line=2,
)

REJECTED = '''
@kernel(target="sm_90")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
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
