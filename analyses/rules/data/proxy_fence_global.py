"""**Checks.** A role that polls global memory in a `while` and then fetches `InOut` data with a TMA or bulk copy executes
`fence_async(space=gmem)` in between; so does a role that stores to an `InOut` tensor that a copy of the same kernel reads,
after the store.

**Why.** Plain loads and stores go through the generic proxy. A flag seen there orders later plain reads, but not reads of
the async proxy: the copy may bring bytes from before the flag was set, or from before the store.

**Limits.** A flag is a scalar `InOut` load inside a `while`; one that is seen by one role and handed on by a barrier counts for
who is released. Gathered rows are not followed.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/proxy-fence-global",
    severity="error",
    layer="data",
    title="Data that a polled flag announces is fetched through the async proxy without a proxy fence",
    source="PTX ISA, 'Proxies' and 'membar/fence'; deepseek-ai/DeepEP pull request 642",
    line=13,
)

REJECTED = """
@kernel(target="sm_90a")
def fetch(flag: InOut[i32, 1], x: InOut[f32, M, 64], y: Out[f32, M, 64]):
    launch(ctas=ceil_div(M, 32))
    producer = role(thread)
    team = role(warp)
    x_s = smem(f32, 32, 64)
    full = mbarrier()
    with producer:
        ready = load(flag[0])
        while ready == 0:
            ready = load(flag[0])
        expect(full[0])
        tma_load(x_s, x[32 * cta:, :], signal=full[0])
    with team:
        wait(full[0])
        store(y[32 * cta:, :], load(x_s, vec(4, 16)[32, 64]))
"""

ACCEPTED = REJECTED.replace("        expect(full[0])\n", "        fence_async(space=gmem)\n        expect(full[0])\n")
