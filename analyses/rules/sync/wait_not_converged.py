"""**Checks.** Where all lanes of a warp or warpgroup wait for a barrier and one thread then goes on alone, the barrier does
not complete again before the other lanes have certainly passed.

**Why.** A late lane tests the parity after the next completion, sees it pending and sleeps on. Nothing makes the lanes
leave a wait together: a sync, an op that the warp executes as one (ldmatrix, mma, a shuffle), or a finished wgmma group does.

**Limits.** A warning: the hardware usually keeps the lanes together.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="sync/wait-not-converged",
    severity="warning",
    layer="progress",
    title="Lanes wait together, one goes on alone",
    source="PTX ISA, 'mbarrier' (test_wait looks at one phase parity) and 'bar.warp.sync'",
    line=11,
)

REJECTED = """
@kernel(target="sm_90a")
def relay(x: In[bf16, M, 64], y: Out[f32, M, 64]):
    launch(ctas=1)
    loader = role(warp)
    reader = role(warp)
    tile = smem(bf16, 16, 64)
    full = mbarrier()
    free = mbarrier()
    for n in range(ceil_div(M, 16)):
        with loader:
            wait(free[n - 1])
            with elected():
                expect(full[n])
                tma_load(tile, x[16 * n:, :], signal=full[n])
        with reader:
            wait(full[n])
            v = load(tile, vec(8, 8)[16, 64])
            fence_async()
            arrive(free[n])
            store(y[16 * n:, :], cast(v, f32))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def relay(x: In[bf16, M, 64], y: Out[f32, M, 64]):
    launch(ctas=1)
    loader = role(warp)
    reader = role(warp)
    tile = smem(bf16, 16, 64)
    full = mbarrier()
    free = mbarrier()
    for n in range(ceil_div(M, 16)):
        with loader:
            with elected():
                wait(free[n - 1])
                expect(full[n])
                tma_load(tile, x[16 * n:, :], signal=full[n])
        with reader:
            wait(full[n])
            v = load(tile, vec(8, 8)[16, 64])
            fence_async()
            arrive(free[n])
            store(y[16 * n:, :], cast(v, f32))
"""
