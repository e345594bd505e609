"""**Checks.** Only the statements and expressions of the reference occur: no import, class, lambda, comprehension,
break, star argument, string, `in`, `is`, step in a slice.

**Why.** The vocabulary is closed so that every program is data and every op is known to every analysis.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/unsupported",
    severity="error",
    layer="text",
    title="A construct that the language does not have",
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
        store(y[cta, ::2], v + v)
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
