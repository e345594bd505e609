"""RMSNorm: a CTA holds one row, each warp a slice of it in 16-bit registers; the warps' sums meet in shared memory."""


@kernel(target=("sm_80", "sm_90a", "sm_100a"))
def rmsnorm(x: In[DT, M, D], gain: In[DT, D], y: Out[DT, M, D], eps: f32, *,
            DT: (bf16, f16) = bf16, DMAX: (256, 512, 1024, 2048, 4096, 8192) = 4096, WARPS: (1, 2, 4, 8) = 4):
    where(D <= DMAX, D % 8 == 0)
    SLICE = DMAX // WARPS
    launch(ctas=M)

    rows = role(warp, count=WARPS)

    part_s = smem(f32, WARPS)

    with rows as w:
        col = SLICE * w
        v = load(x[cta, col:], vec(8).cols[SLICE])
        g = load(gain[col:], vec(8).cols[SLICE])
        part = row_sum(cast(v, f32) * cast(v, f32))
        store(part_s[w], part)
        sync(rows)
        scale = rsqrt(row_sum(load(part_s, vec(1).cols[WARPS])) * rcp(cast(D, f32)) + eps)
        store(y[cta, col:], cast(cast(v, f32) * scale * cast(g, f32), DT))
