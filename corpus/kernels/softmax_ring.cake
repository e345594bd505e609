"""Softmax by CTAs that stay: one thread keeps a ring of rows full by TMA, warps read each row twice out of shared memory. One read of memory."""


@kernel(target=("sm_90a", "sm_100a"))
def softmax_ring(x: In[f32, M, N], y: Out[f32, M, N], *,
                 WARPS: (1, 2, 4, 8, 16) = 8, NMAX: (256, 512, 1024, 2048, 4096, 8192, 16384, 32768) = 4096,
                 STAGES: range(1, 9) = 3, CHUNK: (256, 512, 1024, 2048) = 512, STAY: (1, 2, 4) = 1):
    # shared memory is 227 KiB
    where(N <= NMAX, N % 4 == 0, WARPS * CHUNK <= NMAX, STAGES * NMAX <= 57344)
    LOG2E = 1.4426950408889634
    # what one copy takes
    PIECE = 256
    launch(ctas=min(M, STAY * device.sms))

    producer = role(thread)
    rows = role(warp, count=WARPS)

    x_s = smem(f32, NMAX, stages=STAGES)
    # of two rows: a warp stores those of the next while others still read
    peak_s = smem(f32, WARPS, stages=2)
    total_s = smem(f32, WARPS, stages=2)
    full = mbarrier(stages=STAGES, arrivals=1)
    free = mbarrier(stages=STAGES, arrivals=WARPS)

    n = 0
    for row in range(cta, M, cta_count):
        with producer:
            wait(free[n - STAGES])
            expect(full[n])
            for p in unroll(NMAX // PIECE):
                tma_load(x_s[n].cols(p * PIECE, PIECE), x[row, p * PIECE:], signal=full[n])
        with rows as w:
            wait(full[n])
            peak = -inf
            total = 0.0
            for t in range(NMAX // (WARPS * CHUNK)):
                c = (t * WARPS + w) * CHUNK
                v = load(x_s[n].cols(c, CHUNK), vec(4).cols[CHUNK])
                # past the end the copy has put zeros
                v = select(c + col_index(v) < N, v * LOG2E, -inf)
                top = max(peak, row_max(v))
                base = select(top == -inf, 0.0, top)
                total = total * exp2(peak - base) + row_sum(exp2(v - base))
                peak = top
            store(peak_s[n][w], peak)
            store(total_s[n][w], total)
            sync(rows)
            peaks = load(peak_s[n], vec(1).cols[WARPS], fill=-inf)
            top = row_max(peaks)
            base = select(top == -inf, 0.0, top)
            total = row_sum(load(total_s[n], vec(1).cols[WARPS]) * exp2(peaks - base))
            scale = select(total == 0.0, 0.0, rcp(total))
            for t in range(NMAX // (WARPS * CHUNK)):
                c = (t * WARPS + w) * CHUNK
                v = load(x_s[n].cols(c, CHUNK), vec(4).cols[CHUNK]) * LOG2E
                store(y[row, c:], exp2(v - base) * scale)
            fence_async()
            arrive(free[n])
        n += 1
