"""D = A @ B.T, bf16, Ampere: cp.async ring, ldmatrix, mma.sync, epilogue through shared memory."""


@kernel(target=("sm_80", "sm_90a"))
def gemm_sm80(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[bf16, M, N], *,
              STAGES: range(2, 6) = 4, GROUP: (1, 4, 8) = 8):
    where(K % 8 == 0, N % 8 == 0)
    BM = 128
    BN = 128
    BK = 64
    tiles = tile_space(ceil_div(M, BM), ceil_div(N, BN), group=GROUP)
    launch(ctas=tiles.count)

    math = role(warp, count=8)

    a_s = smem(bf16, BM, BK, stages=STAGES, swizzle=128)
    b_s = smem(bf16, BN, BK, stages=STAGES, swizzle=128)
    d_s = smem(bf16, BM, BN, swizzle=128, over=a_s)

    tile_m, tile_n = tiles.at(cta)
    row = tile_m * BM
    col = tile_n * BN
    with math as w:
        part = 16 * w
        wm = 64 * (w // 4)
        wn = 32 * (w % 4)
        acc = fragment(f32, mma_d[64, 32], 0)
        for n in unroll(STAGES - 1):
            cp_async(a_s[n].rows(part, 16), a[row + part:, n * BK:])
            cp_async(b_s[n].rows(part, 16), b[col + part:, n * BK:])
            cp_async_commit()
        for k in range(ceil_div(K, BK)):
            n = k + STAGES - 1
            cp_async_wait(STAGES - 2)
            sync(math)
            cp_async(a_s[n].rows(part, 16), a[row + part:, n * BK:])
            cp_async(b_s[n].rows(part, 16), b[col + part:, n * BK:])
            cp_async_commit()
            for j in unroll(BK // 16):
                fa = ldmatrix(a_s[k].rows(wm, 64).cols(16 * j, 16), mma_a[64, 16])
                fb = ldmatrix(b_s[k].rows(wn, 32).cols(16 * j, 16), mma_b[32, 16])
                mma(acc, fa, fb)
        cp_async_wait(0)
        sync(math)
        store(d_s.rows(wm, 64).cols(wn, 32), cast(acc, bf16))
        sync(math)
        store(d[row + part:, col:], load(d_s.rows(part, 16), vec(8, 16)[16, BN]))
