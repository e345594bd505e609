"""Softmax with rows longer than the CTA can hold: one online pass for peak and sum, one to write. A row that is -inf everywhere gives zeros."""


@kernel(target=("sm_80", "sm_90a", "sm_100a"))
def softmax(x: In[f32, M, N], y: Out[f32, M, N], *, WARPS: (4, 8, 16) = 8, CHUNK: (512, 1024, 2048) = 1024):
    where(N % 4 == 0)
    LOG2E = 1.4426950408889634
    launch(ctas=M)

    rows = role(warp, count=WARPS)

    peak_s = smem(f32, WARPS)
    total_s = smem(f32, WARPS)

    with rows as w:
        peak = -inf
        total = 0.0
        for c in range(w * CHUNK, N, WARPS * CHUNK):
            v = load(x[cta, c:], vec(4).cols[CHUNK], fill=-inf) * LOG2E
            top = max(peak, row_max(v))
            base = select(top == -inf, 0.0, top)
            total = total * exp2(peak - base) + row_sum(exp2(v - base))
            peak = top
        store(peak_s[w], peak)
        store(total_s[w], total)
        sync(rows)
        peaks = load(peak_s, vec(1).cols[WARPS], fill=-inf)
        top = row_max(peaks)
        base = select(top == -inf, 0.0, top)
        total = row_sum(load(total_s, vec(1).cols[WARPS]) * exp2(peaks - base))
        scale = select(total == 0.0, 0.0, rcp(total))
        for c in range(w * CHUNK, N, WARPS * CHUNK):
            v = load(x[cta, c:], vec(4).cols[CHUNK], fill=-inf) * LOG2E
            store(y[cta, c:], exp2(v - base) * scale)
