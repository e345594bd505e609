"""One CTA of a pair loads for both by multicast; each CTA announces its own bytes."""


@kernel(target="sm_90a")
def share(a: In[bf16, M, 64], d: Out[bf16, R, M, 64], *, STAGES: (2, 3) = 2):
    where(R == 2)
    launch(ctas=2, cluster=2)
    producer = role(thread, warps=4)
    team = role(warpgroup)
    a_s = smem(bf16, 64, 64, stages=STAGES, swizzle=128)
    full = mbarrier(stages=STAGES)
    free = mbarrier(stages=STAGES)
    for k in range(ceil_div(M, 64)):
        with producer:
            wait(full[k - STAGES])
            expect(full[k])
            if cluster_rank == 0:
                wait(free[k - STAGES])
                tma_load(a_s[k], a[k * 64:, :], signal=full[k], multicast=cluster)
        with team:
            wait(full[k])
            v = load(a_s[k], vec(8, 8)[64, 64])
            fence_async()
            arrive(free[k].on(0))
            store(d[cluster_rank, k * 64:, :], v)
    sync(cluster)
