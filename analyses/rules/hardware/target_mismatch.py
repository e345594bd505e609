"""**Checks.** The requested target is one of those that the kernel names.

**Why.** sm_90a code does not run on sm_100a; choosing another target is editing the program.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/target-mismatch",
    severity="error",
    layer="binding",
    title="A target that the kernel is not written for",
    source="Cake language reference: targets are matched exactly",
    line=2,
    target="sm_100a",
)

REJECTED = '''
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
'''

ACCEPTED = '''
@kernel(target=("sm_90a", "sm_100a"))
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
'''
