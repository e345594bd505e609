"""**Checks.** Atomics and reductions need InOut.

**Why.** They read what was there before, which for Out is undefined.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/update-of-output",
    severity="error",
    layer="binding",
    title="A reduction into an Out tensor",
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
        atomic_add(y[cta, :], v + v)
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
