"""Latencies of the barrier forms: a chain of `trips` rendezvous or hand-overs, nothing else."""


@kernel(target="sm_90a")
def hop_thread(y: Out[i32, G], trips: i32):
    """Two single threads of different warps hand over to each other through mbarriers; two hops a trip."""
    launch(ctas=G)

    left = role(thread)
    right = role(thread)

    ping = mbarrier(arrivals=1)
    pong = mbarrier(arrivals=1)

    for t in range(trips):
        with left:
            arrive(ping[t])
            wait(pong[t])
        with right:
            wait(ping[t])
            arrive(pong[t])
    with left:
        store(y[cta], trips)


@kernel(target="sm_90a")
def hop_group(y: Out[i32, G], trips: i32):
    """A thread and a warpgroup hand over to each other: one arrival to it, one per warp from it; two hops a trip."""
    launch(ctas=G)

    math = role(warpgroup)
    producer = role(thread)

    ping = mbarrier(arrivals=1)
    pong = mbarrier(arrivals=4)

    for t in range(trips):
        with producer:
            arrive(ping[t])
            wait(pong[t])
        with math as wg:
            wait(ping[t])
            arrive(pong[t])
    with producer:
        store(y[cta], trips)


@kernel(target="sm_90a")
def hop_pair(y: Out[i32, G], trips: i32):
    """Single threads of the two CTAs of a cluster hand over to each other; two hops a trip."""
    where(G % 2 == 0)
    launch(ctas=G, cluster=2)

    single = role(thread)

    ping = mbarrier(arrivals=1)
    pong = mbarrier(arrivals=1)

    for t in range(trips):
        with single:
            if cluster_rank == 0:
                arrive(ping[t].on(1))
                wait(pong[t])
            else:
                wait(ping[t])
                arrive(pong[t].on(0))
    with single:
        store(y[cta], trips)
    sync(cluster)


@kernel(target="sm_90a")
def passed(y: Out[i32, G], trips: i32):
    """A thread arrives at a ring of four mbarriers and waits for the phase of three trips ago: one arrival and one wait that passes."""
    launch(ctas=G)

    single = role(thread)

    bar = mbarrier(stages=4, arrivals=1)

    with single:
        for t in range(trips):
            arrive(bar[t])
            wait(bar[t - 3])
        store(y[cta], trips)


@kernel(target="sm_90a")
def role_sync(y: Out[i32, G, WG], trips: i32, *, WG: (1, 2, 3) = 1):
    """sync(role): bar.sync of WG warpgroups."""
    launch(ctas=G)

    math = role(warpgroup, count=WG)

    with math as wg:
        for t in range(trips):
            sync(math)
        store(y[cta, wg], trips)


@kernel(target="sm_90a")
def turns(y: Out[i32, G, 3], trips: i32):
    """Three warpgroups pass a turn on by named barriers; three hops a trip."""
    launch(ctas=G)

    math = role(warpgroup, count=3)

    turn = named_barrier(3)

    with math as wg:
        if wg == 2:
            arrive(turn[0])
        for t in range(trips):
            sync(turn[wg])
            arrive(turn[(wg + 1) % 3])
        if wg == 0:
            sync(turn[0])
        store(y[cta, wg], trips)


@kernel(target="sm_90a")
def cta_sync(y: Out[i32, G, WARPS], trips: i32, *, WARPS: (4, 8, 16) = 8):
    """sync(cta)."""
    launch(ctas=G)

    math = role(warp, count=WARPS)

    for t in range(trips):
        sync(cta)
    with math as w:
        store(y[cta, w], trips)


@kernel(target="sm_90a")
def cluster_sync(y: Out[i32, G, 4], trips: i32, *, CL: (2, 4, 8) = 2):
    """sync(cluster)."""
    where(G % CL == 0)
    launch(ctas=G, cluster=CL)

    math = role(warp, count=4)

    for t in range(trips):
        sync(cluster)
    with math as w:
        store(y[cta, w], trips)


@kernel(target="sm_90a")
def async_fence(y: Out[i32, G, WARPS], trips: i32, *, WARPS: (4, 8) = 4):
    """A store to shared memory and fence_async a trip; WARPS warps."""
    launch(ctas=G)

    math = role(warp, count=WARPS)

    t_s = smem(i32, WARPS, 32)

    with math as w:
        v = fragment(i32, vec(1).cols[32], 1)
        for t in range(trips):
            store(t_s[w], v)
            fence_async()
        store(y[cta, w], trips)


@kernel(target="sm_90a")
def waited(y: Out[i32, G, WARPS], z: Out[f32, G, 128], p: f32, q: f32, trips: i32, *,
           WARPS: (1, 4, 8, 12) = 1, BUSY: (0, 1) = 0):
    """Warps wait again and again for a phase that is complete, eight times a trip; BUSY 1: four others take multiply-adds meanwhile."""
    launch(ctas=G)

    rows = role(warp, count=WARPS)
    others = role(warp, count=4)

    bar = mbarrier(arrivals=WARPS)

    with rows as w:
        arrive(bar[0])
        for t in range(trips):
            for i in unroll(8):
                wait(bar[0])
        store(y[cta, w], trips)
    with others as o:
        v = fragment(f32, vec(1).cols[32], 1)
        if BUSY == 1:
            for t in range(trips):
                for i in unroll(64):
                    v = v * p + q
        store(z[cta, 32 * o:], v)


@kernel(target="sm_90a")
def arrived(y: Out[i32, G], trips: i32):
    """A thread arrives at a barrier of one arrival, sixteen times a trip."""
    launch(ctas=G)

    single = role(thread)

    bar = mbarrier(arrivals=1)

    with single:
        for t in range(trips):
            for i in unroll(16):
                arrive(bar[16 * t + i])
        store(y[cta], trips)


@kernel(target="sm_90a")
def turns_two(y: Out[i32, G, 2], trips: i32):
    """Two warpgroups pass a turn on by named barriers; two hops a trip."""
    launch(ctas=G)

    math = role(warpgroup, count=2)

    turn = named_barrier(2)

    with math as wg:
        if wg == 1:
            arrive(turn[0])
        for t in range(trips):
            sync(turn[wg])
            arrive(turn[(wg + 1) % 2])
        if wg == 0:
            sync(turn[0])
        store(y[cta, wg], trips)


@kernel(target="sm_90a")
def late_sync(y: Out[f32, G, 64 * WG], p: f32, q: f32, trips: i32, *, WG: (1, 2, 3) = 2, LATE: (0, 1) = 1):
    """sync(role) of WG warpgroups, the last of which comes 64 dependent multiply-adds later: what the others' wait adds to it."""
    launch(ctas=G)

    math = role(warpgroup, count=WG)

    with math as wg:
        v = fragment(f32, wgmma_d.rows[64], 1)
        for t in range(trips):
            if wg == WG - 1:
                for i in unroll(64):
                    v = v * p + q
            if LATE == 1:
                sync(math)
        store(y[cta, 64 * wg:], v)
