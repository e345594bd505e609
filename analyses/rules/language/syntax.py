"""**Checks.** The text follows Python grammar: brackets close, blocks are indented, statements are complete.

**Why.** A Cake file is read with the Python parser (and never executed); nothing else can be said about a text that
has no tree.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/syntax",
    severity="error",
    layer="text",
    title="The text is not readable as Python syntax",
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
        store(y[cta, :], v + )
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
