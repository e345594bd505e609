"""**Checks.** Every `Out` tensor of a program is written by some launch or `fill`.

**Why.** The caller gets what was in the buffer.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="schedule/output-not-written",
    severity="error",
    layer="binding",
    title="A program output that no step writes",
    source="Cake language reference, '@program'",
    line=11,
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
    double(x, between)
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
