"""**Checks.** A tile that an asynchronous copy fills inside a loop has at least two stages.

**Why.** With one stage the copy of the next tile waits until the last reader is done, so copies and products never
overlap.

**Limits.** A second resident block (`ctas_per_sm=2`) can hide it as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.bound import For, Op, View, While, walk
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="performance/single-stage",
    severity="advice",
    layer="performance",
    title="A tile that a loop refills has one stage",
    source="CUDA C++ Programming Guide, 'Asynchronous Data Copies'",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def stream(x: In[bf16, M, 64], y: Out[f32, M, 64]):
    launch(ctas=1)
    producer = role(thread)
    reader = role(warp)
    tile = smem(bf16, 16, 64, stages=1)
    full = mbarrier(stages=1)
    free = mbarrier(stages=1)
    for n in range(ceil_div(M, 16)):
        with producer:
            wait(free[n - 1])
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
    seen = set()
    for loop in ctx.statements:
        if not isinstance(loop, (For, While)):
            continue
        if any(isinstance(s, (For, While)) for s in walk(loop.body)):
            continue  # an outer loop: what it refills is used by a loop inside
        for op in walk(loop.body):
            view = (
                op.operands.get("view")
                if isinstance(op, Op) and op.name in ("tma_load", "bulk_load", "cp_async")
                else None
            )
            if (
                isinstance(view, View)
                and view.buffer.stages == 1
                and view.buffer not in seen
                and ctx.bound.launch.ctas_per_sm == 1
            ):
                seen.add(view.buffer)
                yield ctx.finding(
                    RULE.id,
                    "advice",
                    f"'{view.buffer.name}' has one stage and is refilled in the loop at line {loop.span.line}:"
                    " copies and use alternate",
                    view.buffer.span,
                    resource=view.buffer.name,
                )
