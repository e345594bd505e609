"""k-means assignment: label = argmin over c of |c|^2 - 2 x.c. X stays in shared memory, centroids stream, the best stays in registers.

Tiles are DP wide; the copies fill columns D .. DP with zeros, so one schedule serves every D up to DP.
"""


@kernel(target="sm_90a")
def kmeans_assign(x: In[bf16, B, N, D], c: In[bf16, B, C, D], c_sq: In[f32, B, C], label: Out[i32, B, N], *,
                  DP: (64, 128, 192, 256) = 128, WG: (2, 3) = 2, BC: (64, 128, 256) = 128, STAGES: range(1, 9) = 4):
    where(C > 0, D <= DP, D % 8 == 0)
    BN = 64 * WG
    tiles = tile_space(B, ceil_div(N, BN))
    launch(ctas=tiles.count)

    producer = role(thread, warps=4, registers=24)
    math = role(warpgroup, count=WG, registers=select(WG == 2, 240, 160))

    x_s = smem(bf16, BN, DP, swizzle=128)
    c_s = smem(bf16, BC, DP, stages=STAGES, swizzle=128)
    x_full = mbarrier(arrivals=1)
    full = mbarrier(stages=STAGES, arrivals=1)
    free = mbarrier(stages=STAGES, arrivals=4 * WG)

    b, tile = tiles.at(cta)
    row = tile * BN
    with producer:
        expect(x_full[0])
        tma_load(x_s, x[b, row:, :], signal=x_full[0])
    with math as wg:
        best = fragment(f32, wgmma_d[64, 8], inf)
        nearest = fragment(i32, wgmma_d[64, 8], 0)
        wait(x_full[0])
    for n in range(ceil_div(C, BC)):
        with producer:
            wait(free[n - STAGES])
            expect(full[n])
            tma_load(c_s[n], c[b, n * BC:, :], signal=full[n])
        with math as wg:
            sq = load(c_sq[b, n * BC:], wgmma_d.cols[BC], fill=inf)
            acc = fragment(f32, wgmma_d[64, BC])
            wait(full[n])
            wgmma(acc, x_s.rows(64 * wg, 64), c_s[n], init=True)
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
            for j in unroll(BC // 8):
                score = sq.cols(8 * j, 8)[None, :] - 2.0 * acc.cols(8 * j, 8)
                closer = score < best
                best = select(closer, score, best)
                nearest = select(closer, n * BC + 8 * j, nearest)
    with math as wg:
        low, index = row_argmin(best, nearest + col_index(best))
        store(label[b, row + 64 * wg:], index)
