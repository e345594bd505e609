"""Shared-memory bandwidth of plain accesses and of matrix loads and stores."""


@kernel(target="sm_90a")
def shared_load(y: Out[f32, G, WARPS], trips: i32, *, V: (1, 2, 4) = 4, WARPS: (4, 8, 16) = 8):
    """A warp loads 4 KiB a trip, V consecutive elements a thread and access."""
    launch(ctas=G)

    math = role(warp, count=WARPS)

    t_s = smem(f32, WARPS, 1024, stages=2)

    with math as w:
        store(t_s[0][w], fragment(f32, vec(4).cols[1024], 1))
        store(t_s[1][w], fragment(f32, vec(4).cols[1024], 2))
        sync(warp)
        total = fragment(f32, vec(V).cols[1024], 0)
        for t in range(trips):
            total = max(total, load(t_s[t][w], vec(V).cols[1024]))
        store(y[cta, w], row_max(total))


@kernel(target="sm_90a")
def shared_store(y: Out[f32, G, WARPS], trips: i32, *, V: (1, 2, 4) = 4, WARPS: (4, 8, 16) = 8):
    """A warp stores 4 KiB a trip, V consecutive elements a thread and access."""
    launch(ctas=G)

    math = role(warp, count=WARPS)

    t_s = smem(f32, WARPS, 1024, stages=2)

    with math as w:
        v = fragment(f32, vec(V).cols[1024], 1)
        store(t_s[0][w], v)
        for t in range(trips):
            store(t_s[t][w], v)
        sync(warp)
        store(y[cta, w], row_max(load(t_s[0][w], vec(V).cols[1024])))


@kernel(target="sm_90a")
def matrix_load(x: In[bf16, 64, 64], y: Out[f32, G, WARPS, 64], trips: i32, *, WARPS: (4, 8) = 8):
    """ldmatrix x4 from 128-byte rows with swizzle: a warp loads 8 KiB a trip."""
    launch(ctas=G)

    math = role(warp, count=WARPS)

    t_s = smem(bf16, 64, 64, stages=2, swizzle=128)

    with math as w:
        if w == 0:
            cp_async(t_s[0], x[:, :])
            cp_async(t_s[1], x[:, :])
            cp_async_commit()
            cp_async_wait(0)
        sync(math)
        f = ldmatrix(t_s[0], mma_a[64, 64])
        for t in range(trips):
            f = ldmatrix(t_s[t], mma_a[64, 64])
        acc = fragment(f32, mma_d[64, 8], 0)
        mma(acc, f, ldmatrix(t_s[0].rows(0, 8), mma_b[8, 64]))
        store(y[cta, w, :], row_max(acc))


@kernel(target="sm_90a")
def matrix_store(y: Out[bf16, G, 64 * WG, 256], trips: i32, *, WG: (1, 2) = 2):
    """stmatrix x4 to 128-byte rows with swizzle: a warpgroup stores 32 KiB and syncs a trip."""
    launch(ctas=G)

    math = role(warpgroup, count=WG)

    t_s = smem(bf16, 64 * WG, 256, swizzle=128)

    with math as wg:
        v = fragment(bf16, wgmma_d[64, 256], 1)
        stmatrix(t_s.rows(64 * wg, 64), v)
        for t in range(trips):
            sync(warpgroup)
            stmatrix(t_s.rows(64 * wg, 64), v)
        sync(warpgroup)
        store(y[cta, 64 * wg:, :], load(t_s.rows(64 * wg, 64), vec(8, 32)[64, 256]))
