"""**Checks.** Every name is a parameter, a declaration, a built-in or assigned before, in a block that is still open.

**Why.** A name first assigned inside a block ends with it; a misspelt name is the most common slip.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/unknown-name",
    severity="error",
    layer="binding",
    title="A name that nothing defines",
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
        store(y[cta, :], v + w)
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
