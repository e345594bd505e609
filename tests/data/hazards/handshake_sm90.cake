"""Two roles that hand a shared vector back and forth through two barriers and a named barrier of both."""


@kernel(target="sm_90a")
def handshake(x: In[f32, M, 128], y: Out[f32, M, 128]):
    launch(ctas=1)

    left = role(warpgroup)
    right = role(warpgroup)

    v_s = smem(f32, 128)
    there = mbarrier()
    back = mbarrier()
    both = named_barrier(2)

    for i in range(M):
        with left:
            wait(back[i - 1])
            store(v_s, load(x[i, :], vec(1).cols[128]))
            arrive(there[i])
        with right:
            wait(there[i])
            v = load(v_s, vec(1).cols[128])
            arrive(back[i])
            store(y[i, :], v)
    with left:
        arrive(both[0])
    with right:
        sync(both[0])
