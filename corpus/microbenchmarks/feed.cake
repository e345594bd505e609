"""Products that a ring of copies feeds, as in the main loop of a GEMM, and products with pauses: rates and clocks under such loads."""


@kernel(target="sm_90a")
def fed_products(a: In[bf16, R, 64], b: In[bf16, R, 64], y: Out[f32, G, 128], p: f32, q: f32, rest: i32, trips: i32, *,
                 BN: (64, 128, 256) = 256, STAGES: (2, 3, 4, 8) = 4):
    """A trip: boxes of A (128 x 64) and B (BN x 64) from memory and the product m128 x BN x k64 of two warpgroups, in a ring of STAGES,
    then a pause of `rest` times 16 dependent multiply-adds. Eight CTAs read the same B, every eighth the same A.
    """
    where(R >= BN, G <= 1024)
    launch(ctas=G)

    math = role(warpgroup, count=2, registers=232)
    producer = role(thread, warps=4, registers=40)

    a_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)
    b_s = smem(bf16, BN, 64, stages=STAGES, swizzle=128)
    full = mbarrier(stages=STAGES, arrivals=1)
    free = mbarrier(stages=STAGES, arrivals=8)

    with producer:
        a_at = 128 * (cta % 8)
        b_at = BN * (cta // 8)
        for t in range(trips):
            wait(free[t - STAGES])
            expect(full[t])
            tma_load(a_s[t], a[a_at:, :], signal=full[t])
            tma_load(b_s[t], b[b_at:, :], signal=full[t])
            a_at += 1024
            b_at += 32 * BN
            if a_at >= R:
                a_at = a_at - R
            if b_at >= R:
                b_at = b_at - R
    with math as wg:
        acc = fragment(f32, wgmma_d[64, BN], 0)
        v = fragment(f32, wgmma_d.rows[64], 1)
        for t in range(trips):
            wait(full[t])
            wgmma(acc, a_s[t].rows(64 * wg, 64), b_s[t])
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[t])
            for s in range(rest):
                for i in unroll(16):
                    v = v * p + q
        store(y[cta, 64 * wg:], row_max(acc) + v)


@kernel(target="sm_90a")
def fed_copies(a: In[bf16, R, 64], b: In[bf16, R, 64], y: Out[i32, G, 8], trips: i32, *,
               BN: (64, 128, 256) = 256, STAGES: (2, 3, 4, 8) = 4):
    """The ring of fed_products without its products: eight warps wait for the boxes and give them back."""
    where(R >= BN, G <= 1024)
    launch(ctas=G)

    math = role(warp, count=8)
    producer = role(thread)

    a_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)
    b_s = smem(bf16, BN, 64, stages=STAGES, swizzle=128)
    full = mbarrier(stages=STAGES, arrivals=1)
    free = mbarrier(stages=STAGES, arrivals=8)

    with producer:
        a_at = 128 * (cta % 8)
        b_at = BN * (cta // 8)
        for t in range(trips):
            wait(free[t - STAGES])
            expect(full[t])
            tma_load(a_s[t], a[a_at:, :], signal=full[t])
            tma_load(b_s[t], b[b_at:, :], signal=full[t])
            a_at += 1024
            b_at += 32 * BN
            if a_at >= R:
                a_at = a_at - R
            if b_at >= R:
                b_at = b_at - R
    with math as w:
        for t in range(trips):
            wait(full[t])
            arrive(free[t])
        store(y[cta, w], trips)
