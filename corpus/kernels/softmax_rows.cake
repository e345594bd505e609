"""Softmax of short rows: HELD rows per warp in registers, no exchange between warps; a CTA for each block of rows, or CTAs that stay."""


@kernel(target=("sm_80", "sm_90a", "sm_100a"))
def softmax_rows(x: In[f32, M, N], y: Out[f32, M, N], *,
                 WARPS: (1, 2, 4, 8, 16) = 4, HELD: (1, 2, 4, 8) = 1, NMAX: (128, 256, 512, 1024, 2048, 4096) = 1024,
                 STAY: (0, 1, 2, 4, 8) = 0):
    where(N <= NMAX, N % 4 == 0, HELD * NMAX <= 4096, WARPS * HELD * NMAX <= 32768)
    LOG2E = 1.4426950408889634
    blocks = ceil_div(M, WARPS * HELD)
    # STAY CTAs for each multiprocessor, each with every so-manyth block; 0: one CTA for each block
    if STAY == 0:
        launch(ctas=blocks)
    else:
        launch(ctas=min(blocks, STAY * device.sms))

    rows = role(warp, count=WARPS)

    with rows as w:
        for row in range((cta * WARPS + w) * HELD, M, cta_count * WARPS * HELD):
            v = load(x[row:, :], vec(4, 32)[HELD, NMAX], fill=-inf) * LOG2E
            peak = row_max(v)
            base = select(peak == -inf, 0.0, peak)
            e = exp2(v - base[:, None])
            total = row_sum(e)
            scale = select(total == 0.0, 0.0, rcp(total))
            store(y[row:, :], e * scale[:, None])
