"""**Checks.** A call names an op or elementwise function of the vocabulary.

**Why.** The vocabulary is closed: `cake ops` lists it. There is no way to call anything else.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/unknown-op",
    severity="error",
    layer="binding",
    title="An op that does not exist",
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
        stroe(y[cta, :], v + v)
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
