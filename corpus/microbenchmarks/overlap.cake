"""What instructions of one warpgroup cost while the products of others keep the tensor cores busy."""


@kernel(target="sm_90a")
def behind_products(a: In[bf16, 192, 128], b: In[bf16, BN, 128], s: In[f32, 64 * WG, 8], y: Out[f32, G, 64 * WG],
                    trips: i32, *,
                    BN: (64, 128, 256) = 128, WG: (1, 2, 3) = 3, FMA: range(0, 5) = 0, ALU: range(0, 5) = 0):
    """A trip of one warpgroup: a product m64 x BN x k128 with A in registers, then FMA and ALU instructions per element of it."""
    launch(ctas=G)

    math = role(warpgroup, count=WG, registers=select(WG == 3, 160, 240))
    producer = role(thread, warps=4, registers=24)

    a_s = smem(bf16, 64 * WG, 128, swizzle=128)
    b_s = smem(bf16, BN, 128, swizzle=128)
    full = mbarrier(arrivals=1)

    with producer:
        expect(full[0])
        tma_load(a_s, a[:, :], signal=full[0])
        tma_load(b_s, b[:, :], signal=full[0])
    with math as wg:
        wait(full[0])
        fa = ldmatrix(a_s.rows(64 * wg, 64), wgmma_a[64, 128])
        low = load(s[64 * wg:, :], wgmma_d[64, 8])
        bias = low
        for t in range(trips):
            acc = fragment(f32, wgmma_d[64, BN])
            wgmma(acc, fa, b_s, init=True)
            wgmma_commit()
            wgmma_wait(0)
            for j in unroll(BN // 8):
                v = acc.cols(8 * j, 8)
                for i in unroll(FMA):
                    v = v * 0.5 + bias
                for i in unroll(ALU):
                    if i % 2 == 0:
                        v = bitcast((bitcast(v, i32) & -32) | (j + i), f32)
                    else:
                        v = max(v, bias)
                low = min(low, v)
        store(y[cta, 64 * wg:], row_max(low))
