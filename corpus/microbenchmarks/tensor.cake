"""Tensor-core rates: one product form per kernel, repeated `trips` times on operands that stay where they are."""


@kernel(target="sm_90a")
def wgmma_ss(a: In[DT, 128, 64], b: In[DT, 256, 64], y: Out[f32, G, 64 * WG], trips: i32, *,
             DT: (bf16, f16) = bf16, BN: (64, 128, 256) = 128, WG: (1, 2) = 2):
    """Both operands from shared memory; 4 instructions of k16 a trip and warpgroup."""
    launch(ctas=G)

    math = role(warpgroup, count=WG)
    producer = role(thread)

    a_s = smem(DT, 128, 64, swizzle=128)
    b_s = smem(DT, BN, 64, swizzle=128)
    full = mbarrier(arrivals=1)

    with producer:
        expect(full[0])
        tma_load(a_s, a[:, :], signal=full[0])
        tma_load(b_s, b[:, :], signal=full[0])
    with math as wg:
        acc = fragment(f32, wgmma_d[64, BN], 0)
        wait(full[0])
        for t in range(trips):
            wgmma(acc, a_s.rows(64 * wg, 64), b_s)
            wgmma_commit()
            wgmma_wait(0)
        store(y[cta, 64 * wg:], row_max(acc))


@kernel(target="sm_90a")
def wgmma_rs(a: In[DT, 128, 64], b: In[DT, 256, 64], y: Out[f32, G, 64 * WG], trips: i32, *,
             DT: (bf16, f16) = bf16, BN: (64, 128, 256) = 128, WG: (1, 2) = 2):
    """A from registers, B from shared memory; 4 instructions of k16 a trip and warpgroup."""
    launch(ctas=G)

    math = role(warpgroup, count=WG, registers=216)
    producer = role(thread, warps=4, registers=40)

    a_s = smem(DT, 128, 64, swizzle=128)
    b_s = smem(DT, BN, 64, swizzle=128)
    full = mbarrier(arrivals=1)

    with producer:
        expect(full[0])
        tma_load(a_s, a[:, :], signal=full[0])
        tma_load(b_s, b[:, :], signal=full[0])
    with math as wg:
        acc = fragment(f32, wgmma_d[64, BN], 0)
        wait(full[0])
        fa = ldmatrix(a_s.rows(64 * wg, 64), wgmma_a[64, 64])
        for t in range(trips):
            wgmma(acc, fa, b_s)
            wgmma_commit()
            wgmma_wait(0)
        store(y[cta, 64 * wg:], row_max(acc))


@kernel(target="sm_90a")
def mma_sync(a: In[f32, 64, 16], b: In[f32, 32, 16], y: Out[f32, G, WARPS, 64], trips: i32, *,
             DT: (bf16, f16) = bf16, WARPS: (4, 8, 16) = 8):
    """mma.sync m16n8k16 from registers; 16 independent instructions a trip and warp."""
    launch(ctas=G)

    math = role(warp, count=WARPS)

    with math as w:
        fa = operand_a(cast(load(a[:, :], mma_d[64, 16]) * 0.5, DT))
        fb = operand_b(cast(load(b[:, :], mma_d[32, 16]) * 0.5, DT))
        acc = fragment(f32, mma_d[64, 32], 0)
        for t in range(trips):
            mma(acc, fa, fb)
        store(y[cta, w, :], row_max(acc))
