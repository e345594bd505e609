"""B3: Blackwell GEMM by CTA pairs: each CTA loads its halves of A and B, the leader's barriers count for both."""


@kernel(target="sm_100a")
def gemm(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[bf16, M, N], *, STAGES: range(2, 6) = 4):
    where(K > 0, K % 8 == 0, N % 8 == 0)
    KT = ceil_div(K, 64)
    tiles = tile_space(ceil_div(M, 256), ceil_div(N, 256))
    launch(ctas=2 * min(tiles.count, device.sms // 2), cluster=2)

    epilogue = role(warpgroup)
    producer = role(thread)
    issuer = role(thread)

    a_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)
    b_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)
    acc_t = tmem(f32, 128, 256, stages=2, owner=issuer)
    full = mbarrier(stages=STAGES)
    empty = mbarrier(stages=STAGES)
    done = mbarrier(stages=2)
    drained = mbarrier(stages=2)

    lead = cluster_rank == 0
    n = 0
    t = 0
    for tile_m, tile_n in tiles.persistent():
        row = (2 * tile_m + cluster_rank) * 128
        col = tile_n * 256
        with issuer:
            if lead:
                wait(drained[t - 2])
        for k in range(KT):
            with producer:
                wait(empty[n - STAGES])
                if lead:
                    expect(full[n])
                tma_load(a_s[n], a[row:, k * 64:], signal=full[n].on(0))
                tma_load(b_s[n], b[col + cluster_rank * 128:, k * 64:], signal=full[n].on(0))
            with issuer:
                if lead:
                    wait(full[n])
                    tcgen05_mma(acc_t[t], a_s[n], b_s[n], init=k == 0, cta_group=2)
                    tcgen05_commit(empty[n], multicast=cluster)
            n += 1
        with issuer:
            if lead:
                tcgen05_commit(done[t], multicast=cluster)
        with epilogue:
            wait(done[t])
            for j in unroll(4):
                x = tmem_load(acc_t[t].cols(64 * j, 64), tmem_d[128, 64])
                tmem_load_wait()
                store(d[row:, col + 64 * j:], cast(x, bf16))
            arrive(drained[t].on(0))
        t += 1
    with producer:
        for s in range(STAGES):
            wait(empty[n - STAGES + s])
    sync(cluster)
