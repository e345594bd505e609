"""**Checks.** Every function carries exactly one of the two decorators, in the documented form.

**Why.** The target decides which instructions exist; it is part of the program, not an option.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/decorator",
    severity="error",
    layer="text",
    title="The decorator is not @kernel(target=...) or @program",
    source="Cake language reference",
    line=1,
)

REJECTED = """
@kernel
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
