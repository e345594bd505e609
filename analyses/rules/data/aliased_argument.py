"""**Checks.** A tensor that a launch writes is passed to it once.

**Why.** The kernel is verified with distinct tensors: inputs are loaded through the read-only path (ld.global.nc), which may not see
what the same launch writes, and no order between the two names was checked.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/aliased-argument",
    severity="error",
    layer="binding",
    title="One tensor as two arguments, one of them written",
    source="PTX ISA, 'ld.global.nc': memory that is read-only for the duration of the kernel",
    line=14,
)

REJECTED = """
@kernel(target="sm_90a")
def double(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)


@program
def fourfold(x: In[f32, M, 32], y: Out[f32, M, 32]):
    half = workspace(f32, M, 32)
    double(x, half)
    double(half, half)
    double(half, y)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def double(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)


@program
def fourfold(x: In[f32, M, 32], y: Out[f32, M, 32]):
    half = workspace(f32, M, 32)
    double(x, half)
    double(half, y)
"""
