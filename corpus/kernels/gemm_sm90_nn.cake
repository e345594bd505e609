"""D = A @ B, bf16, Hopper: gemm_sm90_cluster with B as it lies, K rows of N, read by wgmma through a transposed view."""


@kernel(target="sm_90a")
def gemm_sm90_nn(a: In[bf16, M, K], b: In[bf16, K, N], d: Out[bf16, M, N], *,
                 WGS: (1, 2) = 2, BN: (64, 128, 192, 256) = 256, CM: (1, 2, 4) = 2, CN: (1, 2, 4) = 1,
                 STAGES: range(2, 9) = 4, GROUP: (1, 2, 4, 8, 16, 32) = 8, PDL: (0, 1) = 0):
    where(K > 0, K % 8 == 0, N % 8 == 0)
    BM = 64 * WGS
    BK = 64
    CTAS = CM * CN
    # what each CTA loads of a tile that it shares with its row or column of the cluster
    AR = BM // CN
    BR = BN // CM
    KT = ceil_div(K, BK)
    tiles = tile_space(ceil_div(M, CM * BM), ceil_div(N, CN * BN), group=GROUP)
    # no more clusters than the waves need: tiles of a wave stay neighbours, and what idles leaves its power to the others
    waves = max(1, ceil_div(tiles.count, device.sms // CTAS))
    launch(ctas=CTAS * ceil_div(tiles.count, waves), cluster=CTAS)

    producer = role(thread, warps=4, registers=40)
    math = role(warpgroup, count=WGS, registers=232)

    a_s = smem(bf16, BM, BK, stages=STAGES, swizzle=128)
    b_s = smem(bf16, BK, BN, stages=STAGES, swizzle=128)
    d_s = smem(bf16, BM, 64, stages=2, swizzle=128)
    full = mbarrier(stages=STAGES, arrivals=1)
    free = mbarrier(stages=STAGES, arrivals=WGS * (CM + CN - 1))

    if PDL == 1:
        griddep_wait()
        griddep_launch()
    cm = cluster_rank % CM
    cn = cluster_rank // CM
    n = 0
    with math as wg:
        e = 0
    for tile_m, tile_n in tiles.persistent():
        row = (CM * tile_m + cm) * BM
        col = (CN * tile_n + cn) * BN
        with math as wg:
            acc = fragment(f32, wgmma_d[64, BN])
        for k in range(KT):
            with producer:
                wait(free[n - STAGES])
                expect(full[n])
                if CN == 1:
                    tma_load(a_s[n], a[row:, k * BK:], signal=full[n])
                else:
                    tma_load(a_s[n].rows(cn * AR, AR), a[row + cn * AR:, k * BK:], signal=full[n],
                             multicast=range(cm, cm + CTAS, CM))
                if CM == 1:
                    tma_load(b_s[n], b[k * BK:, col:], signal=full[n])
                else:
                    tma_load(b_s[n].cols(cm * BR, BR), b[k * BK:, col + cm * BR:], signal=full[n],
                             multicast=range(cn * CM, cn * CM + CM))
            with math as wg:
                wait(full[n])
                wgmma(acc, a_s[n].rows(64 * wg, 64), b_s[n].T, init=k == 0)
                wgmma_commit()
                wgmma_wait(1)
                if k > 0:
                    with elected():
                        for r in unroll(CM):
                            arrive(free[n - 1].on(cn * CM + r))
                        for r in unroll(CN - 1):
                            arrive(free[n - 1].on((cluster_rank + CM * (r + 1)) % CTAS))
            n += 1
        with math as wg:
            wgmma_wait(0)
            with elected():
                for r in unroll(CM):
                    arrive(free[n - 1].on(cn * CM + r))
                for r in unroll(CN - 1):
                    arrive(free[n - 1].on((cluster_rank + CM * (r + 1)) % CTAS))
            for j in unroll(BN // 64):
                with elected():
                    bulk_wait_read(1)
                sync(warpgroup)
                stmatrix(d_s[e].rows(64 * wg, 64), cast(acc.cols(64 * j, 64), bf16))
                fence_async()
                sync(warpgroup)
                with elected():
                    tma_store(d[row + 64 * wg:, col + 64 * j:], d_s[e].rows(64 * wg, 64))
                    bulk_commit()
                e += 1
    with math as wg:
        with elected():
            bulk_wait_read(0)
    sync(cluster)
