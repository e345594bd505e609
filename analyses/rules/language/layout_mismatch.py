"""**Checks.** Operands of an elementwise operation have equal layouts and shapes.

**Why.** Thread and register of an element must agree; a conversion is an explicit op, because it costs something.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/layout-mismatch",
    severity="error",
    layer="binding",
    title="Elementwise operands with different layouts",
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
        store(y[cta, :], v + load(x[cta, :], vec(2).cols[64]))
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
