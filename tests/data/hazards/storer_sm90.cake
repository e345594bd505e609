"""A GEMM whose epilogue hands tiles to a storing thread through a ring of two."""


@kernel(target="sm_90a")
def gemm(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[bf16, M, N], *, STAGES: range(2, 6) = 4):
    where(K > 0, K % 8 == 0, N % 8 == 0)
    KT = ceil_div(K, 64)
    tiles = tile_space(ceil_div(M, 128), ceil_div(N, 128))
    launch(ctas=min(tiles.count, device.sms))
    producer = role(thread)
    storer = role(thread, warps=3)
    math = role(warpgroup, count=2)
    a_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)
    b_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)
    d_s = smem(bf16, 128, 128, stages=2, swizzle=128)
    full = mbarrier(stages=STAGES)
    free = mbarrier(stages=STAGES)
    d_full = mbarrier(stages=2)
    d_free = mbarrier(stages=2)
    n = 0
    t = 0
    for tile_m, tile_n in tiles.persistent():
        row = tile_m * 128
        col = tile_n * 128
        with math:
            acc = fragment(f32, wgmma_d[64, 128])
        for k in range(KT):
            with producer:
                wait(free[n - STAGES])
                expect(full[n])
                tma_load(a_s[n], a[row:, k * 64:], signal=full[n])
                tma_load(b_s[n], b[col:, k * 64:], signal=full[n])
            with math as wg:
                wait(full[n])
                wgmma(acc, a_s[n].rows(64 * wg, 64), b_s[n], init=k == 0)
                wgmma_commit()
                wgmma_wait(0)
                arrive(free[n])
            n += 1
        with math as wg:
            wait(d_free[t - 2])
            stmatrix(d_s[t].rows(64 * wg, 64), cast(acc, bf16))
            fence_async()
            arrive(d_full[t])
        with storer:
            wait(d_full[t])
            tma_store(d[row:, col:], d_s[t])
            bulk_commit()
            bulk_wait_read(1)
            if t > 0:
                arrive(d_free[t - 1])
        t += 1
    with storer:
        bulk_wait_read(0)
        arrive(d_free[t - 1])
