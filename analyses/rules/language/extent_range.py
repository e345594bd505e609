"""**Checks.** A static extent is between 1 and 2^31 - 1, a static stride not negative, and positive where the tensor is written.

**Why.** Extents travel as 32-bit arguments; rows that lie on each other are written twice.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="language/extent-range",
    severity="error",
    layer="binding",
    title="A tensor that cannot lie in memory as declared",
    source="Cake language reference, 'A file'",
    line=2,
)

REJECTED = '''
@kernel(target="sm_90a")
def rows(x: In[f32, 0, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        store(y[cta, :], load(x[cta * 0, :], vec(1).cols[32]))
'''

ACCEPTED = '''
@kernel(target="sm_90a")
def rows(x: In[f32, 1, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        store(y[cta, :], load(x[cta * 0, :], vec(1).cols[32]))
'''
