"""Small programs and a helper for the order tests: edit one place, read the findings."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from analyses.order import check_order
from cake_ir import bind, parse
from cake_ir.bound import BoundKernel
from cake_ir.derive import derive
from cake_ir.diagnostics import Diagnostic

KERNELS = Path(__file__).parent / "kernels"
CORPUS = Path(__file__).parents[3] / "corpus" / "kernels"


@cache
def base(name: str) -> str:
    """The text of a right program without `arrivals=` assertions, so that faults reach the order reading."""
    return (KERNELS / f"{name}.cake").read_text()


SPLIT_K = '''"""Few rows: the K loop is split over a cluster and over warps, two loaders share a barrier."""


@kernel(target="sm_90a")
def tiny(x: In[bf16, M, K], w: Const[bf16, N, K], out: Out[bf16, M, N], *, STAGES: range(2, 17) = 4):
    where(K % 8 == 0)
    tiles = tile_space(ceil_div(N, 16), ceil_div(M, 8))
    launch(ctas=2 * tiles.count, cluster=2)

    load_w = role(thread)
    load_x = role(thread)
    math = role(warp, count=4)

    w_s = smem(bf16, 16, 64, stages=STAGES, swizzle=128)
    x_s = smem(bf16, 8, 64, stages=STAGES, swizzle=128)
    part_s = smem(f32, 8, 16, 8)
    full = mbarrier(stages=STAGES)
    free = mbarrier(stages=STAGES)

    tile_n, tile_m = tiles.at(cluster_id)
    row = 16 * tile_n
    col = 8 * tile_m
    share = ceil_div(ceil_div(K, 64), 2)
    first = cluster_rank * share
    count = max(0, min(share, ceil_div(K, 64) - first))
    with load_w:
        for n in range(count):
            wait(free[n - STAGES])
            expect(full[n])
            tma_load(w_s[n], w[row:, (first + n) * 64:], signal=full[n])
    with load_x:
        griddep_wait()
        for n in range(count):
            wait(free[n - STAGES])
            expect(full[n])
            tma_load(x_s[n], x[col:, (first + n) * 64:], signal=full[n])
    with math as i:
        acc = fragment(f32, mma_d[16, 8], 0)
        for n in range(i, count, 4):
            wait(full[n])
            for j in unroll(4):
                fa = ldmatrix(w_s[n].cols(16 * j, 16), mma_a[16, 16])
                fb = ldmatrix(x_s[n].cols(16 * j, 16), mma_b[8, 16])
                mma(acc, fa, fb)
            fence_async()
            arrive(free[n])
        store(part_s[cluster_rank * 4 + i].on(0), acc)
    sync(cluster)
    with math as i:
        if cluster_rank == 0 and i == 0:
            total = fragment(f32, mma_d[16, 8], 0)
            for j in unroll(8):
                total = total + load(part_s[j], mma_d[16, 8])
            griddep_wait()
            store(out[col:, row:].T, cast(total, bf16))
'''

TURNS = '''"""Two warpgroups take turns through named barriers: each arrives for the other and waits for itself."""


@kernel(target="sm_90a")
def turns(x: In[f32, N, 128], y: Out[f32, N, 128]):
    launch(ctas=ceil_div(N, 2))

    math = role(warpgroup, count=2)

    shared_s = smem(f32, 128)
    turn = named_barrier(2)

    with math as wg:
        v = fragment(f32, vec(2).cols[128], 0)
        if wg == 1:
            arrive(turn[0])
        for j in range(3):
            sync(turn[wg])
            store(shared_s, load(x[2 * cta + wg, :], vec(1).cols[128]))
            sync(warpgroup)
            v = load(shared_s, vec(2).cols[128])
            arrive(turn[1 - wg])
        if wg == 0:
            sync(turn[0])
        store(y[2 * cta + wg, :], v)
'''

RESTART = '''"""Use numbers restart for every tile."""


@kernel(target="sm_90a")
def restart(x: In[bf16, R, K], y: Out[f32, R], *, STAGES: (2, 4) = 2):
    where(K > 0, K % (64 * GRAIN) == 0)
    launch(ctas=1)

    producer = role(thread)
    math = role(warp)

    x_s = smem(bf16, 8, 64, stages=STAGES, swizzle=128)
    full = mbarrier(stages=STAGES)
    free = mbarrier(stages=STAGES)

    for tile in range(ceil_div(R, 8)):
        with producer:
            for n in range(K // 64):
                wait(free[n + tile * (K // 64) - STAGES])
                expect(full[n])
                tma_load(x_s[n], x[8 * tile:, n * 64:], signal=full[n])
        with math as w:
            total = 0.0
            for n in range(K // 64):
                wait(full[n])
                total = total + row_sum(col_sum(cast(load(x_s[n], vec(8, 8)[8, 64]), f32)))
                fence_async()
                arrive(free[n])
            store(y[8 * tile], total)
'''


def bound(text: str, target: str | None = None, kernel: str | None = None, **bindings: int) -> BoundKernel:
    """Parse and bind (`kernel`: which of several); fails the test with the findings if that is not possible."""
    parsed = parse(text)
    assert parsed.file is not None, [d.render() for d in parsed.diagnostics]
    result = bind(parsed.file, bindings, target or parsed.file.kernels[0].targets[0], kernel)
    assert result.bound is not None, [d.render() for d in result.diagnostics]
    return result.bound


def read(text: str, target: str | None = None, kernel: str | None = None, **bindings: int) -> list[Diagnostic]:
    """Findings of the order reading, or of `derive` where that already fails."""
    b = bound(text, target, kernel, **bindings)
    derived = derive(b)
    return list(check_order(b, derived).diagnostics) if derived.ok else list(derived.diagnostics)


def edit(text: str, old: str, new: str, occurrence: int = 0) -> str:
    """The text with one place changed; `new` empty and `old` a whole line: the line goes."""
    at = -1
    for _ in range(occurrence + 1):
        at = text.find(old, at + 1)
        assert at >= 0, f"{old!r} is not in the program"
    if new:
        return text[:at] + new + text[at + len(old) :]
    start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at) + 1
    return text[:start] + text[end:]


def line_of(text: str, d: Diagnostic) -> str:
    """The source line that a finding points at."""
    return text.split("\n")[d.span.line - 1].strip()
