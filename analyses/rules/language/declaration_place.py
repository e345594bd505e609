"""**Checks.** Roles, tiles and barriers are declared at kernel level.

**Why.** They belong to the block, not to a role, and exist once.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/declaration-place",
    severity="error",
    layer="binding",
    title="A resource declared inside a role",
    source="Cake language reference",
    line=7,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        tile = smem(f32, 32)
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
