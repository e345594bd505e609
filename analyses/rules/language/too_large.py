"""**Checks.** `unroll` has at most 4096 steps and the kernel a bounded number of statements after unrolling.

**Why.** Every statement is compiled and analysed on its own; a loop that long belongs into `range`.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/too-large",
    severity="error",
    layer="binding",
    title="Unrolling makes the program too long",
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
        for i in unroll(5000):
            v = v + v
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
