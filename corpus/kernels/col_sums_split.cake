"""Column sums with rows divided over SPLIT CTAs per block of columns, added to y by atomics: of each CTA (MEET) or of each warp. For few columns."""


@kernel(target=("sm_80", "sm_90a", "sm_100a"))
def col_sums_split(x: In[DT, M, N], y: InOut[f32, N], *,
                   DT: (bf16, f16) = bf16, COLS: (32, 64, 128, 256, 512) = 64, ROWS: (4, 8, 16, 32, 64) = 16,
                   WARPS: (1, 2, 4, 8, 16, 32) = 8, SPLIT: (2, 4, 8, 16, 32, 64, 128) = 8, MEET: (0, 1) = 1):
    # lanes side by side along a row, 16 bytes each, and rows that the lanes of a warp hold at a time
    LANES = min(32, COLS // 8)
    HELD = 32 // LANES
    where(N % 8 == 0, ROWS >= HELD, ROWS * COLS <= 4096, WARPS * ROWS * COLS <= 65536)
    tiles = tile_space(ceil_div(N, COLS), SPLIT)
    launch(ctas=tiles.count)

    rows = role(warp, count=WARPS)

    part_s = smem(f32, max(1, MEET * WARPS), COLS)

    block, part = tiles.at(cta)
    col = block * COLS
    with rows as w:
        acc = cast(fragment(DT, vec(8, LANES)[HELD, COLS], 0.0), f32)
        for r in range((part * WARPS + w) * ROWS, M, SPLIT * WARPS * ROWS):
            v = load(x[r:, col:], vec(8, LANES)[ROWS, COLS])
            for i in unroll(ROWS // HELD):
                acc = acc + cast(v.rows(HELD * i, HELD), f32)
        if MEET == 1:
            store(part_s[w], col_sum(acc))
            sync(rows)
            if w == 0:
                total = load(part_s[0], vec(4).cols[COLS])
                for s in unroll(WARPS - 1):
                    total = total + load(part_s[s + 1], vec(4).cols[COLS])
                atomic_add(y[col:], total)
        else:
            atomic_add(y[col:], col_sum(acc))
