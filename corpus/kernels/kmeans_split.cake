"""k-means assignment whose centroids are divided: over the CTAs of a cluster (S), over warpgroups with the same points (G) and in chunks of 64 features.

A score starts as -|c|^2 / 2 in the accumulator, so that the product x.c leaves what is compared; the column of a tile takes its five low mantissa
bits and one maximum carries both. Sums of a cluster are sent to its first CTA, which merges them, equal scores by the least index. Points are
A fragments (AREG) or stay in shared memory. All DP features are multiplied, or as many chunks as D has (ANY: one cubin for every D). With TURN
warpgroups start their products in turns, each AHEAD chunks after the one before it; the ring must hold those chunks.
"""


@kernel(target="sm_90a")
def kmeans_split(x: In[DT, B, N, D], c: In[DT, B, C, D], c_sq: In[f32, B, C], label: Out[i32, B, N], *,
                 DT: (bf16, f16) = bf16, DP: range(16, 513) = 256, WG: (1, 2, 3) = 3, G: (1, 2) = 1,
                 S: range(1, 17) = 1, BC: (64, 128, 256) = 128, STAGES: range(1, 17) = 7, AREG: (False, True) = True,
                 TURN: (False, True) = False, AHEAD: range(1, 9) = 8, ANY: (False, True) = False,
                 PDL: (False, True) = False):
    CH = ceil_div(DP, 64)
    where(C > 0, D > 0, D <= DP, D % 8 == 0, DP % 16 == 0, WG * G <= 3, select(TURN, WG * G, 2) >= 2, STAGES % G == 0,
          select(TURN, min(AHEAD, CH), 0) <= STAGES // G)
    BN = 64 * WG
    P = S * G
    F = max(1, 512 // (G * BC))
    tiles = tile_space(B, ceil_div(N, BN))
    launch(ctas=S * min(tiles.count, max(1, device.sms // S)), cluster=S)

    points_in = role(thread, registers=select(WG * G <= 2, 40, 32))
    producer = role(thread, warps=2, registers=select(WG * G <= 2, 40, 32))
    loader = role(warp, registers=select(WG * G <= 2, 40, 32))
    math = role(warpgroup, count=WG * G, registers=select(WG * G <= 2, 232, 160))

    x_s = smem(DT, BN, 64 * CH, stages=1, swizzle=128)
    c_s = smem(DT, BC, 64, stages=STAGES, swizzle=128)
    bias_s = smem(f32, F * G * BC, stages=2)
    best_s = smem(f32, P, BN, stages=2, pad=4)
    which_s = smem(i32, P, BN, stages=2, pad=4)
    x_full = mbarrier(stages=CH, arrivals=1)
    x_free = mbarrier(arrivals=4 * WG * G)
    full = mbarrier(stages=STAGES, arrivals=1)
    free = mbarrier(stages=STAGES, arrivals=4 * WG)
    bias_full = mbarrier(stages=2, arrivals=1)
    bias_free = mbarrier(stages=2, arrivals=4 * WG * G)
    parts = mbarrier(stages=2, arrivals=select(S > 1, 1, 4 * WG * G))
    merged = mbarrier(stages=2, arrivals=4 * WG)
    turn = named_barrier(WG * G)

    if PDL:
        griddep_launch()
        griddep_wait()
    turns = ceil_div(C, BC * P)
    chunks = select(ANY, ceil_div(D, 64), CH)
    copied = select(AREG, CH, chunks)
    blocks = ceil_div(turns, F)
    first = cluster_rank * turns
    t = 0
    m = 0
    with math as wg:
        if TURN:
            if wg == WG * G - 1:
                arrive(turn[0])
    for b, tile in tiles.persistent():
        row = tile * BN
        with points_in:
            wait(x_free[t - 1])
            for j in range(copied):
                expect(x_full[t * copied + j])
                tma_load(x_s[t].cols(64 * j, 64), x[b, row:, 64 * j:], signal=x_full[t * copied + j])
        with loader:
            for i in range(blocks):
                q = t * blocks + i
                squares = load(c_sq[b, (first + i * F) * G * BC:], vec(1).cols[F * G * BC], fill=inf)
                wait(bias_free[q - 2])
                store(bias_s[q], squares * -0.5)
                arrive(bias_full[q])
        with math as wg:
            best = fragment(f32, wgmma_d[64, 8], -inf)
            nearest = fragment(i32, wgmma_d[64, 8], 0)
            mine = 64 * (wg // G)
            g = wg % G
            points = fragment(DT, wgmma_a[64, DP])
            if AREG:
                for j in range(CH):
                    wait(x_full[t * copied + j])
                points = ldmatrix(x_s[t].rows(mine, 64).cols(0, DP), wgmma_a[64, DP])
        for k in range(turns):
            with producer:
                for j in range(chunks):
                    for h in range(G):
                        n = (m * chunks + j) * G + h
                        wait(free[n - STAGES])
                        expect(full[n])
                        tma_load(c_s[n], c[b, ((first + k) * G + h) * BC:, 64 * j:], signal=full[n])
            with math as wg:
                q = t * blocks + k // F
                if k % F == 0:
                    wait(bias_full[q])
                acc = fragment(f32, wgmma_d[64, BC], -0.0) + load(bias_s[q].cols((k % F * G + g) * BC, BC),
                                                                  wgmma_d.cols[BC])[None, :]
                if k % F == F - 1 or k == turns - 1:
                    arrive(bias_free[q])
                for j in unroll(CH):
                    if not ANY or 64 * j < D:
                        W = min(64, DP - 64 * j)
                        n = (m * chunks + j) * G + g
                        wait(full[n])
                        if TURN and j == 0:
                            sync(turn[wg])
                        if AREG:
                            wgmma(acc, points.cols(64 * j, W), c_s[n].cols(0, W))
                        else:
                            if k == 0:
                                wait(x_full[t * copied + j])
                            wgmma(acc, x_s[t].rows(mine, 64).cols(64 * j, W), c_s[n].cols(0, W))
                        wgmma_commit()
                        if TURN and j == min(AHEAD, CH) - 1:
                            arrive(turn[(wg + 1) % (WG * G)])
                        if j > 0:
                            wgmma_wait(1)
                            arrive(free[n - G])
                if TURN and ANY:
                    if chunks < min(AHEAD, CH):
                        arrive(turn[(wg + 1) % (WG * G)])
                wgmma_wait(0)
                arrive(free[(m * chunks + chunks - 1) * G + g])
                if AREG:
                    if k == 0:
                        fence_async()
                        arrive(x_free[t])
                low = fragment(f32, wgmma_d[64, 8], -inf)
                for j in unroll(BC // 8):
                    low = max(low, bitcast((bitcast(acc.cols(8 * j, 8), i32) & -32) | j, f32))
                closer = low > best
                best = select(closer, low, best)
                nearest = select(closer, ((first + k) * G + g) * BC, nearest)
            m += 1
        with math as wg:
            if not AREG:
                arrive(x_free[t])
            value, index = row_argmax(best, nearest + 8 * (bitcast(best, i32) & 31) + col_index(best))
            if P == 1:
                store(label[b, row + mine:], index)
            else:
                wait(merged[t - 2])
                if S > 1:
                    sync(warpgroup)
                    if cluster_rank == 0 and wg == 0:
                        with elected():
                            expect(parts[t])
                    store_async(best_s[t][cluster_rank * G + g].cols(mine, 64).on(0), value, signal=parts[t].on(0))
                    store_async(which_s[t][cluster_rank * G + g].cols(mine, 64).on(0), index, signal=parts[t].on(0))
                else:
                    store(best_s[t][g].cols(mine, 64), value)
                    store(which_s[t][g].cols(mine, 64), index)
                    arrive(parts[t])
                if cluster_rank == 0:
                    if g == 0:
                        wait(parts[t])
                        if P % 8 == 0:
                            scores = load(best_s[t].cols(mine, 64).T, wgmma_d[64, P])
                            places = load(which_s[t].cols(mine, 64).T, wgmma_d[64, P])
                            value, index = row_argmax(scores, places)
                        else:
                            for p in unroll(P):
                                other = load(best_s[t][p].cols(mine, 64), wgmma_d.rows[64])
                                at = load(which_s[t][p].cols(mine, 64), wgmma_d.rows[64])
                                closer = (other > value) | ((other == value) & (at < index))
                                value = select(closer, other, value)
                                index = select(closer, at, index)
                        store(label[b, row + mine:], index)
                        if S > 1:
                            fence_async()
                        if S == 1 or cluster_id + (t + 2) * cluster_count < tiles.count:
                            for r in range(S):
                                arrive(merged[t].on(r))
        t += 1
    with math as wg:
        if TURN:
            if wg == 0:
                sync(turn[0])
