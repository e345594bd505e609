"""k-means update, sorted: points are put in order of clusters, and warps sum runs of that order in registers. x is read once.

`kmeans_rank` numbers the points of each cluster, `kmeans_scan` says where each cluster starts, `kmeans_place` writes the order, and in
`kmeans_runs` each warp sums rows in registers and adds to memory where the cluster changes. Points of no cluster come last.
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
def kmeans_rank(label: In[i32, B, N], count: InOut[i32, B, R, S], rank: Out[i32, B, N], *,
                R: (1, 4, 8, 16, 32) = 8, PER: (1, 2, 4, 8) = 4):
    where(S > 1)
    WARPS = 8
    tiles = tile_space(B, ceil_div(N, WARPS * 32 * PER))
    launch(ctas=tiles.count)

    points = role(warp, count=WARPS)

    b, tile = tiles.at(cta)
    with points as w:
        first = (tile * WARPS + w) * 32 * PER
        griddep_wait()
        griddep_launch()
        given = load(label[b, first:], vec(1).cols[32 * PER], fill=-1)
        who = select(given < 0, S - 1, min(max(given, 0), S - 1))
        one = fragment(i32, vec(1).cols[32 * PER], 1)
        store(rank[b, first:], atomic_fetch_add(count[b, cta % R, who], one, when=first + col_index(one) < N))


@kernel(target="sm_90a")
def kmeans_scan(count: In[i32, B, R, S], start: Out[i32, B, R, S], *,
                R: (1, 4, 8, 16, 32) = 8, WARPS: (4, 8, 16) = 8, PART: (128, 256, 512) = 256):
    where(S % 4 == 0)
    launch(ctas=B)

    parts = role(warp, count=WARPS)

    part_s = smem(i32, WARPS)

    with parts as w:
        before = 0
        griddep_wait()
        griddep_launch()
        for k in range(0, S, WARPS * PART):
            at = k + w * PART
            n = fragment(i32, vec(4).cols[PART], 0)
            for r in unroll(R):
                n = n + load(count[cta, r, at:], vec(4).cols[PART])
            run = row_cumsum(n)
            store(part_s[w], row_sum(n))
            sync(parts)
            all = load(part_s, vec(1).cols[WARPS])
            earlier = row_sum(select(col_index(all) < w, all, 0))
            place = run - n + (before + earlier)
            for r in unroll(R):
                store(start[cta, r, at:], place)
                place = place + load(count[cta, r, at:], vec(4).cols[PART])
            before = before + row_sum(all)
            sync(parts)


@kernel(target="sm_90a")
def kmeans_place(label: In[i32, B, N], rank: In[i32, B, N], start: In[i32, B, R, S], order: Out[i32, B, N],
                 group: Out[i32, B, N], *,
                 R: (1, 4, 8, 16, 32) = 8, PER: (1, 2, 4, 8) = 4):
    where(S > 1)
    WARPS = 8
    tiles = tile_space(B, ceil_div(N, WARPS * 32 * PER))
    launch(ctas=tiles.count)

    points = role(warp, count=WARPS)

    b, tile = tiles.at(cta)
    with points as w:
        first = (tile * WARPS + w) * 32 * PER
        griddep_wait()
        griddep_launch()
        given = load(label[b, first:], vec(1).cols[32 * PER], fill=-1)
        who = select(given < 0, S - 1, min(max(given, 0), S - 1))
        place = load(start[b, cta % R, who], vec(1).cols[32 * PER]) + load(rank[b, first:], vec(1).cols[32 * PER])
        at = min(max(place, 0), N - 1)
        point = first + col_index(given)
        store(order[b, at], point, when=point < N)
        store(group[b, at], who, when=point < N)


@kernel(target="sm_90a")
def kmeans_runs(x: In[DT, B, N, D], order: In[i32, B, N], group: In[i32, B, N], total: InOut[f32, B, C, D], *,
                DT: (bf16, f16) = bf16, DP: (16, 32, 64, 128) = 128, ROWS: (8, 16, 32) = 8,
                RUN: (64, 128, 256, 512) = 64, WARPS: (4, 8) = 8):
    where(C > 0, D % 8 == 0)
    LANES = DP // 4
    HELD = 32 // LANES
    tiles = tile_space(B, ceil_div(N, WARPS * RUN), ceil_div(D, DP))
    launch(ctas=tiles.count)

    runs = role(warp, count=WARPS)

    b, tile, part = tiles.at(cta)
    with runs as w:
        first = (tile * WARPS + w) * RUN
        d = part * DP
        acc = fragment(f32, vec(4, LANES)[HELD, DP], 0.0)
        now = C
        griddep_wait()
        griddep_launch()
        for p in range(first, min(first + RUN, N), ROWS):
            ids = load(group[b, p:], vec(1).cols[32], fill=-1)
            point = load(order[b, p:], vec(4, LANES).rows[ROWS])
            assume((point >= 0) & (point < N))
            v = load(x[b, point, d:], vec(4, LANES)[ROWS, DP])
            low = pick(ids, 0)
            if low == pick(ids, ROWS - 1):
                if low != now:
                    if now >= 0 and now < C:
                        atomic_add(total[b, now, d:], col_sum(acc))
                    acc = fragment(f32, vec(4, LANES)[HELD, DP], 0.0)
                    now = low
                for i in unroll(ROWS // HELD):
                    acc = acc + cast(v.rows(HELD * i, HELD), f32)
            else:
                given = load(group[b, p:], vec(4, LANES).rows[ROWS], fill=-1)
                valid = (given >= 0) & (given < C)
                who = min(max(given, 0), C - 1)
                atomic_add(total[b, who, d:], select(valid[:, None], cast(v, f32), 0.0))
        if now >= 0 and now < C:
            atomic_add(total[b, now, d:], col_sum(acc))


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
def kmeans_update_sorted(x: In[DT, B, N, D], label: In[i32, B, N], c: In[DT, B, C, D], before: In[f32, B],
                         tol: In[f32, B], mean: Out[DT, B, C, D], mean_sq: Out[f32, B, C], size: Out[i32, B, C],
                         shift: Out[f32, B], *,
                         DT: (bf16, f16) = bf16, R: (1, 4, 8, 16, 32) = 8, DP: (16, 32, 64, 128) = 128,
                         PER: (1, 2, 4, 8) = 4):
    S = ceil_div(C + 1, 4) * 4
    total = workspace(f32, B, C, D)
    count = workspace(i32, B, R, S)
    start = workspace(i32, B, R, S)
    rank = workspace(i32, B, N)
    order = workspace(i32, B, N)
    group = workspace(i32, B, N)
    moved = workspace(f32, B, S)
    kmeans_clear(total, count, DP=DP)
    kmeans_rank(label, count, rank, PER=PER)
    kmeans_scan(count, start)
    kmeans_place(label, rank, start, order, group, PER=PER)
    kmeans_runs(x, order, group, total, DP=DP)
    kmeans_mean(total, count, c, before, tol, mean, mean_sq, size, moved, DP=DP)
    kmeans_shift(moved, before, tol, shift)
