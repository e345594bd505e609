"""Device memory and L2 under plain vector accesses of all SMs."""


@kernel(target="sm_90a")
def read(x: In[f32, R, 1024], y: Out[f32, G, WARPS], trips: i32, *, WARPS: (8, 16) = 8):
    """A warp reads one 4 KiB row a trip with 16-byte accesses. Rows in L2 when R is small, in device memory when it is large."""
    where(G <= 1024, R >= G * WARPS)
    launch(ctas=G)

    rows = role(warp, count=WARPS)

    with rows as w:
        at = cta * WARPS + w
        top = fragment(f32, vec(4).cols[1024], 0)
        for t in range(trips):
            top = max(top, load(x[at, :], vec(4).cols[1024]))
            at += cta_count * WARPS
            if at >= R:
                at = at - R
        store(y[cta, w], row_max(top))


@kernel(target="sm_90a")
def copy(x: In[f32, T, G, WARPS, 1024], y: Out[f32, T, G, WARPS, 1024], *, WARPS: (8, 16) = 8):
    """A warp copies one 4 KiB row a trip; T trips."""
    launch(ctas=G)

    rows = role(warp, count=WARPS)

    with rows as w:
        for t in range(T):
            store(y[t, cta, w, :], load(x[t, cta, w, :], vec(4).cols[1024]))


@kernel(target="sm_90a")
def chase(x: In[i32, SIZE], y: Out[i32, G], none: i32, trips: i32, *, SIZE: (2097152, 67108864) = 2097152):
    """One thread loads words one after another: each address is 32 KiB and up to 31 words of what the load before gave further, so that
    it waits for that and finds another line. SIZE words.
    """
    launch(ctas=G)

    single = role(thread)

    with single:
        at = 0
        for t in range(trips):
            at = (at + 8209 + (load(x[at]) & none)) & (SIZE - 1)
        store(y[cta], at)
