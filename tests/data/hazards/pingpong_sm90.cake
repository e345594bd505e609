"""Two warpgroups take tiles in turn; a named barrier for each passes the tensor cores on."""


@kernel(target="sm_90a")
def gemm(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[bf16, M, N], *, STAGES: range(2, 6) = 4):
    where(K > 0, K % 8 == 0, N % 8 == 0)
    KT = ceil_div(K, 64)
    tiles = tile_space(ceil_div(M, 64), ceil_div(N, 128))
    launch(ctas=min(tiles.count, device.sms))
    producer = role(thread, warps=4)
    math = role(warpgroup, count=2)
    a_s = smem(bf16, 64, 64, stages=STAGES, swizzle=128)
    b_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)
    full = mbarrier(stages=STAGES)
    free = mbarrier(stages=STAGES)
    turn = named_barrier(2)
    n = 0
    t = 0
    with math as wg:
        if wg == 1:
            arrive(turn[0])
    for tile_m, tile_n in tiles.persistent():
        row = tile_m * 64
        col = tile_n * 128
        with producer:
            for k in range(KT):
                wait(free[n + k - STAGES])
                expect(full[n + k])
                tma_load(a_s[n + k], a[row:, k * 64:], signal=full[n + k])
                tma_load(b_s[n + k], b[col:, k * 64:], signal=full[n + k])
        with math as wg:
            if t % 2 == wg:
                acc = fragment(f32, wgmma_d[64, 128])
                sync(turn[wg])
                for k in range(KT):
                    wait(full[n + k])
                    wgmma(acc, a_s[n + k], b_s[n + k], init=k == 0)
                    wgmma_commit()
                    wgmma_wait(0)
                    arrive(free[n + k])
                arrive(turn[1 - wg])
                store(d[row:, col:], cast(acc, bf16))
        n += KT
        t += 1
    with math as wg:
        if t % 2 == wg:
            sync(turn[wg])
