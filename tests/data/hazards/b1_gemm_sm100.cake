"""B1: Blackwell GEMM, persistent, one CTA per product: TMA ring, tcgen05 by one thread, two accumulators in tensor memory."""


@kernel(target="sm_100a")
def gemm(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[bf16, M, N], *, STAGES: range(2, 5) = 4):
    where(K > 0, K % 8 == 0, N % 8 == 0)
    KT = ceil_div(K, 64)
    tiles = tile_space(ceil_div(M, 128), ceil_div(N, 256))
    launch(ctas=min(tiles.count, device.sms))

    epilogue = role(warpgroup)
    producer = role(thread)
    issuer = role(thread)

    a_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)
    b_s = smem(bf16, 256, 64, stages=STAGES, swizzle=128)
    acc_t = tmem(f32, 128, 256, stages=2, owner=issuer)
    full = mbarrier(stages=STAGES)
    empty = mbarrier(stages=STAGES)
    done = mbarrier(stages=2)
    drained = mbarrier(stages=2)

    n = 0
    t = 0
    for tile_m, tile_n in tiles.persistent():
        row = tile_m * 128
        col = tile_n * 256
        with issuer:
            wait(drained[t - 2])
        for k in range(KT):
            with producer:
                wait(empty[n - STAGES])
                expect(full[n])
                tma_load(a_s[n], a[row:, k * 64:], signal=full[n])
                tma_load(b_s[n], b[col:, k * 64:], signal=full[n])
            with issuer:
                wait(full[n])
                tcgen05_mma(acc_t[t], a_s[n], b_s[n], init=k == 0)
                tcgen05_commit(empty[n])
            n += 1
        with issuer:
            tcgen05_commit(done[t])
        with epilogue:
            wait(done[t])
            for j in unroll(4):
                x = tmem_load(acc_t[t].cols(64 * j, 64), tmem_d[128, 64])
                tmem_load_wait()
                store(d[row:, col + 64 * j:], cast(x, bf16))
            arrive(drained[t])
        t += 1
