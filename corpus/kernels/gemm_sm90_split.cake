"""D = A @ B.T, bf16, Hopper, for few tiles: the CTAs of a cluster share one tile's K and add their parts through distributed shared memory."""


@kernel(target="sm_90a")
def gemm_sm90_split(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[bf16, M, N], *,
                    WGS: (1, 2) = 1, BN: (64, 128, 256) = 128, CM: (1, 2, 4) = 1, KS: (2, 4, 8) = 2,
                    STAGES: range(2, 9) = 6, GROUP: (1, 2, 4, 8, 16, 32) = 4, PDL: (0, 1) = 0):
    where(K > 0, K % 8 == 0, N % 8 == 0, BN // KS >= 32, CM * KS <= 8)
    BM = 64 * WGS
    BK = 64
    CTAS = CM * KS
    BR = BN // CM
    # columns that a CTA adds up and stores, and as many as go through shared memory at a time
    W = BN // KS
    CW = min(W, 64)
    # every CTA takes as many steps, the last ones perhaps past the end, where copies give zeros
    KT = ceil_div(ceil_div(K, BK), KS)
    tiles = tile_space(ceil_div(M, CM * BM), ceil_div(N, BN), group=GROUP)
    launch(ctas=CTAS * tiles.count, cluster=CTAS)

    producer = role(thread, warps=4, registers=40)
    math = role(warpgroup, count=WGS, registers=232)

    a_s = smem(bf16, BM, BK, stages=STAGES, swizzle=128)
    b_s = smem(bf16, BN, BK, stages=STAGES, swizzle=128)
    part = smem(f32, BM, W, stages=KS - 1, swizzle=128, over=b_s)
    d_s = smem(bf16, BM, CW, stages=2, swizzle=2 * CW)
    full = mbarrier(stages=STAGES, arrivals=1)
    free = mbarrier(stages=STAGES, arrivals=WGS * CM)

    if PDL == 1:
        griddep_wait()
        griddep_launch()
    cm = cluster_rank % CM
    ks = cluster_rank // CM
    tile_m, tile_n = tiles.at(cluster_id)
    row = (CM * tile_m + cm) * BM
    col = tile_n * BN
    with math as wg:
        acc = fragment(f32, wgmma_d[64, BN])
    for n in range(KT):
        k = (ks * KT + n) * BK
        with producer:
            wait(free[n - STAGES])
            expect(full[n])
            tma_load(a_s[n], a[row:, k:], signal=full[n])
            if CM == 1:
                tma_load(b_s[n], b[col:, k:], signal=full[n])
            else:
                tma_load(b_s[n].rows(cm * BR, BR), b[col + cm * BR:, k:], signal=full[n],
                         multicast=range(ks * CM, ks * CM + CM))
        with math as wg:
            wait(full[n])
            wgmma(acc, a_s[n].rows(64 * wg, 64), b_s[n], init=n == 0)
            wgmma_commit()
            wgmma_wait(1)
            if n > 0:
                with elected():
                    for r in unroll(CM):
                        arrive(free[n - 1].on(ks * CM + r))
    with math as wg:
        wgmma_wait(0)
    # the stages of the whole cluster are free: parts may lie over them
    sync(cluster)
    with math as wg:
        for o in unroll(KS):
            if ks != o:
                store(part[(ks + KS - 1 - o) % KS].rows(64 * wg, 64).on(cm + CM * o), acc.cols(W * o, W))
    sync(cluster)
    with math as wg:
        for o in unroll(KS):
            if ks == o:
                for j in unroll(W // CW):
                    x = acc.cols(W * o + CW * j, CW) + load(part[0].rows(64 * wg, 64).cols(CW * j, CW), wgmma_d[64, CW])
                    for s in unroll(KS - 2):
                        x = x + load(part[s + 1].rows(64 * wg, 64).cols(CW * j, CW), wgmma_d[64, CW])
                    with elected():
                        bulk_wait_read(1)
                    sync(warpgroup)
                    stmatrix(d_s[j].rows(64 * wg, 64), cast(x, bf16))
                    fence_async()
                    sync(warpgroup)
                    with elected():
                        tma_store(d[row + 64 * wg:, col + W * o + CW * j:], d_s[j].rows(64 * wg, 64))
                        bulk_commit()
        with elected():
            bulk_wait_read(0)
