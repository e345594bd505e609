"""**Checks.** Whoever waits for use n knows that use n - stages has completed (it waited for it, or saw something
behind it).

**Why.** A parity test cannot tell phases two apart: the wait passes at once and reads data that have not arrived.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="sync/wait-ahead",
    severity="error",
    layer="progress",
    title="A wait that may pass too early",
    source="PTX ISA, 'mbarrier'",
    line=16,
)

REJECTED = """
@kernel(target="sm_90a")
def share(x: In[bf16, M, 64], y: Out[f32, M, 64]):
    launch(ctas=1)
    producer = role(thread)
    readers = role(warp, count=4)
    tile = smem(bf16, 16, 64, stages=3)
    full = mbarrier(stages=3)
    free = mbarrier(stages=3)
    with producer:
        for n in range(ceil_div(M, 16)):
            wait(free[n - 3])
            expect(full[n])
            tma_load(tile[n], x[16 * n:, :], signal=full[n])
    with readers as w:
        for n in range(w, ceil_div(M, 16), 4):
            wait(full[n])
            v = load(tile[n], vec(8, 8)[16, 64])
            fence_async()
            arrive(free[n])
            store(y[16 * n:, :], cast(v, f32))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def share(x: In[bf16, M, 64], y: Out[f32, M, 64]):
    launch(ctas=1)
    producer = role(thread)
    readers = role(warp, count=4)
    tile = smem(bf16, 16, 64, stages=4)
    full = mbarrier(stages=4)
    free = mbarrier(stages=4)
    with producer:
        for n in range(ceil_div(M, 16)):
            wait(free[n - 4])
            expect(full[n])
            tma_load(tile[n], x[16 * n:, :], signal=full[n])
    with readers as w:
        for n in range(w, ceil_div(M, 16), 4):
            wait(full[n])
            v = load(tile[n], vec(8, 8)[16, 64])
            fence_async()
            arrive(free[n])
            store(y[16 * n:, :], cast(v, f32))
"""
