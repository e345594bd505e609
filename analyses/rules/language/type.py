"""**Checks.** Each operand has the type its op asks for: f32 or i32 arithmetic, views for copies, masks for select,
barriers always indexed.

**Why.** There is no implicit conversion: what the hardware would have to do is written.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/type",
    severity="error",
    layer="binding",
    title="Operands of the wrong kind",
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
        store(y[cta, :], v + cta)
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
