"""**Checks.** Some shape with extents up to 8192 satisfies `where` and launches at least one CTA.

**Why.** Counts and orders are found by running the control skeleton on small shapes; a kernel without any is not
analysed.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="derive/no-witness",
    severity="error",
    layer="derivation",
    title="No shape within the limits runs the kernel",
    source="Cake architecture: witness shapes",
    line=2,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    where(M > 10000000)
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
