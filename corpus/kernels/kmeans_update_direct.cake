"""k-means update, direct: every row is added to its cluster's sum in memory, four f32 at a time. Best for few points for each cluster.

`before` is how far the centroids moved last time: a problem where that is at most `tol` has converged and keeps its centroids; infinity in
`before` means that none has. A label outside 0 .. C - 1 belongs to no cluster. Features are taken DP at a time. A mean that is as near to the old
centroid as to its own rounding, within the noise of f32 sums (2**-18), is the old one: centroids of clusters that no longer change stay for
good, in whatever order their points were added. Clusters are counted in R copies, each for every R-th CTA:
atomics on one cache line take turns.
"""


@kernel(target="sm_90a")
def kmeans_clear(total: Out[f32, B, C, D], count: Out[i32, B, R, S], *,
                 R: (1, 4, 8, 16, 32) = 1, DP: (16, 32, 64, 128) = 128, ROWS: (8, 16) = 8, WARPS: (4, 8) = 8):
    where(S > C, D % 8 == 0)
    LANES = DP // 4
    tiles = tile_space(B, ceil_div(S, WARPS * ROWS))
    launch(ctas=tiles.count)

    rows = role(warp, count=WARPS)

    b, tile = tiles.at(cta)
    with rows as w:
        k = (tile * WARPS + w) * ROWS
        griddep_wait()
        griddep_launch()
        for d in range(0, D, DP):
            store(total[b, k:, d:], fragment(f32, vec(4, LANES)[ROWS, DP], 0.0))
        for r in unroll(R):
            store(count[b, r, k:], fragment(i32, vec(4, LANES).rows[ROWS], 0))


@kernel(target="sm_90a")
def kmeans_add(x: In[DT, B, N, D], label: In[i32, B, N], total: InOut[f32, B, C, D], count: InOut[i32, B, R, S], *,
               DT: (bf16, f16) = bf16, R: (1, 4, 8, 16, 32) = 1, DP: (16, 32, 64, 128) = 128, ROWS: (8, 16, 32) = 8,
               WARPS: (4, 8) = 8):
    where(S > C, C > 0, D % 8 == 0)
    LANES = DP // 4
    tiles = tile_space(B, ceil_div(N, WARPS * ROWS))
    launch(ctas=tiles.count)

    rows = role(warp, count=WARPS)

    b, tile = tiles.at(cta)
    with rows as w:
        first = (tile * WARPS + w) * ROWS
        griddep_wait()
        griddep_launch()
        given = load(label[b, first:], vec(4, LANES).rows[ROWS], fill=-1)
        valid = (given >= 0) & (given < C)
        who = min(max(given, 0), C - 1)
        for d in range(0, D, DP):
            v = load(x[b, first:, d:], vec(4, LANES)[ROWS, DP])
            atomic_add(total[b, who, d:], select(valid[:, None], cast(v, f32), 0.0))
        atomic_add(count[b, cta % R, who], select(valid, 1, 0))


@kernel(target="sm_90a")
def kmeans_mean(total: In[f32, B, C, D], count: In[i32, B, R, S], c: In[DT, B, C, D], before: In[f32, B],
                tol: In[f32, B], mean: Out[DT, B, C, D], mean_sq: Out[f32, B, C], size: Out[i32, B, C],
                moved: Out[f32, B, S], *,
                DT: (bf16, f16) = bf16, R: (1, 4, 8, 16, 32) = 1, DP: (16, 32, 64, 128) = 128, WARPS: (4, 8) = 8):
    where(S > C, D % 8 == 0)
    LANES = DP // 4
    HELD = 32 // LANES
    tiles = tile_space(B, ceil_div(S, WARPS * HELD))
    launch(ctas=tiles.count)

    rows = role(warp, count=WARPS)

    b, tile = tiles.at(cta)
    with rows as w:
        k = (tile * WARPS + w) * HELD
        griddep_wait()
        griddep_launch()
        n = fragment(i32, vec(4, LANES).rows[HELD], 0)
        for r in unroll(R):
            n = n + load(count[b, r, k:], vec(4, LANES).rows[HELD])
        live = select(load(before[b]) > load(tol[b]), n, 0)
        share = rcp(cast(live, f32))
        norm = fragment(f32, vec(4, LANES).rows[HELD], 0.0)
        far = fragment(f32, vec(4, LANES).rows[HELD], 0.0)
        for d in range(0, D, DP):
            old = cast(load(c[b, k:, d:], vec(4, LANES)[HELD, DP]), f32)
            exact = load(total[b, k:, d:], vec(4, LANES)[HELD, DP]) * share[:, None]
            near = cast(cast(exact, DT), f32)
            stays = abs(exact - old) <= abs(exact - near) + abs(exact) * 3.814697265625e-06
            new = select((live > 0)[:, None] & ~stays, near, old)
            store(mean[b, k:, d:], cast(new, DT))
            norm = norm + row_sum(new * new)
            gap = new - old
            far = far + row_sum(gap * gap)
        store(size[b, k:], n)
        store(mean_sq[b, k:], norm)
        store(moved[b, k:], sqrt(far))


@kernel(target="sm_90a")
def kmeans_shift(moved: In[f32, B, S], before: In[f32, B], tol: In[f32, B], shift: Out[f32, B], *,
                 WARPS: (4, 8) = 8, PART: (128, 256, 512) = 256):
    where(S % 4 == 0)
    launch(ctas=B)

    parts = role(warp, count=WARPS)

    part_s = smem(f32, WARPS)

    with parts as w:
        peak = 0.0
        griddep_wait()
        griddep_launch()
        for k in range(w * PART, S, WARPS * PART):
            v = load(moved[cta, k:], vec(4).cols[PART])
            peak = max(peak, row_max(select(v == v, v, inf)))
        store(part_s[w], peak)
        sync(parts)
        if w == 0:
            last = load(before[cta])
            top = row_max(load(part_s, vec(1).cols[WARPS], fill=0.0))
            store(shift[cta], select(last > load(tol[cta]), top, last))


@program
def kmeans_update_direct(x: In[DT, B, N, D], label: In[i32, B, N], c: In[DT, B, C, D], before: In[f32, B],
                         tol: In[f32, B], mean: Out[DT, B, C, D], mean_sq: Out[f32, B, C], size: Out[i32, B, C],
                         shift: Out[f32, B], *,
                         DT: (bf16, f16) = bf16, R: (1, 4, 8, 16, 32) = 1, DP: (16, 32, 64, 128) = 128):
    S = ceil_div(C + 1, 4) * 4
    total = workspace(f32, B, C, D)
    count = workspace(i32, B, R, S)
    moved = workspace(f32, B, S)
    kmeans_clear(total, count, DP=DP)
    kmeans_add(x, label, total, count, DP=DP)
    kmeans_mean(total, count, c, before, tol, mean, mean_sq, size, moved, DP=DP)
    kmeans_shift(moved, before, tol, shift)
