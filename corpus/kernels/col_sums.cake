"""Column sums, a CTA for each block of columns: warps take turns at blocks of rows and meet in shared memory. For many columns."""


@kernel(target=("sm_80", "sm_90a", "sm_100a"))
def col_sums(x: In[DT, M, N], y: InOut[f32, N], *,
             DT: (bf16, f16) = bf16, COLS: (32, 64, 128, 256, 512) = 64, ROWS: (4, 8, 16, 32, 64) = 16,
             WARPS: (1, 2, 4, 8, 16, 32) = 8):
    # lanes side by side along a row, 16 bytes each, and rows that the lanes of a warp hold at a time
    LANES = min(32, COLS // 8)
    HELD = 32 // LANES
    where(N % 8 == 0, ROWS >= HELD, ROWS * COLS <= 4096, WARPS * ROWS * COLS <= 65536)
    launch(ctas=ceil_div(N, COLS))

    rows = role(warp, count=WARPS)

    part_s = smem(f32, WARPS, COLS)

    col = cta * COLS
    with rows as w:
        acc = cast(fragment(DT, vec(8, LANES)[HELD, COLS], 0.0), f32)
        for r in range(w * ROWS, M, WARPS * ROWS):
            v = load(x[r:, col:], vec(8, LANES)[ROWS, COLS])
            for i in unroll(ROWS // HELD):
                acc = acc + cast(v.rows(HELD * i, HELD), f32)
        store(part_s[w], col_sum(acc))
        sync(rows)
        if w == 0:
            total = load(y[col:], vec(4).cols[COLS])
            for s in unroll(WARPS):
                total = total + load(part_s[s], vec(4).cols[COLS])
            store(y[col:], total)
