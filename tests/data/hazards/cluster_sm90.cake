"""A cluster that copies rows: launch geometry only."""


@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32], *, C: (1, 2, 4, 8, 16, 32) = 2):
    launch(ctas=C * M, cluster=C)
    team = role(warp)
    with team:
        v = load(x[cluster_id, :], vec(1).cols[32])
        if cluster_rank == 0:
            store(y[cluster_id, :], v)
