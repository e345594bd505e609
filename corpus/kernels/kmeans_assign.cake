"""k-means assignment: label = argmin over c of |c|^2 - 2 x.c. Points rest in registers as A fragments, centroids stream, CTAs are persistent.

Tiles are DP wide; the copies fill columns D .. DP with zeros, so one schedule serves every D up to DP. The next tile's points are loaded while
the last centroids of this one are still being multiplied.
"""


@kernel(target="sm_90a")
def kmeans_assign(x: In[bf16, B, N, D], c: In[bf16, B, C, D], c_sq: In[f32, B, C], label: Out[i32, B, N], *,
                  DP: (64, 128, 192, 256) = 128, WG: (2, 3) = 3, BC: (64, 128) = 128, STAGES: range(1, 9) = 4):
    where(C > 0, D <= DP, D % 8 == 0)
    BN = 64 * WG
    tiles = tile_space(B, ceil_div(N, BN))
    launch(ctas=min(tiles.count, device.sms))

    producer = role(thread, warps=4, registers=24)
    math = role(warpgroup, count=WG, registers=select(WG == 2, 240, 160))

    x_s = smem(bf16, BN, DP, stages=1, swizzle=128)
    c_s = smem(bf16, BC, DP, stages=STAGES, swizzle=128)
    x_full = mbarrier(arrivals=1)
    x_free = mbarrier(arrivals=4 * WG)
    full = mbarrier(stages=STAGES, arrivals=1)
    free = mbarrier(stages=STAGES, arrivals=4 * WG)
    turn = named_barrier(WG)

    t = 0
    n = 0
    with math as wg:
        if wg == WG - 1:
            arrive(turn[0])
    for b, tile in tiles.persistent():
        row = tile * BN
        with producer:
            wait(x_free[t - 1])
            expect(x_full[t])
            tma_load(x_s[t], x[b, row:, :], signal=x_full[t])
        with math as wg:
            best = fragment(f32, wgmma_d[64, 8], inf)
            nearest = fragment(i32, wgmma_d[64, 8], 0)
            wait(x_full[t])
            points = ldmatrix(x_s[t].rows(64 * wg, 64), wgmma_a[64, DP])
        for k in range(ceil_div(C, BC)):
            with producer:
                wait(free[n - STAGES])
                expect(full[n])
                tma_load(c_s[n], c[b, k * BC:, :], signal=full[n])
            with math as wg:
                sq = load(c_sq[b, k * BC:], wgmma_d.cols[BC], fill=inf)
                acc = fragment(f32, wgmma_d[64, BC])
                wait(full[n])
                sync(turn[wg])
                wgmma(acc, points, c_s[n], init=True)
                wgmma_commit()
                arrive(turn[(wg + 1) % WG])
                wgmma_wait(0)
                arrive(free[n])
                if k == 0:
                    fence_async()
                    arrive(x_free[t])
                for j in unroll(BC // 8):
                    score = sq.cols(8 * j, 8)[None, :] - 2.0 * acc.cols(8 * j, 8)
                    closer = score < best
                    best = select(closer, score, best)
                    nearest = select(closer, k * BC + 8 * j, nearest)
            n += 1
        with math as wg:
            low, index = row_argmin(best, nearest + col_index(best))
            store(label[b, row + 64 * wg:], index)
        t += 1
    with math as wg:
        if wg == 0:
            sync(turn[0])
