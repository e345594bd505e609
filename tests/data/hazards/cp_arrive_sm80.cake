"""cp.async producers that signal an mbarrier ring, ldmatrix consumers that release it."""


@kernel(target=("sm_80", "sm_90a"))
def gemm(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[bf16, M, N], *, STAGES: range(2, 5) = 3):
    where(K % 8 == 0, N % 8 == 0)
    launch(ctas=ceil_div(M, 64) * ceil_div(N, 64))
    loader = role(warp, count=4)
    math = role(warp, count=4)
    a_s = smem(bf16, 64, 64, stages=STAGES, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=STAGES, swizzle=128)
    full = mbarrier(stages=STAGES)
    free = mbarrier(stages=STAGES)
    row = cta // ceil_div(N, 64) * 64
    col = cta % ceil_div(N, 64) * 64
    with math as w:
        acc = fragment(f32, mma_d[16, 64], 0)
    for k in range(ceil_div(K, 64)):
        with loader as l:
            wait(free[k - STAGES])
            cp_async(a_s[k].rows(16 * l, 16), a[row + 16 * l:, k * 64:])
            cp_async(b_s[k].rows(16 * l, 16), b[col + 16 * l:, k * 64:])
            cp_async_arrive(full[k])
        with math as w:
            wait(full[k])
            for j in unroll(4):
                fa = ldmatrix(a_s[k].rows(16 * w, 16).cols(16 * j, 16), mma_a[16, 16])
                fb = ldmatrix(b_s[k].cols(16 * j, 16), mma_b[64, 16])
                mma(acc, fa, fb)
            arrive(free[k])
    with math as w:
        store(d[row + 16 * w:, col:], cast(acc, bf16))
