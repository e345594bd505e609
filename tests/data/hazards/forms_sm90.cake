"""One wgmma whose width, type and rows are tunables: the instruction table decides."""


@kernel(target="sm_90a")
def forms(a: In[T, ROWS, 128], b: In[T, BN, 128], d: Out[A, ROWS, BN], *, T: (bf16, f16, e4m3, i8) = bf16,
          A: (f32, i32) = f32, BN: (8, 12, 24, 40, 48, 128, 208, 256, 264) = 24, B_COLS: (64, 128) = 64, ROWS: (64, 128) = 64):
    launch(ctas=1)
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(T, ROWS, B_COLS, swizzle=128)
    b_s = smem(T, BN, B_COLS, swizzle=128)
    full = mbarrier()
    with producer:
        expect(full[0])
        tma_load(a_s, a[0:, 0:], signal=full[0])
        tma_load(b_s, b[0:, 0:], signal=full[0])
    with math:
        acc = fragment(A, wgmma_d[ROWS, BN])
        wait(full[0])
        wgmma(acc, a_s, b_s, init=True)
        wgmma_commit()
        wgmma_wait(0)
        store(d[0:, 0:], acc)
