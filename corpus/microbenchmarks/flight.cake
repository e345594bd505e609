"""Little's law: what plain vector accesses reach with so many bytes in flight; and what stays in L2."""


@kernel(target="sm_90a")
def flight(x: In[f32, R, 128 * U], y: Out[f32, G, WARPS], trips: i32, *,
           U: (1, 2, 4, 8) = 1, WARPS: (4, 8, 16, 32) = 4, CTAS: (1, 2, 4, 6, 8) = 1):
    """A warp loads U pieces of 512 bytes a trip and waits for them; WARPS x CTAS warps an SM."""
    where(R >= G * WARPS)
    launch(ctas=G, ctas_per_sm=CTAS)

    rows = role(warp, count=WARPS)

    with rows as w:
        at = cta * WARPS + w
        top = fragment(f32, vec(4).cols[128], 0)
        for t in range(trips):
            v = load(x[at, :], vec(4).cols[128 * U])
            for j in unroll(U):
                top = max(top, v.cols(128 * j, 128))
            at += cta_count * WARPS
            if at >= R:
                at = at - R
        store(y[cta, w], row_max(top))


@kernel(target="sm_90a")
def flight_copy(x: In[f32, T, G, WARPS, 128 * U], y: InOut[f32, T, G, WARPS, 128 * U], trips: i32, *,
                U: (1, 4) = 1, WARPS: (4, 8) = 4, CTAS: (1, 2, 4, 6, 8) = 1):
    """A trip copies all of x: a warp loads U pieces of 512 bytes and stores them, T times."""
    launch(ctas=G, ctas_per_sm=CTAS)

    rows = role(warp, count=WARPS)

    with rows as w:
        for p in range(trips):
            for t in range(T):
                store(y[t, cta, w, :], load(x[t, cta, w, :], vec(4).cols[128 * U]))


@kernel(target="sm_90a")
def flight_write(y: InOut[f32, T, G, WARPS, 128], trips: i32, *, WARPS: (4, 8, 16, 32) = 4, CTAS: (1, 2, 4, 6, 8) = 1):
    """A trip writes all of y: a warp stores 512 bytes, T times."""
    launch(ctas=G, ctas_per_sm=CTAS)

    rows = role(warp, count=WARPS)

    with rows as w:
        v = fragment(f32, vec(4).cols[128], 1)
        for p in range(trips):
            for t in range(T):
                store(y[t, cta, w, :], v)


@kernel(target="sm_90a")
def hold(x: In[f32, R, 1024], y: Out[f32, G, WARPS], trips: i32, *, WARPS: (8, 16) = 8):
    """A warp reads one row of 4 KiB a trip, again and again the same ones, past L1: all R rows by all SMs."""
    where(R >= G * WARPS)
    launch(ctas=G)

    rows = role(warp, count=WARPS)

    with rows as w:
        at = cta * WARPS + w
        top = fragment(f32, vec(4).cols[1024], 0)
        for t in range(trips):
            top = max(top, load(x[at, :], vec(4).cols[1024], cache=no_allocate))
            at += cta_count * WARPS
            if at >= R:
                at = cta * WARPS + w
        store(y[cta, w], row_max(top))


@kernel(target="sm_90a")
def pass_read(x: In[f32, R, 1024], y: Out[f32, R], *, GRID: (0, 2) = 2):
    """A launch reads all R rows of 4 KiB once: GRID CTAs an SM take turns, with 0 a CTA takes eight rows."""
    launch(ctas=select(GRID == 0, ceil_div(R, 8), device.sms * GRID))

    rows = role(warp, count=8)

    with rows as w:
        for r in range(cta * 8 + w, R, cta_count * 8):
            store(y[r], row_max(load(x[r, :], vec(4).cols[1024])))


@kernel(target="sm_90a")
def pass_copy(x: In[f32, R, 1024], y: Out[f32, R, 1024], *, GRID: (0, 2) = 2):
    """As pass_read; every row is copied."""
    launch(ctas=select(GRID == 0, ceil_div(R, 8), device.sms * GRID))

    rows = role(warp, count=8)

    with rows as w:
        for r in range(cta * 8 + w, R, cta_count * 8):
            store(y[r, :], load(x[r, :], vec(4).cols[1024]))


@kernel(target="sm_90a")
def occupied(x: In[f32, R, 128], z: In[f32, HELD], y: Out[f32, G, WARPS, HELD], trips: i32, *,
             HELD: (128, 1024, 2048, 4096) = 128, WARPS: (4, 8) = 8):
    """A warp loads 512 bytes a trip from L2 and waits, while it holds HELD values more in its registers: occupancy by registers."""
    where(R >= G * WARPS)
    launch(ctas=G)

    rows = role(warp, count=WARPS)

    with rows as w:
        held = load(z[:], vec(4).cols[HELD])
        at = cta * WARPS + w
        top = fragment(f32, vec(4).cols[128], 0)
        for t in range(trips):
            top = max(top, load(x[at, :], vec(4).cols[128]))
            at += cta_count * WARPS
            if at >= R:
                at = at - R
        store(y[cta, w, :], held + row_max(top))
