"""Issue rates of the register instructions that epilogues are made of. Every kernel: WARPS warps, 32 elements a thread."""


@kernel(target="sm_90a")
def ffma(x: In[f32, 16, 64], y: Out[f32, G, WARPS, 16], p: f32, q: f32, trips: i32, *, WARPS: (1, 4, 8, 16) = 8):
    """Four FFMAs per element and trip."""
    launch(ctas=G)

    math = role(warp, count=WARPS)

    with math as w:
        v = load(x[:, :], mma_d[16, 64])
        for t in range(trips):
            for i in unroll(4):
                v = v * p + q
        store(y[cta, w, :], row_max(v))


@kernel(target="sm_90a")
def fma_chain(x: In[f32, 16, 8], y: Out[f32, G, WARPS, 16], p: f32, q: f32, trips: i32, *, WARPS: (1, 4) = 1):
    """Sixteen dependent FFMAs a trip on each of the 4 elements of a thread."""
    launch(ctas=G)

    math = role(warp, count=WARPS)

    with math as w:
        v = load(x[:, :], mma_d[16, 8])
        for t in range(trips):
            for i in unroll(16):
                v = v * p + q
        store(y[cta, w, :], row_max(v))


@kernel(target="sm_90a")
def minmax(x: In[f32, 16, 64], y: Out[f32, G, WARPS, 16], p: f32, q: f32, trips: i32, *, WARPS: (4, 8, 16) = 8):
    """One FMNMX of each kind per element and trip."""
    launch(ctas=G)

    math = role(warp, count=WARPS)

    with math as w:
        v = load(x[:, :], mma_d[16, 64])
        low = p
        high = q
        for t in range(trips):
            v = max(min(v, high), low)
            low = low - q
            high = high + p
        store(y[cta, w, :], row_max(v))


@kernel(target="sm_90a")
def minmax3(x: In[i32, 16, 64], y: Out[i32, G, WARPS, 16], m: i32, n: i32, trips: i32, *, WARPS: (4, 8, 16) = 8):
    """Four three-input integer maxima or minima (VIMNMX3) per element and trip."""
    launch(ctas=G)

    math = role(warp, count=WARPS)

    with math as w:
        v = load(x[:, :], mma_d[16, 64])
        for t in range(trips):
            for i in unroll(2):
                v = min3(max3(v, t, n), t + i, m)
        store(y[cta, w, :], row_max(v))


@kernel(target="sm_90a")
def compare_select(x: In[f32, 16, 64], y: Out[f32, G, WARPS, 16], p: f32, q: f32, trips: i32, *, WARPS: (4, 8, 16) = 8):
    """One FSETP and one FSEL per element and trip."""
    launch(ctas=G)

    math = role(warp, count=WARPS)

    with math as w:
        v = load(x[:, :], mma_d[16, 64])
        low = p
        for t in range(trips):
            v = select(v < low, q, v)
            low = low - q
        store(y[cta, w, :], row_max(v))


@kernel(target="sm_90a")
def logic(x: In[i32, 16, 64], y: Out[i32, G, WARPS, 16], m: i32, n: i32, trips: i32, *, WARPS: (4, 8, 16) = 8):
    """Three LOP3s per element and trip (two steps of four inputs each)."""
    launch(ctas=G)

    math = role(warp, count=WARPS)

    with math as w:
        v = load(x[:, :], mma_d[16, 64])
        for t in range(trips):
            for i in unroll(2):
                v = ((v & m) ^ t) | n
        store(y[cta, w, :], row_max(v))


@kernel(target="sm_90a")
def imad(x: In[i32, 16, 64], y: Out[i32, G, WARPS, 16], m: i32, n: i32, trips: i32, *, WARPS: (4, 8, 16) = 8):
    """Four IMADs per element and trip."""
    launch(ctas=G)

    math = role(warp, count=WARPS)

    with math as w:
        v = load(x[:, :], mma_d[16, 64])
        for t in range(trips):
            for i in unroll(4):
                v = v * m + n
        store(y[cta, w, :], row_max(v))


