"""Hopper GEMM fed by cp.async: copies of the generic proxy, so a proxy fence comes between them and wgmma."""


@kernel(target="sm_90a")
def gemm(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[bf16, M, N], *, STAGES: (3, 4) = 3):
    where(K % 8 == 0, N % 8 == 0)
    launch(ctas=ceil_div(M, 64) * ceil_div(N, 128))

    math = role(warpgroup)

    a_s = smem(bf16, 64, 64, stages=STAGES, swizzle=128)
    b_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)

    row = cta // ceil_div(N, 128) * 64
    col = cta % ceil_div(N, 128) * 128
    with math:
        acc = fragment(f32, wgmma_d[64, 128], 0)
        for n in unroll(STAGES - 1):
            cp_async(a_s[n], a[row:, n * 64:])
            cp_async(b_s[n], b[col:, n * 64:])
            cp_async_commit()
        for k in range(ceil_div(K, 64)):
            n = k + STAGES - 1
            cp_async_wait(STAGES - 2)
            fence_async()
            sync(math)
            wgmma(acc, a_s[k], b_s[k])
            wgmma_commit()
            wgmma_wait(0)
            sync(math)
            cp_async(a_s[n], a[row:, n * 64:])
            cp_async(b_s[n], b[col:, n * 64:])
            cp_async_commit()
        cp_async_wait(0)
        store(d[row:, col:], cast(acc, bf16))
