"""**Checks.** Tensors, tiles and fragments name a dtype: f32, bf16, f16, e4m3, e5m2, i32, i8, u8 and so on.

**Why.** The byte layout of memory follows from it.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/unknown-dtype",
    severity="error",
    layer="binding",
    title="A type that memory does not hold",
    source="Cake language reference",
    line=2,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[bool, M, 32]):
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
