"""B2: Ampere GEMM: a cp.async ring whose tail commits empty groups, ldmatrix and mma.sync."""


@kernel(target=("sm_80", "sm_90a"))
def gemm(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[bf16, M, N], *, STAGES: range(2, 6) = 4):
    where(K % 8 == 0, N % 8 == 0)
    KT = ceil_div(K, 64)
    tiles = tile_space(ceil_div(M, 128), ceil_div(N, 128))
    launch(ctas=tiles.count)

    math = role(warp, count=8)

    a_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)
    b_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)

    tile_m, tile_n = tiles.at(cta)
    row = tile_m * 128
    col = tile_n * 128
    with math as w:
        part = 16 * w
        wm = 64 * (w // 4)
        wn = 32 * (w % 4)
        acc = fragment(f32, mma_d[64, 32], 0)
        for n in unroll(STAGES - 1):
            if n < KT:
                cp_async(a_s[n].rows(part, 16), a[row + part:, n * 64:])
                cp_async(b_s[n].rows(part, 16), b[col + part:, n * 64:])
            cp_async_commit()
        for k in range(KT):
            n = k + STAGES - 1
            cp_async_wait(STAGES - 2)
            sync(math)
            for j in unroll(4):
                fa = ldmatrix(a_s[k].rows(wm, 64).cols(16 * j, 16), mma_a[64, 16])
                fb = ldmatrix(b_s[k].rows(wn, 32).cols(16 * j, 16), mma_b[32, 16])
                mma(acc, fa, fb)
            if n < KT:
                cp_async(a_s[n].rows(part, 16), a[row + part:, n * 64:])
                cp_async(b_s[n].rows(part, 16), b[col + part:, n * 64:])
            cp_async_commit()
        cp_async_wait(0)
        store(d[row + wm:, col + wn:], cast(acc, bf16))
