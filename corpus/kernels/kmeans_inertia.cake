"""Inertia of a clustering: the sum of squared distances between points and their centroids. A label outside 0 .. C - 1 adds nothing.

A warp takes RUN points, ROWS at a time, and features DP at a time; each CTA adds once to its problem's sum.
"""


@kernel(target="sm_90a")
def kmeans_distances(x: In[DT, B, N, D], label: In[i32, B, N], c: In[DT, B, C, D], inertia: InOut[f32, B], *,
                     DT: (bf16, f16) = bf16, DP: (16, 32, 64, 128) = 128, ROWS: (8, 16) = 8, RUN: (32, 64, 128) = 64,
                     WARPS: (4, 8) = 8):
    where(C > 0, D % 8 == 0)
    LANES = DP // 4
    tiles = tile_space(B, ceil_div(N, WARPS * RUN))
    launch(ctas=tiles.count)

    rows = role(warp, count=WARPS)

    part_s = smem(f32, WARPS)

    b, tile = tiles.at(cta)
    with rows as w:
        first = (tile * WARPS + w) * RUN
        sum = fragment(f32, vec(4, LANES).rows[ROWS], 0.0)
        griddep_wait()
        griddep_launch()
        for p in range(first, min(first + RUN, N), ROWS):
            given = load(label[b, p:], vec(4, LANES).rows[ROWS], fill=-1)
            valid = (given >= 0) & (given < C)
            who = min(max(given, 0), C - 1)
            for d in range(0, D, DP):
                v = load(x[b, p:, d:], vec(4, LANES)[ROWS, DP])
                near = load(c[b, who, d:], vec(4, LANES)[ROWS, DP])
                gap = cast(v, f32) - cast(near, f32)
                sum = sum + select(valid, row_sum(gap * gap), 0.0)
        store(part_s[w], col_sum(sum))
        sync(rows)
        if w == 0:
            whole = row_sum(load(part_s, vec(1).cols[WARPS]))
            atomic_add(inertia[b:], fragment(f32, vec(1).cols[1], whole))


@program
def kmeans_inertia(x: In[DT, B, N, D], label: In[i32, B, N], c: In[DT, B, C, D], inertia: Out[f32, B], *,
                   DT: (bf16, f16) = bf16, DP: (16, 32, 64, 128) = 128):
    fill(inertia, 0.0)
    kmeans_distances(x, label, c, inertia, DP=DP)
