"""**Checks.** Only names of ops and functions and the documented methods are called.

**Why.** There are no functions to define and no objects with methods.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/call",
    severity="error",
    layer="binding",
    title="A call of something that is not an op",
    source="Cake language reference",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    tiles = tile_space(M)
    t = tiles.persistent()
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    tiles = tile_space(M)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
"""
