"""The schedule of the cost model against times computed by hand, on a machine with round numbers."""

from __future__ import annotations

from typing import Any

import pytest

from analyses.cost.estimate import Estimate, estimate_on
from analyses.cost.machine import Machine
from analyses.cost.schedule import shares
from analyses.cost.work import OVERHEAD, let_work, op_work
from cake_ir import bind, parse
from cake_ir import bound as B

LATENCY = {
    "load": 100, "smem_load": 10, "tma": 400, "first_load": 0, "hop": 50, "passed": 8, "named": 20, "cta": 30, "cluster": 200, "fence": 5,
    "reduce": 40, "wgmma": 0, "cta_start": 0, "launch_us": 1.0,
    "dependent_us": 0.5,
}  # fmt: skip
MACHINE = Machine(
    name="toy", sms=4, clock_hz=1e9, clock_tensor_hz=1e9, hbm_read=1e15, hbm_write=1e15, l2=1e15, port=1e6, smem=1e6, fma=128, alu=64,
    special=16, shuffle=32, latency=LATENCY, wgmma={}, mma_sync=0.5, flop={16: 4096, 8: 8192, 32: 2048},
)  # fmt: skip
"""1 GHz: a thousand clocks are a microsecond. Memory is endless, so that nothing but the schedule counts."""
BARRIER = 6 * OVERHEAD
"""Issue time of a barrier op of a unit: 6 instructions on the one warp of each scheduler."""


def bound_of(text: str, **bindings: Any) -> B.BoundKernel:
    parsed = parse(text)
    assert parsed.file is not None, [d.render() for d in parsed.diagnostics]
    done = bind(parsed.file, bindings)
    assert done.bound is not None, [d.render() for d in done.diagnostics]
    return done.bound


def run(text: str, shape: dict[str, int], machine: Machine = MACHINE, **bindings: Any) -> Estimate:
    return estimate_on(bound_of(text, **bindings), shape, machine)


def slope(
    text: str,
    few: int,
    many: int,
    machine: Machine = MACHINE,
    name: str = "trips",
    shape: dict[str, int] | None = None,
    **bindings: Any,
) -> float:
    """Clocks a trip."""
    a, b = (run(text, {**(shape or {"G": 4}), name: n}, machine, **bindings).time_us for n in (few, many))
    return (b - a) * 1000 / (many - few)


CHAIN = """
@kernel(target="sm_90a")
def chain(x: In[f32, 16, 64], y: Out[f32, G, WARPS, 16], trips: i32, *, WARPS: (1, 4, 8, 16) = 1):
    launch(ctas=G)
    math = role(warp, count=WARPS)
    with math as w:
        v = load(x[0:, :], mma_d[16, 64])
        for t in range(trips):
            v = v * 0.5 + 1.0
        store(y[cta, w, 0:], row_max(v))
"""


@pytest.mark.parametrize(("warps", "clocks"), [(1, 32), (4, 32), (8, 64), (16, 128)])
def test_a_warp_has_one_scheduler_and_more_warps_fill_the_others(warps: int, clocks: int) -> None:
    # 32 multiply-adds a warp and trip: one a clock on its scheduler; four warps have one each, beyond that they share
    assert slope(CHAIN, 100, 1100, WARPS=warps) == pytest.approx(clocks * OVERHEAD, rel=1e-6)


PRODUCT = """
@kernel(target="sm_90a")
def product(a: In[bf16, 192, 64], b: In[bf16, 128, 64], y: Out[f32, G, 64 * WG], trips: i32, *, WG: (1, 2, 3) = 1, AHEAD: (0, 1) = 0):
    launch(ctas=G)
    math = role(warpgroup, count=WG)
    producer = role(thread)
    a_s = smem(bf16, 64 * WG, 64, swizzle=128)
    b_s = smem(bf16, 128, 64, swizzle=128)
    full = mbarrier(arrivals=1)
    with producer:
        expect(full[0])
        tma_load(a_s, a[0:, :], signal=full[0])
        tma_load(b_s, b[0:, :], signal=full[0])
    with math as wg:
        wait(full[0])
        fa = ldmatrix(a_s.rows(64 * wg, 64), wgmma_a[64, 64])
        low = fragment(f32, wgmma_d[64, 128], 0)
        acc = fragment(f32, wgmma_d[64, 128], 0)
        for t in range(trips):
            wgmma(acc, fa, b_s, init=True)
            wgmma_commit()
            wgmma_wait(AHEAD)
            low = low * 0.5 + 1.0
        wgmma_wait(0)
        store(y[cta, 64 * wg:], row_max(low))
"""
TENSOR = 2 * 64 * 128 * 64 / 4096  # 256 clocks
OWN = (
    64 + 4
) * OVERHEAD  # multiply-adds, and the 4 wgmma instructions that a warp issues; commit and wait hide behind the product


