"""**Checks.** Warp layouts belong to warps, warpgroup layouts to warpgroups; inside `warps()` a warpgroup fragment is
reached by `warp_part`.

**Why.** The registers of a fragment are spread over exactly the threads of its unit.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/layout-unit",
    severity="error",
    layer="binding",
    title="A fragment used by another unit than the one that owns it",
    source="Cake language reference",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], wgmma_d.cols[32])
        store(y[cta, :], v + v)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
"""
