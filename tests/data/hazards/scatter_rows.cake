"""Rows that are added to where an index vector says: rows past the end get the fill and are masked."""


@kernel(target="sm_90a")
def scatter(x: In[bf16, M, 64], to: In[i32, M], y: InOut[bf16, T, 64]):
    launch(ctas=ceil_div(M, 32))
    team = role(warp)
    tile = smem(bf16, 32, 64, pad=8)
    with team:
        i = load(to[32 * cta:], vec(1, 1).rows[32], fill=-1)
        assume(i < T)
        store(tile, load(x[32 * cta:, :], vec(8, 8)[32, 64]))
        fence_async()
        sync(warp)
        bulk_reduce(y[i, :], tile, op=add, when=i >= 0)
        bulk_commit()
        bulk_wait(0)
