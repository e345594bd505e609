"""What the start and the turn of CTAs cost, by threads, shared memory and cluster."""


@kernel(target="sm_90a")
def crowd(y: Out[i32, G], *, WARPS: (1, 4, 8, 16, 32) = 1):
    """Each CTA of WARPS warps stores one word."""
    launch(ctas=G)

    rows = role(warp, count=WARPS)

    with rows as w:
        if w == 0:
            store(y[cta], cta)


@kernel(target="sm_90a")
def crowd_cluster(y: Out[i32, G], *, CL: (2, 4, 8) = 2):
    """As crowd with four warps, in clusters."""
    where(G % CL == 0)
    launch(ctas=G, cluster=CL)

    rows = role(warp, count=4)

    with rows as w:
        if w == 0:
            store(y[cta], cta)


@kernel(target="sm_90a")
def crowd_shared(y: Out[i32, G]):
    """As crowd with four warps and 200 KiB of shared memory."""
    launch(ctas=G)

    rows = role(warp, count=4)

    pad_s = smem(i32, 51200)

    with rows as w:
        if w == 0:
            store(pad_s.cols(0, 32), fragment(i32, vec(1).cols[32], 1))
            sync(warp)
            store(y[cta], load(pad_s[0]))


@kernel(target="sm_90a")
def turn(y: Out[f32, W, G], p: f32, q: f32, steps: i32, *, WARPS: (4, 8, 12) = 4, KIB: (1, 25, 50, 100, 200) = 200):
    """W waves of CTAs with KIB KiB of shared memory; the first warp of each takes 16 dependent multiply-adds `steps` times."""
    launch(ctas=W * G)

    rows = role(warp, count=WARPS)

    pad_s = smem(f32, 256 * KIB)

    with rows as w:
        if w == 0:
            v = fragment(f32, vec(1).cols[32], 0.5)
            for t in range(steps):
                for i in unroll(16):
                    v = v * p + q
            store(pad_s.cols(0, 32), v)
            sync(warp)
            store(y[cta // G, cta % G], load(pad_s[0]))


@kernel(target="sm_90a")
def turn_cluster(y: Out[f32, W, G], p: f32, q: f32, steps: i32, *, CL: (2, 4) = 2):
    """As turn with four warps and 200 KiB, in clusters that meet at the end."""
    where(G % CL == 0)
    launch(ctas=W * G, cluster=CL)

    rows = role(warp, count=4)

    pad_s = smem(f32, 51200)

    with rows as w:
        if w == 0:
            v = fragment(f32, vec(1).cols[32], 0.5)
            for t in range(steps):
                for i in unroll(16):
                    v = v * p + q
            store(pad_s.cols(0, 32), v)
            sync(warp)
            store(y[cta // G, cta % G], load(pad_s[0]))
    sync(cluster)
