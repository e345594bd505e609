"""D = A @ B.T, bf16, Hopper: persistent grouped tiles, TMA ring, two math warpgroups, cluster of two sharing B by multicast."""


@kernel(target="sm_90a")
def gemm_sm90(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[bf16, M, N], *,
              BN: (128, 256) = 256, STAGES: range(2, 8) = 4, GROUP: (1, 4, 8, 16) = 8):
    where(K > 0, K % 8 == 0, N % 8 == 0)
    BM = 128
    BK = 64
    KT = ceil_div(K, BK)
    tiles = tile_space(ceil_div(M, 2 * BM), ceil_div(N, BN), group=GROUP)
    launch(ctas=2 * min(tiles.count, device.sms // 2), cluster=2)

    producer = role(thread, warps=4, registers=40)
    math = role(warpgroup, count=2, registers=232)

    a_s = smem(bf16, BM, BK, stages=STAGES, swizzle=128)
    b_s = smem(bf16, BN, BK, stages=STAGES, swizzle=128)
    d_s = smem(bf16, BM, 64, stages=2, swizzle=128)
    full = mbarrier(stages=STAGES, arrivals=1)
    free = mbarrier(stages=STAGES, arrivals=4)

    n = 0
    with math as wg:
        e = 0
    for tile_m, tile_n in tiles.persistent():
        row = (2 * tile_m + cluster_rank) * BM
        col = tile_n * BN
        half = cluster_rank * (BN // 2)
        with math as wg:
            acc = fragment(f32, wgmma_d[64, BN])
        for k in range(KT):
            with producer:
                wait(free[n - STAGES])
                expect(full[n])
                tma_load(a_s[n], a[row:, k * BK:], signal=full[n])
                tma_load(b_s[n].rows(half, BN // 2), b[col + half:, k * BK:], signal=full[n], multicast=cluster)
            with math as wg:
                wait(full[n])
                wgmma(acc, a_s[n].rows(64 * wg, 64), b_s[n], init=k == 0)
                wgmma_commit()
                wgmma_wait(1)
                if k > 0:
                    with elected():
                        arrive(free[n - 1].on(0))
                        arrive(free[n - 1].on(1))
            n += 1
        with math as wg:
            wgmma_wait(0)
            with elected():
                arrive(free[n - 1].on(0))
                arrive(free[n - 1].on(1))
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
