"""RMSNorm by CTAs that stay: one thread keeps a ring of blocks of rows full by TMA, each warp normalises one row of a block out of shared memory."""


@kernel(target=("sm_90a", "sm_100a"))
def rmsnorm_ring(x: In[DT, M, D], gain: In[DT, D], y: Out[DT, M, D], eps: f32, *,
                 DT: (bf16, f16) = bf16, DMAX: (256, 512, 1024, 2048, 4096, 8192) = 4096, WARPS: (1, 2, 4, 8, 16) = 4,
                 STAGES: range(1, 9) = 3, PER: (1, 2, 4, 8) = 4, STAY: (1, 2, 4) = 1, BULK: (0, 1) = 0):
    # a copy takes a piece this wide of every row of the block; a warp has PER of them in registers
    PIECE = 256
    PIECES = DMAX // PIECE
    # shared memory is 227 KiB
    where(D <= DMAX, D % 8 == 0, PER <= PIECES, (STAGES + BULK) * WARPS * DMAX <= 114688)
    blocks = tile_space(ceil_div(M, WARPS))
    launch(ctas=min(blocks.count, STAY * device.sms))

    producer = role(thread)
    rows = role(warp, count=WARPS)

    x_s = smem(DT, PIECES * WARPS, PIECE, stages=STAGES)
    y_s = smem(DT, max(1, BULK * PIECES * WARPS), PIECE)
    full = mbarrier(stages=STAGES, arrivals=1)
    free = mbarrier(stages=STAGES, arrivals=WARPS)

    n = 0
    for block in blocks.persistent():
        row = block * WARPS
        with producer:
            wait(free[n - STAGES])
            expect(full[n])
            for p in unroll(PIECES):
                tma_load(x_s[n].rows(p * WARPS, WARPS), x[row:, p * PIECE:], signal=full[n])
        with rows as w:
            wait(full[n])
            squares = cast(fragment(DT, vec(8).cols[PIECE], 0.0), f32)
            for q in range(PIECES // PER):
                for i in unroll(PER):
                    v = cast(load(x_s[n][(q * PER + i) * WARPS + w], vec(8).cols[PIECE]), f32)
                    squares = squares + v * v
            scale = rsqrt(row_sum(squares) * rcp(cast(D, f32)) + eps)
            if BULK == 1:
                with elected():
                    bulk_wait_read(0)
                sync(warp)
            for q in range(PIECES // PER):
                for i in unroll(PER):
                    p = q * PER + i
                    v = cast(load(x_s[n][p * WARPS + w], vec(8).cols[PIECE]), f32)
                    g = cast(load(gain[p * PIECE:], vec(8).cols[PIECE]), f32)
                    z = cast(v * scale * g, DT)
                    if BULK == 1:
                        store(y_s[p * WARPS + w], z)
                    elif row + w < M:
                        store(y[row + w, p * PIECE:], z)
            # before copies into the row, and out of what was stored
            fence_async()
            arrive(free[n])
            if BULK == 1:
                sync(warp)
                with elected():
                    for p in unroll(PIECES):
                        tma_store(y[row + w:, p * PIECE:], y_s.rows(p * WARPS + w, 1))
                    bulk_commit()
        n += 1
    if BULK == 1:
        with rows as w:
            with elected():
                bulk_wait_read(0)
