"""**Checks.** Bound values and the default belong to the domain; the domain is a tuple of literals or `range(a, b)`.

**Why.** The domain is what the author has thought about: outside it nothing was promised.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/tunable-domain",
    severity="error",
    layer="binding",
    title="A tunable outside its domain",
    source="Cake language reference",
    line=2,
    bindings={"C": 48},
    accepted_bindings={"C": 64},
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32], *, C: (32, 64) = 32):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[C])
        store(y[cta, :], v + v)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32], *, C: (32, 64) = 32):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[C])
        store(y[cta, :], v + v)
"""
