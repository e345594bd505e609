"""**Checks.** The divisor of `//` and `%` is not zero.

**Why.** Index arithmetic is exact; there is no value to continue with.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/division-by-zero",
    severity="error",
    layer="binding",
    title="Division by a static zero",
    source="Cake language reference",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta // 0, :], vec(1).cols[32])
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
