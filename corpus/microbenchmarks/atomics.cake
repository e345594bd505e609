"""Atomic additions to global memory: spread over many lines, and many of them at one place."""


@kernel(target="sm_90a")
def add_rows(y: InOut[f32, R, 1024], trips: i32, *, V: (1, 2, 4) = 4, WARPS: (4, 8) = 8, SAME: (0, 1) = 0):
    """A warp adds a row of 4 KiB a trip, V consecutive elements a thread and instruction. SAME 1: all warps the same rows,
    0: rows that no other warp adds to at that time.
    """
    where(R >= WARPS * device.sms)
    launch(ctas=device.sms)

    rows = role(warp, count=WARPS)

    with rows as w:
        v = fragment(f32, vec(V).cols[1024], 1)
        at = (cta * WARPS + w) * (1 - SAME)
        for t in range(trips):
            atomic_add(y[at, :], v)
            at += select(SAME == 1, 1, cta_count * WARPS)
            if at >= R:
                at = at - R


@kernel(target="sm_90a")
def add_word(y: InOut[f32, R, 32], trips: i32, *, WARPS: (1, 8) = 1, SHARE: (1, 8, 32, 1056) = 1):
    """A warp adds 32 words of one line a trip; SHARE neighbouring warps add to the same line."""
    where(R >= WARPS * device.sms)
    launch(ctas=device.sms)

    rows = role(warp, count=WARPS)

    with rows as w:
        v = fragment(f32, vec(1).cols[32], 1)
        at = (cta * WARPS + w) // SHARE
        for t in range(trips):
            atomic_add(y[at, :], v)


@kernel(target="sm_90a")
def fetch_chain(y: InOut[i32, 32], trips: i32):
    """One warp adds to 32 words of a line and needs the values before for the next: the latency of an atomic with a result."""
    launch(ctas=1)

    single = role(warp)

    with single as w:
        v = fragment(i32, vec(1).cols[32], 1)
        for t in range(trips):
            v = atomic_fetch_add(y[:], v) & 1
        atomic_add(y[:], v)
