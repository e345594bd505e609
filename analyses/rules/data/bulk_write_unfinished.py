"""**Checks.** What a `tma_store`, `bulk_store` or a reduction writes into an `InOut` tensor is read, written or copied again in
the same kernel only behind a `bulk_wait` of the thread that issued it, and behind a sync where that is another thread.

**Why.** `bulk_wait_read` says that the shared source has been read; the bytes may not have reached global memory yet.

**Limits.** What another kernel reads is complete when this one ends. Rows chosen by data are not followed.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/bulk-write-unfinished",
    severity="error",
    layer="data",
    title="Global memory is touched while a bulk store may still be writing it",
    source="PTX ISA, 'cp.async.bulk.wait_group' (.read waits for the reading of the sources only)",
    line=16,
)

REJECTED = """
@kernel(target="sm_90a")
def twice(x: In[f32, M, 64], w: InOut[f32, M, 64], y: Out[f32, M, 64]):
    where(M % 32 == 0)
    launch(ctas=M // 32)
    team = role(warp)
    s = smem(f32, 32, 64)
    with team:
        store(s, load(x[32 * cta:, :], vec(4, 16)[32, 64]))
        fence_async()
        sync(warp)
        with elected():
            tma_store(w[32 * cta:, :], s)
            bulk_commit()
            bulk_wait_read(0)
        sync(warp)
        store(y[32 * cta:, :], load(w[32 * cta:, :], vec(4, 16)[32, 64]))
"""

ACCEPTED = REJECTED.replace("bulk_wait_read(0)", "bulk_wait(0)")