def test_a_product_and_the_own_epilogue_are_serial() -> None:
    assert slope(PRODUCT, 100, 1100, WG=1) == pytest.approx(TENSOR + OWN, rel=0.02)


def test_a_product_that_is_not_waited_for_runs_under_the_epilogue() -> None:
    assert slope(PRODUCT, 100, 1100, WG=1, AHEAD=1) == pytest.approx(TENSOR, rel=0.02)


@pytest.mark.parametrize("groups", [2, 3])
def test_other_warpgroups_fill_the_tensor_cores(groups: int) -> None:
    assert slope(PRODUCT, 100, 1100, WG=groups) == pytest.approx(groups * TENSOR, rel=1e-6)


RING = """
@kernel(target="sm_90a")
def ring(x: In[bf16, N, 64], y: Out[f32, G, 64], trips: i32, *, STAGES: (1, 2, 4, 8) = 1):
    launch(ctas=G)
    math = role(warpgroup)
    producer = role(thread)
    x_s = smem(bf16, 64, 64, stages=STAGES, swizzle=128)
    full = mbarrier(stages=STAGES, arrivals=1)
    free = mbarrier(stages=STAGES, arrivals=4)
    with math as wg:
        acc = fragment(f32, wgmma_d[64, 64], 0)
    for n in range(trips):
        with producer:
            wait(free[n - STAGES])
            expect(full[n])
            tma_load(x_s[n], x[64 * n:, :], signal=full[n])
        with math as wg:
            wait(full[n])
            wgmma(acc, x_s[n], x_s[n])
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
    with math as wg:
        store(y[cta, 0:], row_max(acc))
"""


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_ring_with_few_stages_waits_for_its_copies(stages: int) -> None:
    # copy 400, two hand-overs of 50, and the time that the slot is held: a product of 128 clocks and its barriers
    held = 2 * 64 * 64 * 64 / 4096 + (6 + 4) * OVERHEAD
    found = slope(RING, 100, 1100, STAGES=stages, shape={"G": 4, "N": 100000})
    assert found == pytest.approx((500 + held) / stages, rel=0.05)
    assert run(RING, {"G": 4, "N": 100000, "trips": 1000}, STAGES=stages).limited_by == "copy latency"


def test_a_ring_with_enough_stages_is_as_fast_as_its_slowest_role() -> None:
    found = run(RING, {"G": 4, "N": 100000, "trips": 1000}, STAGES=8)
    assert found.limited_by == "role math"
    assert slope(RING, 100, 1100, STAGES=8, shape={"G": 4, "N": 100000}) == pytest.approx(
        128 + 8 + 2 * BARRIER + 4 * OVERHEAD, rel=0.02
    )


TILES = """
@kernel(target="sm_90a")
def tiles(x: In[bf16, T, 64], y: Out[f32, T], *, K: range(1, 200) = 16):
    tiles = tile_space(ceil_div(T, 64))
    launch(ctas=min(tiles.count, device.sms))
    math = role(warpgroup)
    producer = role(thread)
    x_s = smem(bf16, 64, 64, stages=8, swizzle=128)
    full = mbarrier(stages=8, arrivals=1)
    free = mbarrier(stages=8, arrivals=4)
    n = 0
    for tile in tiles.persistent():
        with math as wg:
            acc = fragment(f32, wgmma_d[64, 64], 0)
        for k in range(K):
            with producer:
                wait(free[n - 8])
                expect(full[n])
                tma_load(x_s[n], x[64 * tile:, :], signal=full[n])
            with math as wg:
                wait(full[n])
                wgmma(acc, x_s[n], x_s[n])
                wgmma_commit()
                wgmma_wait(0)
                arrive(free[n])
            n += 1
        with math as wg:
            for i in unroll(20):
                acc = acc * 0.5 + 1.0
            store(y[64 * tile:], row_max(acc))
"""


