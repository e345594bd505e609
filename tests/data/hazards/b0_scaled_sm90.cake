"""B0 with a vector of row scales in every stage, brought by the same barrier and read by plain loads."""


@kernel(target="sm_90a")
def gemm(a: In[bf16, M, K], b: In[bf16, N, K], scale: In[f32, KB, M], d: Out[bf16, M, N], *, STAGES: range(2, 6) = 4):
    where(K > 0, K % 8 == 0, N % 8 == 0, M % 4 == 0, KB >= ceil_div(K, 64))
    tiles = tile_space(ceil_div(M, 128), ceil_div(N, 128))
    launch(ctas=tiles.count)

    producer = role(thread, warps=4)
    math = role(warpgroup, count=2)

    a_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)
    b_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)
    scale_s = smem(f32, 128, stages=STAGES)
    full = mbarrier(stages=STAGES)
    empty = mbarrier(stages=STAGES)

    tile_m, tile_n = tiles.at(cta)
    row = tile_m * 128
    col = tile_n * 128
    with math as wg:
        acc = fragment(f32, wgmma_d[64, 128], 0)
    for k in range(ceil_div(K, 64)):
        with producer:
            wait(empty[k - STAGES])
            expect(full[k])
            tma_load(a_s[k], a[row:, k * 64:], signal=full[k])
            tma_load(b_s[k], b[col:, k * 64:], signal=full[k])
            tma_load(scale_s[k], scale[k, row:], signal=full[k])
        with math as wg:
            part = fragment(f32, wgmma_d[64, 128])
            wait(full[k])
            wgmma(part, a_s[k].rows(64 * wg, 64), b_s[k], init=True)
            wgmma_commit()
            factor = load(scale_s[k].cols(64 * wg, 64), wgmma_d.rows[64])
            wgmma_wait(0)
            acc = acc + part * factor[:, None]
            fence_async()
            arrive(empty[k])
    with math as wg:
        store(d[row + 64 * wg:, col:], cast(acc, bf16))
