"""**Checks.** At every statement the registers of all live fragments of a role, exact from their types, add up to at
most 255.

**Why.** The rest is spilled to local memory inside the main loop: five to ten times slower, without any message at
run time.

**Limits.** Scalars and addresses are not counted here; see `performance/register-budget`. Fragments are live as a
whole. What the compiler can compute again is counted as it is cheapest: coordinates as nothing, a widening cast as its
source.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.registers import LIMIT, peak
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="hardware/register-file",
    severity="error",
    layer="resources",
    title="Fragments that are alive together exceed the registers of a thread",
    source="CUDA C++ Programming Guide, 'Technical Specifications per Compute Capability': 255 registers per thread",
    line=10,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, N], y: Out[f32, M, N]):
    where(N <= 4096)
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(4).cols[4096])
        w = load(x[0, :], vec(4).cols[4096])
        u = load(x[M - 1, :], vec(4).cols[4096])
        store(y[cta, :], v + w * u)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, N], y: Out[f32, M, N]):
    where(N <= 4096)
    launch(ctas=M)
    team = role(warp)
    with team:
        for c in range(0, N, 1024):
            v = load(x[cta, c:], vec(4).cols[1024])
            w = load(x[0, c:], vec(4).cols[1024])
            u = load(x[M - 1, c:], vec(4).cols[1024])
            store(y[cta, c:], v + w * u)
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    for role in ctx.bound.roles:
        top = peak(ctx.bound, role)
        if top.registers > LIMIT and top.span is not None:
            parts = ", ".join(f"{name} {n}" for name, n in top.alive[:6])
            yield ctx.finding(
                RULE.id,
                "error",
                f"{top.registers} registers of fragments are alive here in role {role.name} ({parts});"
                f" a thread has {LIMIT}",
                top.span,
                contract="A thread has at most 255 registers; what is alive together must fit.",
                role=role.name,
            )