def test_work_beside_the_inner_loop_is_added_and_tiles_come_in_whole_numbers() -> None:
    step = 128 + 8 + 2 * BARRIER + 4 * OVERHEAD
    beside = 20 * 32 * OVERHEAD  # of one warpgroup; the reduction and the store come on top
    one, two, more = (run(TILES, {"T": 64 * n}) for n in (4, 8, 5))
    tile = (two.time_us - one.time_us) * 1000
    assert tile == pytest.approx(16 * step + beside, rel=0.08)
    assert more.time_us == pytest.approx(two.time_us, rel=1e-9)  # the fifth tile makes one of four SMs run twice
    longer = (run(TILES, {"T": 512}, K=32).time_us - run(TILES, {"T": 256}, K=32).time_us) * 1000
    assert longer - tile == pytest.approx(16 * step, rel=0.01)


ROWS = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 1024], y: Out[f32, M, 1024]):
    launch(ctas=M)
    rows = role(warp)
    with rows as w:
        v = load(x[cta, 0:], vec(4).cols[1024])
        store(y[cta, 0:], v * 2.0)
"""


def test_waves_are_whole_and_a_launch_is_added() -> None:
    slots = run(ROWS, {"M": 1}).ctas_per_sm * 4
    one, full, next_, two = (run(ROWS, {"M": m}) for m in (1, slots, slots + 1, 2 * slots))
    assert one.time_us > 1.0 and one.launch_us == 1.0
    assert next_.waves == pytest.approx(1 + 1 / slots) and full.waves == 1.0
    assert full.time_us < next_.time_us <= two.time_us
    assert two.time_us - 1.0 == pytest.approx(2 * (full.time_us - 1.0))


def test_a_load_is_waited_for_where_its_value_is_used() -> None:
    slow = Machine(**{**MACHINE.__dict__, "latency": {**LATENCY, "load": 1100}})
    # the load itself, and half of one for the first access of the CTA
    assert run(ROWS, {"M": 1}, slow).time_us - run(ROWS, {"M": 1}).time_us == pytest.approx(1.5, rel=0.01)


def test_memory_bounds_the_grid() -> None:
    slow = Machine(**{**MACHINE.__dict__, "hbm_read": 1e9, "hbm_write": 5e8})
    found = run(ROWS, {"M": 64}, slow)
    assert found.limited_by == found.bound_by == "hbm"
    assert found.time_us == pytest.approx(1.0 + 64 * 4096 * (1 / 1e9 + 1 / 5e8) * 1e6)


def test_the_clock_falls_with_the_load_of_the_tensor_cores() -> None:
    capped = Machine(**{**MACHINE.__dict__, "clock_tensor_hz": 0.5e9})
    busy = run(PRODUCT, {"G": 4, "trips": 10000}, capped, WG=3)
    assert busy.clock_mhz == pytest.approx(500, rel=0.01)
    assert run(CHAIN, {"G": 4, "trips": 1000}, capped).clock_mhz == 1000


def test_what_ctas_read_together_crosses_l2_once() -> None:
    text = """
@kernel(target="sm_90a")
def together(x: In[f32, M, 128], c: In[f32, 128], y: Out[f32, M, 128]):
    launch(ctas=M)
    rows = role(warp)
    with rows as w:
        v = load(x[cta, 0:], vec(4).cols[128])
        store(y[cta, 0:], v * load(c[0:], vec(4).cols[128]))
"""
    bound = bound_of(text)
    env: list[Any] = [0] * len(bound.scalars)
    loads = [s for s in B.walk(bound.body) if isinstance(s, B.Op) and s.name == "load"]
    found = shares(bound, env, 8)
    assert [found[id(op)] for op in loads] == [1.0, 1 / 8]
    assert run(text, {"M": 8}).l2_bytes == pytest.approx(8 * 512 * (2 + 1 / 8))


@pytest.mark.parametrize(("expression", "pipe", "instructions"), [
    ("bitcast((bitcast(v, i32) & -32) | 5, f32)", "alu", 1),  # one LOP3 for two logic operations
    ("v * 2.0 + v", "fma", 1),
    ("min(v, max(v, 1.0))", "alu", 2),
    ("select(v < 1.0, v, 2.0)", "alu", 2),
    ("-abs(v)", "alu", 0),
    ("exp2(v)", "sfu", 1),
    ("cast(cast(v, bf16), f32)", "alu", 1.5),  # two are packed by one instruction
])  # fmt: skip
def test_elementwise_instructions(expression: str, pipe: str, instructions: float) -> None:
    text = f"""
@kernel(target="sm_90a")
def one(x: In[f32, 16, 64], y: Out[f32, 16, 64]):
    launch(ctas=1)
    rows = role(warp)
    with rows as w:
        v = load(x[0:, :], mma_d[16, 64])
        z = {expression}
        store(y[0:, :], z)
