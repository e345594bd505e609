"""**Checks.** Every `smem` and `tmem` tile is read or written by some op, or lies under a tile that is.

**Why.** It takes memory from stages or from a second resident block.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="performance/unused-tile",
    severity="warning",
    layer="performance",
    title="A tile is declared and never used",
    source="Cake language reference, 'Declarations'",
    line=7,
)

REJECTED = """
@kernel(target="sm_90a")
def stream(x: In[bf16, M, 64], y: Out[f32, M, 64]):
    launch(ctas=1)
    producer = role(thread)
    reader = role(warp)
    tile = smem(bf16, 16, 64, stages=2)
    spare = smem(bf16, 16, 64)
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
    for b in ctx.bound.buffers:
        if b not in ctx.used_buffers:
            size = f"{b.stage_bytes * b.stages} B of shared memory" if b.space == "smem" else "tensor memory columns"
            yield ctx.finding(RULE.id, "warning", f"no op touches '{b.name}' ({size})", b.span, resource=b.name)
