"""RMSNorm with a warp per row in pieces: one pass over the row for the sum of squares, a second, out of the caches, to write. Any row length."""


@kernel(target=("sm_80", "sm_90a", "sm_100a"))
def rmsnorm_rows(x: In[DT, M, D], gain: In[DT, D], y: Out[DT, M, D], eps: f32, *,
                 DT: (bf16, f16) = bf16, WARPS: (1, 2, 4, 8, 16) = 4, CHUNK: (256, 512, 1024, 2048) = 512,
                 STAY: (0, 1, 2, 4, 8) = 0):
    where(D % 8 == 0)
    blocks = ceil_div(M, WARPS)
    # STAY CTAs for each multiprocessor, each with every so-manyth block; 0: one CTA for each block
    if STAY == 0:
        launch(ctas=blocks)
    else:
        launch(ctas=min(blocks, STAY * device.sms))

    rows = role(warp, count=WARPS)

    with rows as w:
        for row in range(cta * WARPS + w, M, cta_count * WARPS):
            total = 0.0
            for c in range(0, D, CHUNK):
                v = cast(load(x[row, c:], vec(8).cols[CHUNK]), f32)
                total = total + row_sum(v * v)
            scale = rsqrt(total * rcp(cast(D, f32)) + eps)
            for c in range(0, D, CHUNK):
                v = cast(load(x[row, c:], vec(8).cols[CHUNK]), f32)
                g = cast(load(gain[c:], vec(8).cols[CHUNK]), f32)
                store(y[row, c:], cast(v * scale * g, DT))
