"""**Checks.** `bindings` name declared tunables only.

**Why.** A variant is (program, bindings); a misspelt name would measure the wrong variant.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/unknown-tunable",
    severity="error",
    layer="binding",
    title="A binding for a tunable that the kernel does not have",
    source="Cake language reference",
    line=2,
    bindings={"STAGES": 3},
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
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
