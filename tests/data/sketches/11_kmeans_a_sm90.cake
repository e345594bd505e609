"""k-means assignment with A fragments held in registers and a packed index epilogue.

Each warpgroup keeps 128 rows: two wgmma_a fragments, loaded once, and two accumulators, so that the epilogue of one runs under the products
of the other. The tile-local column goes into the five low mantissa bits of the score; one float minimum then carries value and index.
"""


@kernel(target="sm_90a")
def kmeans_packed(x: In[bf16, B, N, D], c: In[bf16, B, C, D], c_sq: In[f32, B, C], label: Out[i32, B, N], *,
                  DP: (64, 128) = 128, STAGES: range(1, 7) = 4):
    where(C > 0, D <= DP, D % 8 == 0)
    BC = 128
    BN = 256
    tiles = tile_space(B, ceil_div(N, BN))
    launch(ctas=tiles.count)

    producer = role(thread, warps=4, registers=24)
    math = role(warpgroup, count=2, registers=240)

    x_s = smem(bf16, BN, DP, swizzle=128)
    c_s = smem(bf16, BC, DP, stages=STAGES, swizzle=128)
    x_full = mbarrier(arrivals=1)
    full = mbarrier(stages=STAGES, arrivals=1)
    free = mbarrier(stages=STAGES, arrivals=8)

    b, tile = tiles.at(cta)
    row = tile * BN
    with producer:
        expect(x_full[0])
        tma_load(x_s, x[b, row:, :], signal=x_full[0])
    with math as wg:
        best0 = fragment(f32, wgmma_d[64, 8], inf)
        best1 = fragment(f32, wgmma_d[64, 8], inf)
        block0 = fragment(i32, wgmma_d[64, 8], 0)
        block1 = fragment(i32, wgmma_d[64, 8], 0)
        wait(x_full[0])
        a0 = ldmatrix(x_s.rows(128 * wg, 64), wgmma_a[64, DP])
        a1 = ldmatrix(x_s.rows(128 * wg + 64, 64), wgmma_a[64, DP])
    for n in range(ceil_div(C, BC)):
        with producer:
            wait(free[n - STAGES])
            expect(full[n])
            tma_load(c_s[n], c[b, n * BC:, :], signal=full[n])
        with math as wg:
            sq = load(c_sq[b, n * BC:], wgmma_d.cols[BC], fill=inf)
            acc0 = fragment(f32, wgmma_d[64, BC])
            acc1 = fragment(f32, wgmma_d[64, BC])
            wait(full[n])
            wgmma(acc0, a0, c_s[n], init=True)
            wgmma_commit()
            wgmma(acc1, a1, c_s[n], init=True)
            wgmma_commit()
            wgmma_wait(1)
            low0 = fragment(f32, wgmma_d[64, 8], inf)
            for j in unroll(BC // 8):
                score = sq.cols(8 * j, 8)[None, :] - 2.0 * acc0.cols(8 * j, 8)
                low0 = min(low0, bitcast((bitcast(score, i32) & -32) | j, f32))
            closer0 = low0 < best0
            best0 = select(closer0, low0, best0)
            block0 = select(closer0, n * BC, block0)
            wgmma_wait(0)
            arrive(free[n])
            low1 = fragment(f32, wgmma_d[64, 8], inf)
            for j in unroll(BC // 8):
                score = sq.cols(8 * j, 8)[None, :] - 2.0 * acc1.cols(8 * j, 8)
                low1 = min(low1, bitcast((bitcast(score, i32) & -32) | j, f32))
            closer1 = low1 < best1
            best1 = select(closer1, low1, best1)
            block1 = select(closer1, n * BC, block1)
    with math as wg:
        value0, index0 = row_argmin(best0, block0 + 8 * (bitcast(best0, i32) & 31) + col_index(best0))
        value1, index1 = row_argmin(best1, block1 + 8 * (bitcast(best1, i32) & 31) + col_index(best1))
        store(label[b, row + 128 * wg:], index0)
        store(label[b, row + 128 * wg + 64:], index1)
