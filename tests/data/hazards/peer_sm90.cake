"""Two CTAs exchange halves through each other's shared memory and a barrier each."""


@kernel(target="sm_90a")
def halves(x: In[f32, M, 64], y: Out[f32, M, 64]):
    where(M % 2 == 0)
    launch(ctas=M, cluster=2)
    team = role(warp)
    t = smem(f32, 64)
    got = mbarrier()
    with team:
        v = load(x[cta, :], vec(2).cols[64])
        store(t.on(1 - cluster_rank), v)
        arrive(got[0].on(1 - cluster_rank))
        wait(got[0])
        store(y[cta, :], load(t, vec(2).cols[64]))
