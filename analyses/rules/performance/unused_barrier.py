"""**Checks.** Every declared barrier is named by some op.

**Why.** It costs shared memory and an initialisation, and is usually the trace of a wait or arrive that got lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.bound import BarUse
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="performance/unused-barrier",
    severity="warning",
    layer="performance",
    title="A barrier is declared and never used",
    source="Cake language reference, 'Declarations'",
    line=9,
)

REJECTED = """
@kernel(target="sm_90a")
def stream(x: In[bf16, M, 64], y: Out[f32, M, 64]):
    launch(ctas=1)
    producer = role(thread)
    reader = role(warp)
    tile = smem(bf16, 16, 64, stages=2)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    extra = mbarrier()
    for n in range(ceil_div(M, 16)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(tile[n], x[16 * n:, :], signal=full[n])
        with reader:
            wait(full[n])
            v = load(tile[n], vec(8, 8)[16, 64])
            fence_async()
            arrive(free[n])
            store(y[16 * n:, :], cast(v, f32))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def stream(x: In[bf16, M, 64], y: Out[f32, M, 64]):
    launch(ctas=1)
    producer = role(thread)
    reader = role(warp)
    tile = smem(bf16, 16, 64, stages=2)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    for n in range(ceil_div(M, 16)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(tile[n], x[16 * n:, :], signal=full[n])
        with reader:
            wait(full[n])
            v = load(tile[n], vec(8, 8)[16, 64])
            fence_async()
            arrive(free[n])
            store(y[16 * n:, :], cast(v, f32))
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    used = {v.barrier for o in ctx.ops for v in o.operands.values() if isinstance(v, BarUse)}
    for bar in ctx.bound.barriers:
        if bar not in used:
            yield ctx.finding(
                RULE.id, "warning", f"nothing waits for or arrives on '{bar.name}'", bar.span, resource=bar.name
            )
