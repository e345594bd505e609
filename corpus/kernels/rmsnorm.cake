"""RMSNorm: a warp holds whole rows in registers as 16-bit values, so a row of 4096 takes 64 registers; f32 only in flight."""


@kernel(target=("sm_80", "sm_90a", "sm_100a"))
def rmsnorm(x: In[DT, M, D], gain: In[DT, D], y: Out[DT, M, D], eps: f32, *,
            DT: (bf16, f16) = bf16, DMAX: (256, 512, 1024, 2048, 4096) = 4096, ROWS: (1, 2, 4) = 1, WARPS: (4, 8) = 4):
    where(D <= DMAX, D % 8 == 0)
    launch(ctas=ceil_div(M, WARPS * ROWS))

    rows = role(warp, count=WARPS)

    with rows as w:
        row = (cta * WARPS + w) * ROWS
        v = load(x[row:, :], vec(8)[ROWS, DMAX])
        scale = rsqrt(row_sum(cast(v, f32) * cast(v, f32)) * rcp(cast(D, f32)) + eps)
        for j in unroll(DMAX // 256):
            g = cast(load(gain[256 * j:], vec(8).cols[256]), f32)
            part = cast(v.cols(256 * j, 256), f32)
            store(y[row:, 256 * j:], cast(part * scale[:, None] * g[None, :], DT))
