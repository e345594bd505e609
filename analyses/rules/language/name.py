"""**Checks.** A name is 1 to 64 ASCII letters, digits and underscores, does not start with a digit and is no reserved
word.

**Why.** Names become identifiers of the generated code and must look the same everywhere.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/name",
    severity="error",
    layer="text",
    title="A name that cannot be one",
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
        store(y[cta, :], v + xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx)
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
