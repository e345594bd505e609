"""A consumer that polls a flag in global memory and then fetches the payload by TMA."""


@kernel(target="sm_90a")
def poll(flag: InOut[i32, 1], x: InOut[f32, M, 64], y: Out[f32, M, 64]):
    launch(ctas=ceil_div(M, 32))

    producer = role(thread)
    team = role(warp)

    x_s = smem(f32, 32, 64)
    full = mbarrier()

    with producer:
        ready = load(flag[0])
        while ready == 0:
            ready = load(flag[0])
        fence_async(space=gmem)
        expect(full[0])
        tma_load(x_s, x[32 * cta:, :], signal=full[0])
    with team:
        wait(full[0])
        store(y[32 * cta:, :], load(x_s, vec(4, 16)[32, 64]))
