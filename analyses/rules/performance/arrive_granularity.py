"""**Checks.** A rendezvous of a whole warpgroup or role does not stand only in front of an arrival by one thread.

**Why.** `arrive(bar)` of a warpgroup is one arrival per warp, each behind its own warp sync: the last warp completes the use
just the same, and the others go on without waiting for it. The rendezvous costs every warp the slowest one.

**Limits.** Advice: where the sync also protects memory that the unit uses again, it stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.bound import ElectedBlock, Op
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="performance/arrive-granularity",
    severity="advice",
    layer="performance",
    title="A rendezvous only to arrive once",
    source="triton-lang/triton pull request 8969 (arrivals per warp instead of a CTA-wide sync)",
    line=18,
)

REJECTED = """
@kernel(target="sm_90a")
def ring(x: In[bf16, M, 64], y: Out[bf16, M, 64], *, STAGES: (2, 3) = 2):
    launch(ctas=1)
    producer = role(thread, warps=4)
    team = role(warpgroup)
    x_s = smem(bf16, 64, 64, stages=STAGES, swizzle=128)
    full = mbarrier(stages=STAGES)
    free = mbarrier(stages=STAGES)
    for k in range(ceil_div(M, 64)):
        with producer:
            wait(free[k - STAGES])
            expect(full[k])
            tma_load(x_s[k], x[64 * k:, :], signal=full[k])
        with team:
            wait(full[k])
            v = load(x_s[k], vec(8, 8)[64, 64])
            fence_async()
            sync(warpgroup)
            with elected():
                arrive(free[k])
            store(y[64 * k:, :], v)
"""

ACCEPTED = REJECTED.replace(
    "            sync(warpgroup)\n            with elected():\n                arrive(free[k])\n",
    "            arrive(free[k])\n",
)


def check(ctx: Context) -> Iterator[Diagnostic]:
    def blocks(body: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        yield body
        for s in body:
            for name in ("body", "then", "orelse"):
                yield from blocks(getattr(s, name, None) or ())

    for body in blocks(ctx.bound.body):
        for first, second in itertools.pairwise(body):
            wide = isinstance(first, Op) and first.name == "sync" and first.attrs.get("scope") in ("warpgroup", "role")
            if not wide or not isinstance(second, ElectedBlock) or not second.body:
                continue
            inner = second.body
            if all(isinstance(s, Op) and s.name == "arrive" for s in inner):
                yield ctx.finding(
                    RULE.id,
                    "advice",
                    "all warps meet here only so that one thread arrives; a plain arrive of the unit is one arrival per warp "
                    "and needs no rendezvous",
                    first.span,
                    related=((inner[0].span, "the arrival"),),
                    role=first.role,
                    op="sync",
                )
