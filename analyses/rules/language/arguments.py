"""**Checks.** Required arguments are present, none is given twice, and their number and place are those of the op.

**Why.** Each op stands for one instruction form; its operands are not optional.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/arguments",
    severity="error",
    layer="binding",
    title="Arguments that do not fit the declaration",
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
        store(y[cta, :], v + v, v)
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
