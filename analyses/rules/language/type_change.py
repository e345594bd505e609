"""**Checks.** A name keeps the type of its first value.

**Why.** A fragment is a set of registers; another type is another fragment.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/type-change",
    severity="error",
    layer="binding",
    title="A name changes its type",
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
        v = cast(v, bf16)
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
