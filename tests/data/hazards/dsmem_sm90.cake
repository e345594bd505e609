"""Four CTAs of a cluster add up a row: each stores its part into the first one, scalar by scalar."""


@kernel(target="sm_90a")
def total(x: In[f32, M, 512], y: Out[f32, M]):
    launch(ctas=4 * M, cluster=4)
    team = role(warp)
    part = smem(f32, 4)
    with team:
        v = load(x[cluster_id, 128 * cluster_rank:], vec(4).cols[128])
        t = row_sum(v)
        with elected():
            store(part[cluster_rank].on(0), t)
    sync(cluster)
    with team:
        if cluster_rank == 0:
            store(y[cluster_id], load(part[0]) + load(part[1]) + load(part[2]) + load(part[3]))
