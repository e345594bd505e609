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
