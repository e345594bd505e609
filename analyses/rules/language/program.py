"""**Checks.** A file has at most one @program, and it holds assignments and calls only.

**Why.** The host side is a list of workspaces, fills and launches that is known before anything runs.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/program",
    severity="error",
    layer="text",
    title="@program is not a straight line of launches",
    source="Cake language reference",
    line=12,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)


@program
def main(x: In[f32, M, 32], y: Out[f32, M, 32]):
    if M > 0:
        rows(x, y)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)


@program
def main(x: In[f32, M, 32], y: Out[f32, M, 32]):
    rows(x, y)
"""
