"""**Checks.** A file holds at least one kernel, and a kernel at least one statement behind its docstring.

**Why.** There is nothing to verify or launch.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/empty",
    severity="error",
    layer="text",
    title="A file or function without content",
    source="Cake language reference",
    line=1,
)

REJECTED = '''
"""A file of notes only."""
'''

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
"""
