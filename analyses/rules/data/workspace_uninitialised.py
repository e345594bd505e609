"""**Checks.** A workspace, or an output that is read, was written by an earlier launch or `fill` of the program.

**Why.** A workspace holds nothing at the start of a call: sums and semaphores start from what the last call left.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/workspace-uninitialised",
    severity="error",
    layer="binding",
    title="A workspace read before a step has written it",
    source="Cake language reference, '@program'",
    line=13,
)

REJECTED = """
@kernel(target="sm_90a")
def double(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)


@program
def twice(x: In[f32, M, 32], y: Out[f32, M, 32]):
    between = workspace(f32, M, 32)
    double(between, y)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def double(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)


@program
def twice(x: In[f32, M, 32], y: Out[f32, M, 32]):
    between = workspace(f32, M, 32)
    double(x, between)
    double(between, y)
"""
