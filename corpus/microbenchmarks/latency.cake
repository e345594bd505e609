"""Latencies: chains in which each step needs the result of the one before, in one warp (or thread) of one CTA."""


@kernel(target="sm_90a")
def shared_chase(y: Out[i32, G], trips: i32):
    """A thread loads words of shared memory one after another, each address from the word before; sixteen a trip."""
    launch(ctas=G)

    single = role(thread)

    t_s = smem(i32, 64)

    with single:
        for i in range(64):
            store(t_s[i], (5 * i + 1) & 63)
        at = 0
        for t in range(trips):
            for i in unroll(16):
                at = load(t_s[at & 63])
        store(y[cta], at)


@kernel(target="sm_90a")
def shared_use(y: Out[f32, G], trips: i32):
    """A warp loads 128 bytes of shared memory and takes a maximum with it, one after the other."""
    launch(ctas=G)

    math = role(warp)

    t_s = smem(f32, 8, 32)

    with math as w:
        for i in unroll(8):
            store(t_s[i], fragment(f32, vec(1).cols[32], i))
        sync(warp)
        top = fragment(f32, vec(1).cols[32], 0)
        for t in range(trips):
            top = max(top, load(t_s[t & 7], vec(1).cols[32]))
        store(y[cta], row_max(top))


@kernel(target="sm_90a")
def matrix_use(y: Out[f32, G, 16], trips: i32, *, LOAD: (0, 1) = 1):
    """A warp's mma.sync m16n8k16 one after the other; LOAD 1: each waits for its own ldmatrix x4, which waits for nothing."""
    launch(ctas=G)

    math = role(warp)

    t_s = smem(bf16, 16, 64, stages=2, swizzle=128)

    with math as w:
        store(t_s[0], fragment(bf16, vec(8, 8)[16, 64], 1))
        store(t_s[1], fragment(bf16, vec(8, 8)[16, 64], 2))
        sync(warp)
        fb = ldmatrix(t_s[0].rows(0, 8).cols(0, 16), mma_b[8, 16])
        fa = ldmatrix(t_s[0].cols(0, 16), mma_a[16, 16])
        acc = fragment(f32, mma_d[16, 8], 0)
        for t in range(trips):
            if LOAD == 1:
                fa = ldmatrix(t_s[t].cols(0, 16), mma_a[16, 16])
            mma(acc, fa, fb)
        store(y[cta, :], row_max(acc))


@kernel(target="sm_90a")
def chain(x: In[f32, 32], y: Out[f32, G], p: f32, q: f32, m: i32, n: i32, trips: i32, *, FN: range(0, 8) = 0):
    """Sixteen dependent instructions a trip: exp2, rsqrt, tanh, minimum, IMAD, conversion to bf16 and back after a product,
    shuffle and select, addition.
    """
    launch(ctas=G)

    math = role(warp)

    with math as w:
        v = load(x[:], vec(1).cols[32])
        i = bitcast(v, i32)
        for t in range(trips):
            for j in unroll(16):
                if FN == 0:
                    v = exp2(v)
                elif FN == 1:
                    v = rsqrt(v)
                elif FN == 2:
                    v = tanh(v)
                elif FN == 3:
                    if j % 2 == 0:
                        v = min(v, p)
                    else:
                        v = max(v, q)
                elif FN == 4:
                    i = i * m + n
                elif FN == 5:
                    v = cast(cast(v * p, bf16), f32)
                elif FN == 6:
                    v = shift(v, p)
                else:
                    v = v + p
        store(y[cta], row_max(v + bitcast(i, f32)))


@kernel(target="sm_90a")
def product_wait(a: In[bf16, 64, 128], b: In[bf16, 256, 128], y: Out[f32, G, 64], trips: i32, *,
                 BN: (64, 128, 256) = 128, K: (16, 32, 64, 128) = 64, RS: (0, 1) = 0):
    """A warpgroup issues one product m64 x BN x K and waits for it."""
    launch(ctas=G)

    math = role(warpgroup)
    producer = role(thread)

    a_s = smem(bf16, 64, 128, swizzle=128)
    b_s = smem(bf16, BN, 128, swizzle=128)
    full = mbarrier(arrivals=1)

    with producer:
        expect(full[0])
        tma_load(a_s, a[:, :], signal=full[0])
        tma_load(b_s, b[:, :], signal=full[0])
    with math as wg:
        acc = fragment(f32, wgmma_d[64, BN], 0)
        wait(full[0])
        if RS == 1:
            fa = ldmatrix(a_s.cols(0, K), wgmma_a[64, K])
            for t in range(trips):
                wgmma(acc, fa, b_s.cols(0, K))
                wgmma_commit()
                wgmma_wait(0)
        else:
            for t in range(trips):
                wgmma(acc, a_s.cols(0, K), b_s.cols(0, K))
                wgmma_commit()
                wgmma_wait(0)
        store(y[cta, :], row_max(acc))
