"""**Checks.** Parameters are `NAME: In[dtype, extent, ...]`, `NAME: i32`, and behind `*` tunables `NAME: domain =
default`, in that order.

**Why.** The signature is the contract with the caller: direction, dtype and extents are needed by every analysis.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/parameter",
    severity="error",
    layer="text",
    title="A parameter is not a tensor, scalar or tunable",
    source="Cake language reference",
    line=2,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32], eps):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
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
