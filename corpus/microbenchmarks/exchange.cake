"""What CTAs of a cluster cost each other: stores into another CTA's shared memory, loads from it."""


@kernel(target="sm_90a")
def send_pair(y: Out[i32, G], trips: i32):
    """A warp of each of two CTAs sends 128 bytes by store_async to the other and waits for its own; both at once: one hop a trip."""
    where(G % 2 == 0)
    launch(ctas=G, cluster=2)

    single = role(warp)

    t_s = smem(i32, 1, 32, stages=4)
    full = mbarrier(stages=4, arrivals=1)

    with single as w:
        v = fragment(i32, vec(1).cols[32], 1)
        other = 1 - cluster_rank
        for t in range(trips):
            with elected():
                expect(full[t])
            store_async(t_s[t][0].on(other), v, signal=full[t].on(other))
            wait(full[t])
        store(y[cta], trips)
    sync(cluster)


@kernel(target="sm_90a")
def write_pair(y: Out[f32, G, WARPS], trips: i32, *, V: (1, 4) = 4, WARPS: (4, 8) = 8):
    """Each warp stores 4 KiB a trip into the shared memory of the other CTA of a pair."""
    where(G % 2 == 0)
    launch(ctas=G, cluster=2)

    rows = role(warp, count=WARPS)

    t_s = smem(f32, WARPS, 1024)

    with rows as w:
        store(t_s[w], fragment(f32, vec(V).cols[1024], 0))
    sync(cluster)
    with rows as w:
        v = fragment(f32, vec(V).cols[1024], 1)
        other = 1 - cluster_rank
        for t in range(trips):
            store(t_s[w].on(other), v)
    sync(cluster)
    with rows as w:
        store(y[cta, w], row_max(load(t_s[w], vec(V).cols[1024])))


@kernel(target="sm_90a")
def read_pair(y: Out[f32, G, WARPS], trips: i32, *, V: (1, 4) = 4, WARPS: (1, 4, 8) = 8, ROW: (128, 1024) = 1024):
    """Each warp loads ROW words a trip from the shared memory of the other CTA of a pair and uses them."""
    where(G % 2 == 0)
    launch(ctas=G, cluster=2)

    rows = role(warp, count=WARPS)

    t_s = smem(f32, WARPS, ROW, stages=2)

    with rows as w:
        store(t_s[0][w], fragment(f32, vec(V).cols[ROW], 1))
        store(t_s[1][w], fragment(f32, vec(V).cols[ROW], 2))
    sync(cluster)
    with rows as w:
        other = 1 - cluster_rank
        top = fragment(f32, vec(V).cols[ROW], 0)
        for t in range(trips):
            top = max(top, load(t_s[t][w].on(other), vec(V).cols[ROW]))
        store(y[cta, w], row_max(top))
    sync(cluster)


@kernel(target="sm_90a")
def peer_arrivals(y: Out[f32, G, 32], trips: i32, *, STORES: (0, 1, 2) = 1):
    """A warp of each CTA of a pair arrives eight times a trip at a barrier of the other. STORES 1: the kernel also stores plainly into
    the other's shared memory, so that arrivals release to the cluster; 2: before each arrival.
    """
    where(G % 2 == 0)
    launch(ctas=G, cluster=2)

    single = role(warp)

    t_s = smem(f32, 1, 32)
    bar = mbarrier(arrivals=1)

    with single as w:
        store(t_s[0], fragment(f32, vec(1).cols[32], 0))
    sync(cluster)
    with single as w:
        v = fragment(f32, vec(1).cols[32], 1)
        other = 1 - cluster_rank
        if STORES == 1:
            store(t_s[0].on(other), v)
        for t in range(trips):
            for i in unroll(8):
                if STORES == 2:
                    store(t_s[0].on(other), v)
                arrive(bar[8 * t + i].on(other))
    sync(cluster)
    with single as w:
        store(y[cta, :], load(t_s[0], vec(1).cols[32]))


@kernel(target="sm_90a")
def peer_waits(y: Out[f32, G, 32], trips: i32):
    """A warp waits again and again, eight times a trip, for a phase that the other CTA of a pair has completed, after it stored plainly into
    this one's shared memory: waits that acquire from the cluster.
    """
    where(G % 2 == 0)
    launch(ctas=G, cluster=2)

    single = role(warp)

    t_s = smem(f32, 1, 32)
    bar = mbarrier(arrivals=1)

    with single as w:
        store(t_s[0], fragment(f32, vec(1).cols[32], 0))
    sync(cluster)
    with single as w:
        other = 1 - cluster_rank
        store(t_s[0].on(other), fragment(f32, vec(1).cols[32], 1))
        arrive(bar[0].on(other))
        wait(bar[0])
        for t in range(trips):
            for i in unroll(8):
                wait(bar[0])
        store(y[cta, :], load(t_s[0], vec(1).cols[32]))
    sync(cluster)


@kernel(target="sm_90a")
def write_accumulator(y: Out[f32, G, 64], trips: i32, *, CL: (2, 4, 8) = 2):
    """A warpgroup stores an accumulator of 64 x 32 a trip into the shared memory of the next CTA of its cluster."""
    where(G % CL == 0)
    launch(ctas=G, cluster=CL)

    math = role(warpgroup)

    t_s = smem(f32, 64, 32, swizzle=128)

    with math as wg:
        store(t_s, fragment(f32, wgmma_d[64, 32], 0))
    sync(cluster)
    with math as wg:
        v = fragment(f32, wgmma_d[64, 32], 1)
        for t in range(trips):
            store(t_s.on((cluster_rank + 1) % CL), v)
    sync(cluster)
    with math as wg:
        store(y[cta, :], row_max(load(t_s, wgmma_d[64, 32])))


@kernel(target="sm_90a")
def fed_arrivals(x: In[bf16, R, 64], y: Out[f32, G, 32], trips: i32, *, STAGES: (2, 4, 8) = 4):
    """A ring of boxes of 16 KiB, each released a trip after it came by an arrival that releases to the cluster: the kernel also stores
    plainly into another CTA's shared memory. What such a release costs while copies are on their way.
    """
    where(R >= 128, G % 2 == 0)
    launch(ctas=G, cluster=2)

    producer = role(thread)
    reader = role(warp)

    x_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)
    t_s = smem(f32, 1, 32)
    full = mbarrier(stages=STAGES, arrivals=1)
    free = mbarrier(stages=STAGES, arrivals=1)

    boxes = R // 128
    at = cta
    for t in range(trips):
        with producer:
            wait(free[t - STAGES])
            expect(full[t])
            tma_load(x_s[t], x[at * 128:, :], signal=full[t])
        with reader as w:
            wait(full[t])
            if t > 0:
                with elected():
                    arrive(free[t - 1].on(cluster_rank))
        at += cta_count
        if at >= boxes:
            at = at - boxes
    with reader as w:
        store(t_s[0], fragment(f32, vec(1).cols[32], 0))
    sync(cluster)
    with reader as w:
        store(t_s[0].on(1 - cluster_rank), fragment(f32, vec(1).cols[32], 1))
    sync(cluster)
    with reader as w:
        store(y[cta, :], load(t_s[0], vec(1).cols[32]))
