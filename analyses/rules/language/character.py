"""**Checks.** No control characters, tabs, line separators or marks that change the direction of text.

**Why.** A reader must see the program that is compiled.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/character",
    severity="error",
    layer="text",
    title="A character that a reader cannot see",
    source="Cake language reference",
    line=4,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
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
