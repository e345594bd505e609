"""**Checks.** On-chip views lie inside their tile for every value of their indices that loops, conditions, `where` and `assume` admit.

**Why.** Shared memory has no bounds check: the neighbour tile is read or overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="data/view-out-of-bounds",
    severity="error",
    layer="resources",
    title="A view outside its tile",
    source="Cake language reference",
    line=16,
)

REJECTED = '''
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
            v = load(tile[n].rows(8, 16), vec(8, 8)[16, 64])
            fence_async()
            arrive(free[n])
            store(y[16 * n:, :], cast(v, f32))
'''

ACCEPTED = '''
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
'''


def check(ctx: Context) -> Iterator[Diagnostic]:
    """What a constant interval does not tell; the binder refuses the rest."""
    from analyses.bounds_findings import check_views

    if not any(d.rule == "sync/endless-loop" for d in ctx.derived.diagnostics):  # indices run away where a loop does
        yield from check_views(ctx.bound)
