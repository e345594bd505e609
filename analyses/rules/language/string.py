"""**Checks.** Docstrings and target names have no prefix (f, r, b) and know no escapes but those of quotes and the
backslash.

**Why.** There are no strings in expressions: dtypes, layouts and options are names.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/string",
    severity="error",
    layer="text",
    title="A string with a prefix or an escape",
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
        store(y[cta, :], v + f'x')
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
