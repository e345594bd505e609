"""B0: Hopper GEMM, one tile per CTA: a TMA ring, two warpgroups of wgmma, epilogue through shared memory and a TMA store."""


@kernel(target="sm_90a")
def gemm(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[bf16, M, N], *, STAGES: range(2, 6) = 4):
    where(K > 0, K % 8 == 0, N % 8 == 0)
    KT = ceil_div(K, 64)
    tiles = tile_space(ceil_div(M, 128), ceil_div(N, 128))
    launch(ctas=tiles.count)

    producer = role(thread, warps=4, registers=40)
    math = role(warpgroup, count=2, registers=232)

    a_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)
    b_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)
    d_s = smem(bf16, 128, 128, swizzle=128)
    full = mbarrier(stages=STAGES)
    empty = mbarrier(stages=STAGES)

    tile_m, tile_n = tiles.at(cta)
    row = tile_m * 128
    col = tile_n * 128
    with math as wg:
        acc = fragment(f32, wgmma_d[64, 128])
    for k in range(KT):
        with producer:
            wait(empty[k - STAGES])
            expect(full[k])
            tma_load(a_s[k], a[row:, k * 64:], signal=full[k])
            tma_load(b_s[k], b[col:, k * 64:], signal=full[k])
        with math as wg:
            wait(full[k])
            wgmma(acc, a_s[k].rows(64 * wg, 64), b_s[k], init=k == 0)
            wgmma_commit()
            wgmma_wait(0)
            with elected():
                arrive(empty[k])
    with math as wg:
        stmatrix(d_s.rows(64 * wg, 64), cast(acc, bf16))
        fence_async()
        sync(math)
        if wg == 0:
            with elected():
                tma_store(d[row:, col:], d_s)
                bulk_commit()
                bulk_wait_read(0)
