"""Bulk tensor loads: a ring of boxes, from L2 or device memory, by one CTA or all, alone or multicast to a pair."""


@kernel(target="sm_90a")
def tma_ring(x: In[bf16, R, 64], y: Out[i32, G], trips: i32, start: i32, *,
             ROWS: (8, 32, 64, 128, 256) = 128, STAGES: (1, 2, 4, 8) = 4, SPREAD: (0, 1) = 1, STRIDE: (1, 16) = 1):
    """One thread keeps STAGES boxes of ROWS x 128 bytes in flight. SPREAD 1: each CTA loads boxes of
    its own, 0: all the same. Boxes lie STRIDE boxes apart and begin with box number `start`.
    """
    where(R >= ROWS, G <= 1024)
    launch(ctas=G)

    producer = role(thread)

    x_s = smem(bf16, ROWS, 64, stages=STAGES, swizzle=128)
    full = mbarrier(stages=STAGES, arrivals=1)

    with producer:
        boxes = R // ROWS
        at = start + SPREAD * STRIDE * cta
        step = STRIDE * (1 + SPREAD * (cta_count - 1))
        for t in range(trips):
            wait(full[t - STAGES])
            expect(full[t])
            tma_load(x_s[t], x[at * ROWS:, :], signal=full[t])
            at += step
            if at >= boxes:
                at = at - boxes
        for s in range(STAGES):
            wait(full[trips - STAGES + s])
        store(y[cta], at)


@kernel(target="sm_90a")
def tma_pair(x: In[bf16, R, 64], y: Out[i32, G], trips: i32, *, ROWS: (64, 128, 256) = 128, STAGES: (2, 4, 8) = 4):
    """As tma_ring with all CTAs on the same boxes; each of a pair loads half a box and sends it to both."""
    where(R >= ROWS, G % 2 == 0)
    launch(ctas=G, cluster=2)

    reader = role(thread)
    producer = role(thread)

    x_s = smem(bf16, ROWS, 64, stages=STAGES, swizzle=128)
    full = mbarrier(stages=STAGES, arrivals=1)
    free = mbarrier(stages=STAGES, arrivals=2)

    half = cluster_rank * (ROWS // 2)
    boxes = R // ROWS
    at = 0
    for t in range(trips):
        with producer:
            wait(free[t - STAGES])
            expect(full[t])
            tma_load(x_s[t].rows(half, ROWS // 2), x[at * ROWS + half:, :], signal=full[t], multicast=cluster)
        with reader:
            wait(full[t])
            arrive(free[t].on(0))
            arrive(free[t].on(1))
        at += 1
        if at >= boxes:
            at = at - boxes
    with reader:
        store(y[cta], trips)
    sync(cluster)


@kernel(target="sm_90a")
def tma_write(y: Out[bf16, G, T, ROWS, 64], *, ROWS: (64, 128) = 64, STAGES: (2, 4) = 2):
    """A warpgroup writes boxes of ROWS x 128 bytes by bulk tensor stores, STAGES in flight, T of them."""
    launch(ctas=G)

    math = role(warpgroup)

    y_s = smem(bf16, ROWS, 64, stages=STAGES, swizzle=128)

    with math as wg:
        for s in unroll(STAGES):
            store(y_s[s], fragment(bf16, vec(8, 8)[ROWS, 64], 1))
        fence_async()
        sync(warpgroup)
        with elected():
            for t in range(T):
                bulk_wait_read(STAGES - 1)
                tma_store(y[cta, t, :, :], y_s[t])
                bulk_commit()
            bulk_wait_read(0)


@kernel(target="sm_90a")
def tma_cluster(x: In[bf16, R, 64], y: Out[i32, G], trips: i32, *,
                CL: (2, 4, 8) = 4, ROWS: (64, 128) = 64, STAGES: (1, 2, 4, 8) = 4):
    """As tma_pair for larger clusters, and at any depth: each CTA loads its part of a box and sends it to all."""
    where(R >= ROWS, G % CL == 0)
    launch(ctas=G, cluster=CL)

    reader = role(thread)
    producer = role(thread)

    x_s = smem(bf16, ROWS, 64, stages=STAGES, swizzle=128)
    full = mbarrier(stages=STAGES, arrivals=1)
    free = mbarrier(stages=STAGES, arrivals=CL)

    part = cluster_rank * (ROWS // CL)
    boxes = R // ROWS
    at = 0
    for t in range(trips):
        with producer:
            wait(free[t - STAGES])
            expect(full[t])
            tma_load(x_s[t].rows(part, ROWS // CL), x[at * ROWS + part:, :], signal=full[t], multicast=cluster)
        with reader:
            wait(full[t])
            for r in unroll(CL):
                arrive(free[t].on(r))
        at += 1
        if at >= boxes:
            at = at - boxes
    with reader:
        store(y[cta], trips)
    sync(cluster)
