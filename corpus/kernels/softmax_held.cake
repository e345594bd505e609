"""Softmax with a row held in registers: one read of memory, each warp a slice of the row; peaks and sums of the warps meet in shared memory."""


@kernel(target=("sm_80", "sm_90a", "sm_100a"))
def softmax_held(x: In[f32, M, N], y: Out[f32, M, N], *,
                 WARPS: (1, 2, 4, 8, 16) = 8, NMAX: (256, 512, 1024, 2048, 4096, 8192, 16384, 32768) = 4096):
    # a lane keeps between 4 and 64 elements
    where(N <= NMAX, N % 4 == 0, NMAX >= 128 * WARPS, NMAX <= 2048 * WARPS)
    LOG2E = 1.4426950408889634
    SLICE = NMAX // WARPS
    launch(ctas=M)

    rows = role(warp, count=WARPS)

    peak_s = smem(f32, WARPS)
    total_s = smem(f32, WARPS)

    with rows as w:
        col = SLICE * w
        v = load(x[cta, col:], vec(4).cols[SLICE], fill=-inf) * LOG2E
        own = row_max(v)
        base = select(own == -inf, 0.0, own)
        e = exp2(v - base)
        store(peak_s[w], own)
        store(total_s[w], row_sum(e))
        sync(rows)
        peaks = load(peak_s, vec(1).cols[WARPS], fill=-inf)
        peak = row_max(peaks)
        top = select(peak == -inf, 0.0, peak)
        total = row_sum(load(total_s, vec(1).cols[WARPS]) * exp2(peaks - top))
        # from the peak of the slice to that of the row, and to a sum of one; 0 where all is masked
        scale = select(total == 0.0, 0.0, exp2(own - top) * rcp(total))
        store(y[cta, col:], e * scale)