"""
    let = next(s for s in B.walk(bound_of(text).body) if isinstance(s, B.Let) and s.frag.name == "z")
    work = let_work(let, MACHINE, 1)
    lanes = {"fma": 128, "alu": 64, "sfu": 16}[pipe]
    assert work.get(pipe, 0.0) == pytest.approx(32 * instructions * 32 / lanes)
    assert work.get("issue", 0.0) == pytest.approx(32 * instructions * OVERHEAD / 4)


BEHIND = PRODUCT.replace("low = low * 0.5 + 1.0", "low = max(low * 0.5 + 1.0, 2.0)")


@pytest.mark.parametrize(("price", "free"), [(0.0, 0.0), (1.0, 0.0), (0.5, 0.1)])
def test_instructions_slow_the_products_of_others_down(price: float, free: float) -> None:
    m = Machine(**{**MACHINE.__dict__, "interference": {2: (0.0, 9.0), 3: (free, price)}})
    alone = 3 * TENSOR  # three warpgroups
    slots = 3 * (64 + 4 + 2 * 6) * OVERHEAD  # multiply-adds, wgmma instructions, commit and wait
    assert slope(PRODUCT, 100, 1100, m, WG=3) == pytest.approx(alone + price * (slots - free * alone), rel=1e-6)


def test_an_alu_instruction_keeps_the_scheduler_for_its_slots() -> None:
    two = Machine(**{**MACHINE.__dict__, "alu_slots": 2.0})
    more = slope(BEHIND, 100, 1100, two, WG=1) - slope(BEHIND, 100, 1100, WG=1)
    assert more == pytest.approx(64 * OVERHEAD, rel=1e-6)  # 64 minima a thread, each one slot more
    text = CHAIN.replace("v * 0.5 + 1.0", "min(v * 0.5 + 1.0, v * 0.25)")
    # two multiply-adds and a minimum: 3 slots on a machine that runs pipes side by side, 4 where a minimum blocks two
    assert slope(text, 100, 1100, WARPS=4) == pytest.approx(3 * 32 * OVERHEAD, rel=1e-6)
    assert slope(text, 100, 1100, two, WARPS=4) == pytest.approx(4 * 32 * OVERHEAD, rel=1e-6)


def test_clusters_leave_sms_idle() -> None:
    m = Machine(**{**MACHINE.__dict__, "sms": 132})
    assert [m.usable_sms(n) for n in (1, 2, 3, 4, 8, 12, 16)] == [132, 132, 120, 120, 120, 108, 112]  # assumed shares
    measured = Machine(**{**m.__dict__, "cluster_sms": {2: 130, 4: 124, 8: 112, 16: 96}})
    assert [measured.usable_sms(n) for n in (1, 2, 4, 6, 8, 16, 20)] == [132, 130, 124, 108, 112, 96, 120]


def test_products_are_charged_at_the_rate_of_their_form_and_width() -> None:
    rates = {("rs", 64): 2048.0, ("rs", 128): 4096.0, ("ss", 64): 1024.0, ("ss", 128): 1024.0}
    m = Machine(**{**MACHINE.__dict__, "wgmma": rates})
    assert m.product_clk(64, 128, 64, 16, True) == 256
    assert m.product_clk(64, 128, 64, 16, False) == 1024
    assert m.product_clk(64, 96, 64, 16, True) == pytest.approx(192 * 4096 / 3072)  # between the two
    assert m.product_clk(64, 32, 64, 16, True) == pytest.approx(64 * 4)  # narrower: as long as n = 64 takes


def test_a_multicast_brings_more_than_it_asks_for() -> None:
    text = """
@kernel(target="sm_90a")
def pair(x: In[bf16, 64, 64], y: Out[i32, G]):
    where(G % 2 == 0)
    launch(ctas=G, cluster=2)
    producer = role(thread)
    x_s = smem(bf16, 64, 64, swizzle=128)
    full = mbarrier(arrivals=1)
    with producer:
        expect(full[0])
        tma_load(x_s.rows(32 * cluster_rank, 32), x[32 * cluster_rank:, :], signal=full[0], multicast=cluster)
        wait(full[0])
        store(y[cta], 1)
    sync(cluster)
"""
    op = next(s for s in B.walk(bound_of(text).body) if isinstance(s, B.Op) and s.name == "tma_load")
    work = op_work(op, Machine(**{**MACHINE.__dict__, "smem": 128}), 2, 1)
    assert (work["l2"], work["port"], work["smem"]) == (32 * 128, 2 * 32 * 128, 2 * 32)
