"""Rings and epilogues: boxes that several CTAs read, several boxes a turn, copies by the threads (cp.async), accumulators stored."""


@kernel(target="sm_90a")
def tma_shared(x: In[bf16, R, 64], y: Out[i32, G], trips: i32, *,
               ROWS: (64, 128, 256) = 128, STAGES: (2, 4, 8) = 4, SHARE: (1, 2, 4, 8, 16, 33, 66) = 1):
    """As tma_ring; SHARE neighbouring CTAs read the same boxes at about the same time."""
    where(R >= ROWS, G <= 1024)
    launch(ctas=G)

    producer = role(thread)

    x_s = smem(bf16, ROWS, 64, stages=STAGES, swizzle=128)
    full = mbarrier(stages=STAGES, arrivals=1)

    with producer:
        boxes = R // ROWS
        at = cta // SHARE
        step = ceil_div(cta_count, SHARE)
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
def tma_several(x: In[bf16, R, 64], y: Out[i32, G], z: Out[f32, G, 128], p: f32, q: f32, trips: i32, *,
                ROWS: (8, 64) = 8, BOXES: (1, 2, 4) = 1, BUSY: (0, 1) = 0):
    """A turn of a ring of four: wait, expect, BOXES copies: what a thread needs to issue them; BUSY 1: beside four warps that take
    multiply-adds.
    """
    where(R >= 4 * ROWS)
    launch(ctas=G)

    others = role(warp, count=4)
    producer = role(thread)

    x_s = smem(bf16, BOXES * ROWS, 64, stages=4, swizzle=128)
    full = mbarrier(stages=4, arrivals=1)

    with producer:
        for t in range(trips):
            wait(full[t - 4])
            expect(full[t])
            for i in unroll(BOXES):
                tma_load(x_s[t].rows(ROWS * i, ROWS), x[ROWS * i:, :], signal=full[t])
        for s in range(4):
            wait(full[trips - 4 + s])
        store(y[cta], trips)
    with others as o:
        v = fragment(f32, vec(1).cols[32], 1)
        if BUSY == 1:
            for t in range(trips):
                for i in unroll(8):
                    v = v * p + q
        store(z[cta, 32 * o:], v)


@kernel(target="sm_90a")
def copy_ring(x: In[bf16, R, 64], y: Out[i32, G, WARPS], trips: i32, *,
              WARPS: (4, 8, 16) = 8, STAGES: (1, 2, 3, 4, 6) = 4):
    """Each warp copies 16 rows of 128 bytes a trip by cp.async, STAGES of them in flight; nothing reads them."""
    where(R >= 16, G <= 1024)
    launch(ctas=G)

    math = role(warp, count=WARPS)

    x_s = smem(bf16, 16 * WARPS, 64, stages=STAGES, swizzle=128)

    with math as w:
        boxes = R // 16
        at = cta * WARPS + w
        for t in range(trips):
            cp_async(x_s[t].rows(16 * w, 16), x[at * 16:, :])
            cp_async_commit()
            cp_async_wait(STAGES - 1)
            sync(warp)
            at += cta_count * WARPS
            if at >= boxes:
                at = at - boxes
        cp_async_wait(0)
        store(y[cta, w], at)


@kernel(target="sm_90a")
def fed_mma_sync(a: In[bf16, 128, K], b: In[bf16, 128, K], y: Out[f32, G, 8, 64], *, STAGES: (2, 3, 4) = 4):
    """The main loop of an Ampere GEMM: cp.async ring of 128 x 64 of A and of B (all CTAs the same), ldmatrix, mma.sync; eight warps of
    64 x 32.
    """
    where(K % 64 == 0, G <= 1024)
    launch(ctas=G)

    math = role(warp, count=8)

    a_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)
    b_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)

    with math as w:
        part = 16 * w
        wm = 64 * (w // 4)
        wn = 32 * (w % 4)
        acc = fragment(f32, mma_d[64, 32], 0)
        for n in unroll(STAGES - 1):
            cp_async(a_s[n].rows(part, 16), a[part:, n * 64:])
            cp_async(b_s[n].rows(part, 16), b[part:, n * 64:])
            cp_async_commit()
        for k in range(K // 64):
            n = k + STAGES - 1
            cp_async_wait(STAGES - 2)
            sync(math)
            cp_async(a_s[n].rows(part, 16), a[part:, n * 64:])
            cp_async(b_s[n].rows(part, 16), b[part:, n * 64:])
            cp_async_commit()
            for j in unroll(4):
                fa = ldmatrix(a_s[k].rows(wm, 64).cols(16 * j, 16), mma_a[64, 16])
                fb = ldmatrix(b_s[k].rows(wn, 32).cols(16 * j, 16), mma_b[32, 16])
                mma(acc, fa, fb)
        cp_async_wait(0)
        store(y[cta, w, :], row_max(acc))


@kernel(target="sm_90a")
def epilogue_tma(y: Out[bf16, T, G, 64 * WG, BN], *, BN: (64, 128, 256) = 128, WG: (1, 2) = 2, BUFFERS: (1, 2) = 1):
    """A tile of accumulators as bf16 by stmatrix, fence and one tensor store of each warpgroup; T times."""
    launch(ctas=G)

    math = role(warpgroup, count=WG)

    y_s = smem(bf16, 64 * WG, BN, stages=BUFFERS, swizzle=128)

    with math as wg:
        acc = fragment(f32, wgmma_d[64, BN], 1)
        for t in range(T):
            with elected():
                bulk_wait_read(BUFFERS - 1)
            sync(warpgroup)
            stmatrix(y_s[t].rows(64 * wg, 64), cast(acc, bf16))
            fence_async()
            sync(warpgroup)
            with elected():
                tma_store(y[t, cta, 64 * wg:, :], y_s[t].rows(64 * wg, 64))
                bulk_commit()
            acc = acc + 1
        with elected():
            bulk_wait_read(0)


@kernel(target="sm_90a")
def epilogue_plain(y: Out[DT, T, G, 64 * WG, BN], *, DT: (bf16, f32) = bf16, BN: (64, 128, 256) = 128, WG: (1, 2) = 2):
    """A tile of accumulators stored from the registers; T times."""
    launch(ctas=G)

    math = role(warpgroup, count=WG)

    with math as wg:
        acc = fragment(f32, wgmma_d[64, BN], 1)
        for t in range(T):
            store(y[t, cta, 64 * wg:, :], cast(acc, DT))
            acc = acc + 1
