"""Boxes that CTAs of different GPCs read: CTAs of a launch without clusters fill one GPC after the other."""


@kernel(target="sm_90a")
def tma_apart(x: In[bf16, R, 64], y: Out[i32, G], trips: i32, *,
              ROWS: (128, 256) = 256, STAGES: (4, 8) = 4, APART: (16, 33, 66) = 66):
    """As tma_shared; CTAs that read the same boxes at about the same time are APART from each other, so in a GPC each."""
    where(R >= ROWS, G <= 1024)
    launch(ctas=G)

    producer = role(thread)

    x_s = smem(bf16, ROWS, 64, stages=STAGES, swizzle=128)
    full = mbarrier(stages=STAGES, arrivals=1)

    with producer:
        boxes = R // ROWS
        at = cta % APART
        for t in range(trips):
            wait(full[t - STAGES])
            expect(full[t])
            tma_load(x_s[t], x[at * ROWS:, :], signal=full[t])
            at += APART
            if at >= boxes:
                at = at - boxes
        for s in range(STAGES):
            wait(full[trips - STAGES + s])
        store(y[cta], at)
