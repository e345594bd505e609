"""**Checks.** In a kernel with `griddep_wait`, every role touches In, InOut and Out tensors only after its own wait;
Const tensors may be read before.

**Why.** With dependent launch the predecessor may still write: stale or torn data, rarely.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="sync/griddep-access-before-wait",
    severity="error",
    layer="progress",
    title="Data of the predecessor touched before griddep_wait",
    source="PTX ISA, 'griddepcontrol'",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        griddep_wait()
        store(y[cta, :], v + v)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        griddep_wait()
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
"""
