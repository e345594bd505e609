"""**Checks.** Integer literals are at most 2^64 - 1 and floats are finite; a literal has at most 80 characters.

**Why.** No dtype holds more; infinity is the name `inf`.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/number",
    severity="error",
    layer="text",
    title="A number that has no value here",
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
        store(y[cta, :], v * 1e999)
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
