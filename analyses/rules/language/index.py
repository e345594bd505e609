"""**Checks.** Tensor indices are integers, slices or i32 vectors; barriers and staged tiles take one use number;
register tiles are sliced with `.rows` and `.cols`.

**Why.** Every index has one meaning, so that bounds can be proved.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/index",
    severity="error",
    layer="binding",
    title="An index of the wrong form",
    source="Cake language reference",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, None], vec(1).cols[32])
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
