"""Column sums with rows divided over the CTAs of a cluster, which meet in the shared memory of the first: no atomics, results are the same every time."""


@kernel(target=("sm_90a", "sm_100a"))
def col_sums_cluster(x: In[DT, M, N], y: InOut[f32, N], *,
                     DT: (bf16, f16) = bf16, COLS: (32, 64, 128, 256, 512) = 64, ROWS: (4, 8, 16, 32, 64) = 16,
                     WARPS: (1, 2, 4, 8, 16) = 8, CTAS: (2, 4, 8) = 4):
    # lanes side by side along a row, 16 bytes each, and rows that the lanes of a warp hold at a time
    LANES = min(32, COLS // 8)
    HELD = 32 // LANES
    where(N % 8 == 0, ROWS >= HELD, ROWS * COLS <= 4096, WARPS * ROWS * COLS <= 65536)
    launch(ctas=CTAS * ceil_div(N, COLS), cluster=CTAS)

    rows = role(warp, count=WARPS)

    part_s = smem(f32, WARPS, COLS)
    sum_s = smem(f32, CTAS, COLS)

    col = cluster_id * COLS
    with rows as w:
        acc = cast(fragment(DT, vec(8, LANES)[HELD, COLS], 0.0), f32)
        for r in range((cluster_rank * WARPS + w) * ROWS, M, CTAS * WARPS * ROWS):
            v = load(x[r:, col:], vec(8, LANES)[ROWS, COLS])
            for i in unroll(ROWS // HELD):
                acc = acc + cast(v.rows(HELD * i, HELD), f32)
        store(part_s[w], col_sum(acc))
    # the CTA's warps have stored, and the first CTA has started
    sync(cluster)
    with rows as w:
        if w == 0:
            own = load(part_s[0], vec(4).cols[COLS])
            for s in unroll(WARPS - 1):
                own = own + load(part_s[s + 1], vec(4).cols[COLS])
            store(sum_s[cluster_rank].on(0), own)
    sync(cluster)
    with rows as w:
        if w == 0 and cluster_rank == 0:
            total = load(y[col:], vec(4).cols[COLS])
            for c in unroll(CTAS):
                total = total + load(sum_s[c], vec(4).cols[COLS])
            store(y[col:], total)
