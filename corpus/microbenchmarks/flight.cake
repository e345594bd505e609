"""Little's law: what plain vector accesses reach with so many bytes in flight; and what stays in L2."""


@kernel(target="sm_90a")
def flight(x: In[f32, R, 128 * U], y: Out[f32, G, WARPS], trips: i32, *,
           U: (1, 2, 4, 8) = 1, WARPS: (4, 8) = 4, CTAS: (1, 2, 4, 6, 8) = 1):
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
def flight_write(y: InOut[f32, T, G, WARPS, 128], trips: i32, *, WARPS: (4, 8) = 4, CTAS: (1, 2, 4, 6, 8) = 1):
    """A trip writes all of y: a warp stores 512 bytes, T times."""
    launch(ctas=G, ctas_per_sm=CTAS)

    rows = role(warp, count=WARPS)

    with rows as w:
        v = fragment(f32, vec(4).cols[128], 1)
        for p in range(trips):
            for t in range(T):
                store(y[t, cta, w, :], v)


@kernel(target="sm_90a")
def hold(x: In[f32, R, 1024], y: Out[f32, G, WARPS], trips: i32, *, WARPS: (8, 16) = 8, WHO: (0, 1, 2) = 0):
    """A warp reads one row of 4 KiB a trip, again and again all R of them. WHO 0: each SM the same rows every time,
    1: others every time, 2: every SM all rows.
    """
    where(R >= G * WARPS)
    launch(ctas=G)

    rows = role(warp, count=WARPS)

    with rows as w:
        first = cta * WARPS + w
        step = cta_count * WARPS
        if WHO == 2:
            first = w * 1
            step = WARPS * 1
        at = first
        top = fragment(f32, vec(4).cols[1024], 0)
        for t in range(trips):
            top = max(top, load(x[at, :], vec(4).cols[1024], cache=no_allocate))
            at += step
            if at >= R:
                if WHO == 1:
                    at = at - R
                else:
                    at = first
        store(y[cta, w], row_max(top))


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
