"""**Checks.** A name belongs to the kernel level or to one role.

**Why.** Registers of one role do not exist in another: values cross through memory and a barrier.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/name-of-another-role",
    severity="error",
    layer="binding",
    title="A value of one role used in another",
    source="Cake language reference",
    line=13,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    other = role(warp)
    with other:
        u = load(x[0, 0:], vec(1).cols[32])
        store(y[cta, 32:], u)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
    with other:
        store(y[cta, :], v)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    other = role(warp)
    with other:
        u = load(x[0, 0:], vec(1).cols[32])
        store(y[cta, 32:], u)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
"""
