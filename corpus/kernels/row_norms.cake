"""Squared norms of rows in f32: a warp per row, the row in pieces of 16-byte lanes."""


@kernel(target=("sm_80", "sm_90a", "sm_100a"))
def row_norms(x: In[DT, M, D], y: Out[f32, M], *, DT: (bf16, f16) = bf16, WARPS: (4, 8) = 8, CHUNK: (256, 512) = 256):
    where(D % 8 == 0)
    launch(ctas=ceil_div(M, WARPS))

    rows = role(warp, count=WARPS)

    with rows as w:
        row = cta * WARPS + w
        if row < M:
            total = 0.0
            for c in range(0, D, CHUNK):
                v = cast(load(x[row, c:], vec(8).cols[CHUNK]), f32)
                total = total + row_sum(v * v)
            with elected():
                store(y[row], total)
