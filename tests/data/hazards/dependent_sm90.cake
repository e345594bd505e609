"""A kernel that starts before its predecessor ends: weights are read at once, activations after the dependency wait."""


@kernel(target="sm_90a")
def dependent(x: In[bf16, M, 64], w: Const[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 64))

    producer = role(thread, warps=4)
    team = role(warpgroup)

    x_s = smem(bf16, 64, 64, swizzle=128)
    w_s = smem(bf16, 64, 64, swizzle=128)
    x_full = mbarrier()
    w_full = mbarrier()

    row = 64 * cta
    with producer:
        expect(w_full[0])
        tma_load(w_s, w[row:, :], signal=w_full[0])
        griddep_wait()
        expect(x_full[0])
        tma_load(x_s, x[row:, :], signal=x_full[0])
    with team:
        wait(w_full[0])
        u = cast(load(w_s, vec(8, 8)[64, 64]), f32)
        wait(x_full[0])
        v = cast(load(x_s, vec(8, 8)[64, 64]), f32)
        griddep_wait()
        store(y[row:, :], cast(u * v, bf16))
        griddep_launch()
