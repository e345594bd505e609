"""D = A @ B.T, bf16, Blackwell: TMA ring, tcgen05 by one CTA (CG=1) or a CTA pair (CG=2), two accumulators in tensor memory."""


@kernel(target="sm_100a")
def gemm_sm100(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[bf16, M, N], *,
               CG: (1, 2) = 2, BN: (128, 256) = 256, STAGES: range(2, 9) = 4, GROUP: (1, 4, 8, 16) = 8):
    where(K > 0, K % 8 == 0, N % 8 == 0)
    BM = 128
    BK = 64
    KT = ceil_div(K, BK)
    tiles = tile_space(ceil_div(M, CG * BM), ceil_div(N, BN), group=GROUP)
    launch(ctas=CG * min(tiles.count, device.sms // CG), cluster=CG)

    epi = role(warpgroup)
    producer = role(thread)
    issuer = role(thread)

    a_s = smem(bf16, BM, BK, stages=STAGES, swizzle=128)
    b_s = smem(bf16, BN // CG, BK, stages=STAGES, swizzle=128)
    d_s = smem(bf16, BM, 64, stages=2, swizzle=128)
    acc_t = tmem(f32, 128, BN, stages=2, owner=issuer)
    full = mbarrier(stages=STAGES)
    free = mbarrier(stages=STAGES)
    done = mbarrier(stages=2)
    drained = mbarrier(stages=2)

    lead = cluster_rank == 0
    n = 0
    t = 0
    with epi:
        e = 0
    for tile_m, tile_n in tiles.persistent():
        row = (CG * tile_m + cluster_rank) * BM
        col = tile_n * BN
        with issuer:
            if lead:
                wait(drained[t - 2])
        for k in range(KT):
            with producer:
                wait(free[n - STAGES])
                if lead:
                    expect(full[n])
                tma_load(a_s[n], a[row:, k * BK:], signal=full[n].on(0))
                tma_load(b_s[n], b[col + cluster_rank * (BN // CG):, k * BK:], signal=full[n].on(0))
            with issuer:
                if lead:
                    wait(full[n])
                    tcgen05_mma(acc_t[t], a_s[n], b_s[n], init=k == 0, cta_group=CG)
                    tcgen05_commit(free[n], multicast=cluster)
            n += 1
        with issuer:
            if lead:
                tcgen05_commit(done[t], multicast=cluster)
        with epi:
            wait(done[t])
            for j in unroll(BN // 64):
                x = tmem_load(acc_t[t].cols(64 * j, 64), tmem_d[128, 64])
                tmem_load_wait()
                if j == BN // 64 - 1:
                    arrive(drained[t].on(0))
                with elected():
                    bulk_wait_read(1)
                sync(warpgroup)
                store(d_s[e], cast(x, bf16))
                fence_async()
                sync(warpgroup)
                with elected():
                    tma_store(d[row:, col + 64 * j:], d_s[e])
                    bulk_commit()
                e += 1
        t += 1
    with producer:
        for s in range(STAGES):
            wait(free[n - STAGES + s])
    with epi:
        with elected():
            bulk_wait_read(0)
    sync(cluster)
