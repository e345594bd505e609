"""What a launch costs: alone, dependent on the one before, per wave of CTAs, and with a barrier and a tensor map to set up."""


@kernel(target="sm_90a")
def empty(y: Out[i32, G]):
    """Each CTA stores one word."""
    launch(ctas=G)

    single = role(warp)

    with single as w:
        store(y[cta], cta)


@kernel(target="sm_90a")
def dependent(y: Out[i32, G]):
    """As empty; may start before the launch in front of it has ended."""
    launch(ctas=G)

    single = role(warp)

    griddep_launch()
    griddep_wait()
    with single as w:
        store(y[cta], cta)


@kernel(target="sm_90a")
def first_load(x: In[bf16, R, 64], y: Out[i32, G]):
    """Barrier set-up, one tensor copy of 16 KiB and its arrival: what stands before the first product."""
    where(G <= 1024)
    launch(ctas=G)

    math = role(warpgroup, count=2)
    producer = role(thread)

    x_s = smem(bf16, 128, 64, swizzle=128)
    full = mbarrier(arrivals=1)

    with producer:
        expect(full[0])
        tma_load(x_s, x[cta * 128:, :], signal=full[0])
    with math as wg:
        wait(full[0])
        if wg == 0:
            store(y[cta], cta)


@kernel(target="sm_90a")
def room(y: Out[i32, G], *, CL: range(2, 17) = 2):
    """A cluster of CTAs that fill an SM each: how many the device holds at once says on how many SMs such clusters run."""
    where(G % CL == 0)
    launch(ctas=G, cluster=CL)

    single = role(warp)

    pad_s = smem(i32, 50000)

    with single as w:
        store(pad_s.cols(0, 32), fragment(i32, vec(1).cols[32], 1))
        sync(warp)
        store(y[cta], load(pad_s[0]))
    sync(cluster)


@kernel(target="sm_90a")
def after(x: In[f32, 32], y: Out[f32, G], p: f32, q: f32, steps: i32, *, EARLY: (0, 1) = 1):
    """Every launch takes a chain of 16 x steps dependent multiply-adds; EARLY 1: the one behind it may start at once and waits for its end."""
    launch(ctas=G)

    single = role(warp)

    if EARLY == 1:
        griddep_launch()
        griddep_wait()
    with single as w:
        v = load(x[:], vec(1).cols[32])
        for t in range(steps):
            for i in unroll(16):
                v = v * p + q
        store(y[cta], row_max(v))