@kernel(target="sm_90a")
def fma_logic(x: In[f32, 16, 32], u: In[i32, 16, 32], y: Out[f32, G, WARPS, 16], z: Out[i32, G, WARPS, 16], p: f32,
              q: f32, m: i32, trips: i32, *,
              WARPS: (4, 8, 16) = 8):
    """One FFMA and one LOP3, independent of each other, per element (of 16) and trip: whether both pipes run at once."""
    launch(ctas=G)

    math = role(warp, count=WARPS)

    with math as w:
        v = load(x[:, :], mma_d[16, 32])
        i = load(u[:, :], mma_d[16, 32])
        for t in range(trips):
            for i in unroll(4):
                v = v * p + q
            i = (i & m) ^ t
        store(y[cta, w, :], row_max(v))
        store(z[cta, w, :], row_max(i))


@kernel(target="sm_90a")
def fma_minmax(x: In[f32, 16, 32], y: Out[f32, G, WARPS, 16], p: f32, q: f32, trips: i32, *, WARPS: (4, 8, 16) = 8):
    """One FFMA and one FMNMX that reads its result, per element (of 16) and trip: a score and its minimum."""
    launch(ctas=G)

    math = role(warp, count=WARPS)

    with math as w:
        v = load(x[:, :], mma_d[16, 32])
        low = v
        for t in range(trips):
            v = v * p + q
            low = min(low, v)
        store(y[cta, w, :], row_max(low))


@kernel(target="sm_90a")
def special(x: In[f32, 16, 64], y: Out[f32, G, WARPS, 16], p: f32, q: f32, trips: i32, *,
            FN: range(0, 5) = 0, WARPS: (4, 8, 16) = 8):
    """One special function per element and trip: exp2, rcp, rsqrt, log2, tanh."""
    launch(ctas=G)

    math = role(warp, count=WARPS)

    with math as w:
        v = load(x[:, :], mma_d[16, 64])
        for t in range(trips):
            if FN == 0:
                v = exp2(v)
            elif FN == 1:
                v = rcp(v)
            elif FN == 2:
                v = rsqrt(v)
            elif FN == 3:
                v = log2(v)
            else:
                v = tanh(v)
        store(y[cta, w, :], row_max(v))


@kernel(target="sm_90a")
def convert(x: In[f32, 16, 64], y: Out[f32, G, WARPS, 16], p: f32, q: f32, trips: i32, *,
            DT: (bf16, f16) = bf16, WARPS: (4, 8, 16) = 8):
    """Per element and trip: FFMA, conversion to 16 bit (packed, one F2FP for two elements) and back."""
    launch(ctas=G)

    math = role(warp, count=WARPS)

    with math as w:
        v = load(x[:, :], mma_d[16, 64])
        for t in range(trips):
            v = cast(cast(v * p + q, DT), f32)
        store(y[cta, w, :], row_max(v))


@kernel(target="sm_90a")
def reduce_rows(x: In[f32, 64, BN], y: Out[f32, G, 64 * WG], trips: i32, *,
                BN: (8, 64, 128) = 8, WG: (1, 2, 3) = 2, ARG: (0, 1, 2) = 0):
    """A row reduction of a warpgroup's accumulator tile per trip: row_max, row_sum, row_argmin."""
    launch(ctas=G)

    math = role(warpgroup, count=WG)

    with math as wg:
        v = load(x[:, :], wgmma_d[64, BN])
        total = fragment(f32, wgmma_d.rows[64], 0)
        for t in range(trips):
            if ARG == 0:
                total = total + row_max(v)
            elif ARG == 1:
                total = total + row_sum(v)
            else:
                low, index = row_argmin(v, col_index(v))
                total = total + low + cast(index, f32)
            v = v + total[:, None]
        store(y[cta, 64 * wg:], total)
