"""**Checks.** An assignment with several names takes an op or tuple with as many values; `persistent()` gives as many
as the tile space has coordinates.

**Why.** A lost result is usually the one that mattered.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/unpack",
    severity="error",
    layer="binding",
    title="Names and values differ in number",
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
        low, at = row_max(v)
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
