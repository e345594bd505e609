"""**Checks.** `atomic_add` takes f32, i32, f16 and bf16 (from sm_90 on); `atomic_min`, `atomic_max` and `atomic_fetch_add` take i32.

**Why.** Most other types do not exist as one instruction, and nothing is emulated.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/atomic-form",
    severity="error",
    layer="binding",
    title="A reduction type that the instruction lacks",
    source="PTX ISA, 'red' and 'atom'",
    line=7,
)

REJECTED = '''
@kernel(target="sm_90a")
def rows(x: In[f32, M, N], y: InOut[f32, M, N]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        atomic_max(y[cta, :], v)
'''

ACCEPTED = '''
@kernel(target="sm_90a")
def rows(x: In[f32, M, N], y: InOut[f32, M, N]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        atomic_add(y[cta, :], v)
'''
