"""**Checks.** Role blocks and rendezvous stand under control flow that is uniform over all their participants.

**Why.** Some come and some do not: a hang that depends on the data.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="sync/non-uniform-control",
    severity="error",
    layer="binding",
    title="A rendezvous under a condition that differs between its participants",
    source="PTX ISA, 'barrier': all participating threads",
    line=9,
)

REJECTED = '''
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    where(M % 2 == 0)
    launch(ctas=M // 2)
    team = role(warp, count=2)
    with team as w:
        v = load(x[cta, :], vec(1).cols[32])
        if w == 0:
            sync(team)
        store(y[2 * cta + w, :], v + v)
'''

ACCEPTED = '''
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    where(M % 2 == 0)
    launch(ctas=M // 2)
    team = role(warp, count=2)
    with team as w:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[2 * cta + w, :], v + v)
'''
