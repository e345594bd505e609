"""Right programs that look like wrong ones to somebody who follows slices: taps, planes, packed tensors, gates, running sums."""

from __future__ import annotations

PROGRAMS = {
    "wgrad taps unrolled": """
@kernel(target="sm_90a")
def wgrad(x: In[bf16, T, C], dy: In[bf16, T, O], dw: Out[f32, 3, C, O]):
    where(T % 64 == 0, T > 0)
    launch(ctas=ceil_div(C, 64) * ceil_div(O, 64))
    producer = role(thread, warps=4)
    math = role(warpgroup)
    x_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    y_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    c0 = cta // ceil_div(O, 64) * 64
    o0 = cta % ceil_div(O, 64) * 64
    n = 0
    for r in range(3):
        with math:
            acc = fragment(f32, wgmma_d[64, 64])
        for k in range(T // 64):
            with producer:
                wait(free[n - 2])
                expect(full[n])
                tma_load(x_s[n], x[64 * k + r:, c0:], signal=full[n])
                tma_load(y_s[n], dy[64 * k:, o0:], signal=full[n])
            with math:
                wait(full[n])
                wgmma(acc, x_s[n].T, y_s[n].T, init=k == 0)
                wgmma_commit()
                wgmma_wait(0)
                arrive(free[n])
            n += 1
        with math:
            store(dw[r, c0:, o0:], acc)
""",
    "dual gemm gated": """
@kernel(target="sm_90a")
def gated(x: In[bf16, M, K], w: In[bf16, 2 * N, K], d: Out[bf16, M, N]):
    where(K > 0, K % 8 == 0, N % 64 == 0)
    tiles = tile_space(ceil_div(M, 64), N // 64)
    launch(ctas=min(tiles.count, device.sms))
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    g_s = smem(bf16, 128, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    n = 0
    for tm, tn in tiles.persistent():
        with math:
            g = fragment(f32, wgmma_d[64, 64])
            u = fragment(f32, wgmma_d[64, 64])
        for k in range(ceil_div(K, 64)):
            with producer:
                wait(free[n - 2])
                expect(full[n])
                tma_load(a_s[n], x[64 * tm:, 64 * k:], signal=full[n])
                tma_load(g_s[n].rows(0, 64), w[64 * tn:, 64 * k:], signal=full[n])
                tma_load(g_s[n].rows(64, 64), w[N + 64 * tn:, 64 * k:], signal=full[n])
            with math:
                wait(full[n])
                wgmma(g, a_s[n], g_s[n].rows(0, 64), init=k == 0)
                wgmma(u, a_s[n], g_s[n].rows(64, 64), init=k == 0)
                wgmma_commit()
                wgmma_wait(0)
                arrive(free[n])
            n += 1
        with math:
            store(d[64 * tm:, 64 * tn:], cast(g * rcp(1.0 + exp2(-1.4426950408889634 * g)) * u, bf16))
""",
    "two inputs added: x1 w1 + x2 w2": """
@kernel(target="sm_90a")
def two(x: In[bf16, M, K], y: In[bf16, M, L], w: In[bf16, N, K], v: In[bf16, N, L], d: Out[f32, M, N]):
    where(K > 0, L > 0, K % 8 == 0, L % 8 == 0, N % 4 == 0)
    tiles = tile_space(ceil_div(M, 64), ceil_div(N, 64))
    launch(ctas=tiles.count)
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    tm, tn = tiles.at(cta)
    n = 0
    with math:
        acc = fragment(f32, wgmma_d[64, 64], 0)
    for k in range(ceil_div(K, 64)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n], x[64 * tm:, 64 * k:], signal=full[n])
            tma_load(b_s[n], w[64 * tn:, 64 * k:], signal=full[n])
        with math:
            wait(full[n])
            wgmma(acc, a_s[n], b_s[n])
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
        n += 1
    for k in range(ceil_div(L, 64)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n], y[64 * tm:, 64 * k:], signal=full[n])
            tma_load(b_s[n], v[64 * tn:, 64 * k:], signal=full[n])
        with math:
            wait(full[n])
            wgmma(acc, a_s[n], b_s[n])
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
        n += 1
    with math:
        store(d[64 * tm:, 64 * tn:], acc)
""",
    "gram": """
@kernel(target="sm_90a")
def gram(x: In[bf16, N, K], d: Out[f32, N, N]):
    where(K > 0, K % 8 == 0, N % 4 == 0)
    tiles = tile_space(ceil_div(N, 64), ceil_div(N, 64))
    launch(ctas=tiles.count)
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    tm, tn = tiles.at(cta)
    with math:
        acc = fragment(f32, wgmma_d[64, 64])
    for n in range(ceil_div(K, 64)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n], x[64 * tm:, 64 * n:], signal=full[n])
            tma_load(b_s[n], x[64 * tn:, 64 * n:], signal=full[n])
        with math:
            wait(full[n])
            wgmma(acc, a_s[n], b_s[n], init=n == 0)
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
    with math:
        store(d[64 * tm:, 64 * tn:], acc)
""",
    "transposed output": """
@kernel(target="sm_90a")
def gram(x: In[bf16, M, K], y: In[bf16, N, K], d: Out[f32, N, M]):
    where(K > 0, K % 8 == 0, M % 4 == 0)
    tiles = tile_space(ceil_div(M, 64), ceil_div(N, 64))
    launch(ctas=tiles.count)
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    tm, tn = tiles.at(cta)
    with math:
        acc = fragment(f32, wgmma_d[64, 64])
    for n in range(ceil_div(K, 64)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n], x[64 * tm:, 64 * n:], signal=full[n])
            tma_load(b_s[n], y[64 * tn:, 64 * n:], signal=full[n])
        with math:
            wait(full[n])
            wgmma(acc, a_s[n], b_s[n], init=n == 0)
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
    with math:
        store(d[64 * tn:, 64 * tm:].T, acc)
""",
    "packed heads": """
@kernel(target="sm_90a")
def scores(qkv: In[bf16, T, 3 * H * 64], s: Out[f32, H, T, T], *, H: (2, 4) = 2):
    where(T > 0, T % 4 == 0)
    tiles = tile_space(H, ceil_div(T, 64), ceil_div(T, 64))
    launch(ctas=tiles.count)
    producer = role(thread, warps=4)
    math = role(warpgroup)
    q_s = smem(bf16, 64, 64, swizzle=128)
    k_s = smem(bf16, 64, 64, swizzle=128)
    full = mbarrier()
    h, i, j = tiles.at(cta)
    with producer:
        expect(full[0])
        tma_load(q_s, qkv[64 * i:, 64 * h:], signal=full[0])
        tma_load(k_s, qkv[64 * j:, 64 * (H + h):], signal=full[0])
    with math:
        acc = fragment(f32, wgmma_d[64, 64])
        wait(full[0])
        wgmma(acc, q_s, k_s, init=True)
        wgmma_commit()
        wgmma_wait(0)
        store(s[h, 64 * i:, 64 * j:], acc)
""",
    "one column block of a wide weight": """
@kernel(target="sm_90a")
def head(x: In[bf16, M, K], y: In[bf16, N, K], d: Out[f32, M, 64], *, FIRST: (0, 64, 128) = 128):
    where(K > 0, K % 8 == 0, N % 4 == 0)
    tiles = tile_space(ceil_div(M, 64), 1)
    launch(ctas=tiles.count)
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    tm, tn = tiles.at(cta)
    with math:
        acc = fragment(f32, wgmma_d[64, 64])
    for n in range(ceil_div(K, 64)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n], x[64 * tm:, 64 * n:], signal=full[n])
            tma_load(b_s[n], y[FIRST + 64 * tn:, 64 * n:], signal=full[n])
        with math:
            wait(full[n])
            wgmma(acc, a_s[n], b_s[n], init=n == 0)
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
    with math:
        store(d[64 * tm:, :], acc)
""",
    "cumulative sum of products over time": """
@kernel(target="sm_90a")
def state(k: In[bf16, T, D], v: In[bf16, T, D], s: Out[f32, C, D, D], *, D: (64,) = 64):
    where(T > 0, T == 64 * C)
    launch(ctas=1)
    producer = role(thread, warps=4)
    math = role(warpgroup)
    k_s = smem(bf16, 64, D, stages=2, swizzle=128)
    v_s = smem(bf16, 64, D, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    with math:
        acc = fragment(f32, wgmma_d[64, D], 0)
    for n in range(C):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(k_s[n], k[64 * n:, :], signal=full[n])
            tma_load(v_s[n], v[64 * n:, :], signal=full[n])
        with math:
            wait(full[n])
            wgmma(acc, k_s[n].T, v_s[n].T)
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
            store(s[n, :, :], acc)
""",
    "complex": """
@kernel(target="sm_90a")
def imaginary(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[f32, M, N]):
    where(K > 0, K % 128 == 0, N % 4 == 0)
    tiles = tile_space(ceil_div(M, 64), ceil_div(N, 64))
    launch(ctas=tiles.count)
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 128, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 128, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    tm, tn = tiles.at(cta)
    half = K // 2
    with math:
        acc = fragment(f32, wgmma_d[64, 64])
    for n in range(K // 128):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n].cols(0, 64), a[64 * tm:, 64 * n:], signal=full[n])
            tma_load(a_s[n].cols(64, 64), a[64 * tm:, half + 64 * n:], signal=full[n])
            tma_load(b_s[n].cols(0, 64), b[64 * tn:, half + 64 * n:], signal=full[n])
            tma_load(b_s[n].cols(64, 64), b[64 * tn:, 64 * n:], signal=full[n])
        with math:
            wait(full[n])
            wgmma(acc, a_s[n].cols(0, 64), b_s[n].cols(0, 64), init=n == 0)
            wgmma(acc, a_s[n].cols(64, 64), b_s[n].cols(64, 64))
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
    with math:
        store(d[64 * tm:, 64 * tn:], acc)
""",
    "one product": """
@kernel(target="sm_90a")
def one(x: In[bf16, M, K], y: In[bf16, N, K], d: Out[f32, M, N]):
    where(K > 0, K <= 64, K % 8 == 0, N % 4 == 0)
    tiles = tile_space(ceil_div(M, 64), ceil_div(N, 64))
    launch(ctas=tiles.count)
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, swizzle=128)
    b_s = smem(bf16, 64, 64, swizzle=128)
    full = mbarrier()
    tm, tn = tiles.at(cta)
    with producer:
        expect(full[0])
        tma_load(a_s, x[64 * tm:, :], signal=full[0])
        tma_load(b_s, y[64 * tn:, :], signal=full[0])
    with math:
        acc = fragment(f32, wgmma_d[64, 64])
        wait(full[0])
        wgmma(acc, a_s, b_s, init=True)
        wgmma_commit()
        wgmma_wait(0)
        store(d[64 * tm:, 64 * tn:], acc)
""",
}
