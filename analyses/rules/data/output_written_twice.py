"""**Checks.** On the witness shapes no element of an `Out` tensor is written by two executions of ops.

**Why.** The two writes race between CTAs and roles; which one stays is open. Even equal values are a sign that two units believe to
own the same part.

**Limits.** Ops under `when=` and rows chosen by an index vector are not counted. Loaded indices are taken to differ, as those of a
permutation or the starts of groups that are not empty.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/output-written-twice",
    severity="error",
    layer="data",
    title="An element of an Out tensor is written twice",
    source="Cake language reference, 'A file': Out is written exactly once per element",
    line=7,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp, count=2)
    with team as w:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp, count=2)
    with team as w:
        v = load(x[cta, :], vec(1).cols[32])
        if w == 0:
            store(y[cta, :], v + v)
"""
