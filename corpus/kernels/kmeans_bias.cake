"""k-means assignment with the norms inside the product: one k16 step adds -|c|^2 / 2 and an offset, so that the score leaves the tensor pipe positive.

Positive floats are ordered like their bits. The epilogue is one logic operation (the tile-local column goes into the four low mantissa bits) and half a
three-input integer maximum per score. The offset of a point is at least |x| |m| + |m|^2 / 2, where m is the shortest centroid, so the best score is never
negative and the rounding of the packed bits is relative to the terms of the winner itself. Roots are multiplied, not squares, which would overflow from
2**31 and vanish below 2**-37; 1e-17 is the length that the squares of the smallest numbers may lose. DP columns are multiplied; the copies fill D .. DP with zeros.
Where scores are not numbers the padding after the last centroid may win: labels are kept below C.
"""


@kernel(target="sm_90a")
def kmeans_bias(x: In[DT, B, N, D], c: In[DT, B, C, D], c_sq: In[f32, B, C], label: Out[i32, B, N], *,
                DT: (bf16, f16) = bf16, DP: range(16, 129) = 128, WG: (2, 3, 4) = 3, XS: (1, 2) = 1,
                STAGES: range(1, 9) = 4, TURN: (False, True) = True):
    where(C > 0, D <= DP, D % 8 == 0, DP % 16 == 0)
    BN = 64 * WG
    BC = 128
    W = select(DP <= 16, 16, select(DP <= 32, 32, select(DP <= 64, 64, 128)))
    tiles = tile_space(B, ceil_div(N, BN))
    launch(ctas=min(tiles.count, device.sms))

    producer = role(thread, warps=2, registers=select(WG == 4, 32, 56))
    norms = role(warp, count=2, registers=select(WG == 4, 32, 56))
    math = role(warpgroup, count=WG, registers=select(WG == 2, 224, select(WG == 3, 152, 112)))

    x_s = smem(DT, BN, W, stages=XS, swizzle=min(128, 2 * W))
    c_s = smem(DT, BC, W, stages=STAGES, swizzle=min(128, 2 * W))
    bias_s = smem(bf16, BC, 16, stages=STAGES, swizzle=32)
    least_s = smem(f32, 2, stages=2)
    x_full = mbarrier(stages=XS, arrivals=1)
    x_free = mbarrier(stages=XS, arrivals=4 * WG)
    full = mbarrier(stages=STAGES, arrivals=3)
    free = mbarrier(stages=STAGES, arrivals=4 * WG)
    least_full = mbarrier(stages=2, arrivals=2)
    least_free = mbarrier(stages=2, arrivals=4 * WG)
    turn = named_barrier(WG)

    griddep_launch()
    griddep_wait()
    t = 0
    n = 0
    with math as wg:
        if TURN:
            if wg == WG - 1:
                arrive(turn[0])
    for b, tile in tiles.persistent():
        row = tile * BN
        with producer:
            wait(x_free[t - XS])
            expect(x_full[t])
            tma_load(x_s[t], x[b, row:, :], signal=x_full[t])
        with norms as w:
            ahead = load(c_sq[b, 64 * w:], vec(4, 1).rows[64], fill=1e+36)
            short = fragment(f32, vec(1, 32).cols[256], inf)
            for i in range(ceil_div(C, 512)):
                short = min(short, load(c_sq[b, 512 * i + 256 * w:], vec(1, 32).cols[256], fill=inf))
            wait(least_free[t - 2])
            store(least_s[t][w], row_min(short))
            arrive(least_full[t])
        with math as wg:
            best = fragment(i32, wgmma_d[64, 8], 0)
            nearest = fragment(i32, wgmma_d[64, 8], 0)
            wait(x_full[t])
            rows = ldmatrix(x_s[t].rows(64 * wg, 64).cols(0, DP), wgmma_d[64, DP])
            points = operand_a(rows)
            squares = fragment(f32, wgmma_d[64, 8], 0.0)
            for j in unroll(DP // 8):
                squares = squares + cast(rows.cols(8 * j, 8), f32) * cast(rows.cols(8 * j, 8), f32)
            length = row_sum(squares)
            wait(least_full[t])
            least = min(load(least_s[t][0]), load(least_s[t][1]))
            arrive(least_free[t])
            offset = 1.01 * (sqrt(length) + 1e-17) * (sqrt(least) + 1e-17) + 0.51 * least
            column = col_index(fragment(f32, wgmma_d[64, 16], 0.0))
            lift = operand_a(cast(select(column < 3, 1.0, select(column == 3, offset[:, None], 0.0)), bf16))
        for k in range(ceil_div(C, BC)):
            with producer:
                wait(free[n - STAGES])
                expect(full[n])
                tma_load(c_s[n], c[b, k * BC:, :], signal=full[n])
            with norms as w:
                half = -0.5 * ahead
                ahead = load(c_sq[b, (k + 1) * BC + 64 * w:], vec(4, 1).rows[64], fill=1e+36)
                high = cast(cast(half, bf16), f32)
                middle = cast(cast(half - high, bf16), f32)
                low = half - high - middle
                place = col_index(fragment(f32, vec(4, 1)[64, 16], 0.0))
                wait(free[n - STAGES])
                store(bias_s[n].rows(64 * w, 64),
                      cast(select(place == 0, high[:, None],
                                  select(place == 1, middle[:, None],
                                         select(place == 2, low[:, None], select(place == 3, 1.0, 0.0)))), bf16))
                fence_async()
                arrive(full[n])
            with math as wg:
                acc = fragment(f32, wgmma_d[64, BC])
                wait(full[n])
                if TURN:
                    sync(turn[wg])
                wgmma(acc, lift, bias_s[n], init=True)
                wgmma(acc, points, c_s[n].cols(0, DP))
                wgmma_commit()
                if TURN:
                    arrive(turn[(wg + 1) % WG])
                wgmma_wait(0)
                arrive(free[n])
                if k == 0:
                    fence_async()
                    arrive(x_free[t])
                top = fragment(i32, wgmma_d[64, 8], 0)
                for j in unroll(BC // 16):
                    even = (bitcast(acc.cols(16 * j, 8), i32) & -16) | (2 * j)
                    odd = (bitcast(acc.cols(16 * j + 8, 8), i32) & -16) | (2 * j + 1)
                    top = max3(top, even, odd)
                closer = top > best
                best = select(closer, top, best)
                nearest = select(closer, k * BC, nearest)
            n += 1
        with math as wg:
            score, index = row_argmax(bitcast(best & -16, f32), nearest + 8 * (best & 15) + col_index(best))
            store(label[b, row + 64 * wg:], min(index, C - 1))
        t += 1
    with math as wg:
        if TURN:
            if wg == 0:
                sync(turn[0])
