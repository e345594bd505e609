"""**Checks.** Brackets, blocks and operator chains nest at most 64 deep.

**Why.** Deep nesting costs the parser seconds and gigabytes; a scanner turns it away first.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/depth",
    severity="error",
    layer="text",
    title="The program nests too deeply",
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
        store(y[cta, :], ((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((v)))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))
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
