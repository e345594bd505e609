"""**Checks.** `sync(cta)`, `sync(cluster)` and `sync(grid)` stand at kernel level, where every thread passes.

**Why.** The threads that do not come leave the others waiting for ever, or pair with a later barrier.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="sync/cta-sync-divergent",
    severity="error",
    layer="binding",
    title="A block-wide barrier reached by a subset",
    source="PTX ISA, 'barrier'; flashinfer pull request 2996",
    line=7,
)

REJECTED = '''
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        sync(cta)
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
