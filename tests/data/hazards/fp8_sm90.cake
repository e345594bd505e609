"""fp8 GEMM on Hopper: every 128 columns of K go through a product of their own and are promoted to f32 registers."""


@kernel(target="sm_90a")
def gemm(a: In[e4m3, M, K], b: In[e4m3, N, K], d: Out[bf16, M, N], *, STAGES: (2, 3, 4) = 3):
    where(K > 0, K % 16 == 0)
    launch(ctas=ceil_div(M, 64) * ceil_div(N, 128))

    producer = role(thread, warps=4)
    math = role(warpgroup)

    a_s = smem(e4m3, 64, 128, stages=STAGES, swizzle=128)
    b_s = smem(e4m3, 128, 128, stages=STAGES, swizzle=128)
    full = mbarrier(stages=STAGES)
    empty = mbarrier(stages=STAGES)

    row = cta // ceil_div(N, 128) * 64
    col = cta % ceil_div(N, 128) * 128
    with math:
        acc = fragment(f32, wgmma_d[64, 128], 0)
    for k in range(ceil_div(K, 128)):
        with producer:
            wait(empty[k - STAGES])
            expect(full[k])
            tma_load(a_s[k], a[row:, k * 128:], signal=full[k])
            tma_load(b_s[k], b[col:, k * 128:], signal=full[k])
        with math:
            part = fragment(f32, wgmma_d[64, 128])
            wait(full[k])
            wgmma(part, a_s[k], b_s[k], init=True)
            wgmma_commit()
            wgmma_wait(0)
            acc = acc + part
            arrive(empty[k])
    with math:
        store(d[row:, col:], cast(acc, bf16))
