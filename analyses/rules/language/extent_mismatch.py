"""**Checks.** Static extents of a launch's arguments equal those of the kernel's tensors, and one dimension has one
value.

**Why.** The kernel would read past the end, or leave rows out.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/extent-mismatch",
    severity="error",
    layer="binding",
    title="Arguments whose extents contradict the kernel",
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
    between = workspace(f32, M, 64)
    double(x, between)
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
