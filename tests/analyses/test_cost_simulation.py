"""The simulation of an SM against times worked out by hand, on a machine with round numbers (`toy_machine`)."""

from __future__ import annotations

import pytest

from cake_ir.diagnostics import CakeError
from tests.analyses.toy_machine import OVERHEAD, TOY, WAIT, clocks, latency, per_trip, run, toy

# ---- pipes ---------------------------------------------------------------------------------------------------------

CHAIN = """
@kernel(target="sm_90a")
def chain(y: Out[f32, G, WARPS, 16], p: f32, trips: i32, *, WARPS: (1, 4, 16) = 1):
    launch(ctas=G)
    math = role(warp, count=WARPS)
    with math as w:
        v = fragment(f32, mma_d[16, 64], p)
        for t in range(trips):
            v = v * p + 1.0
        store(y[cta, w, 0:], row_max(v))
"""


@pytest.mark.parametrize(("warps", "slots"), [(1, 32), (4, 32), (16, 128)])
def test_a_warp_has_one_scheduler_and_more_warps_fill_the_others(warps: int, slots: int) -> None:
    # 32 multiply-adds a warp and trip: one a clock on its scheduler; four warps have one each, beyond that they share
    assert per_trip(CHAIN, {"G": 4}, WARPS=warps) == pytest.approx(slots * OVERHEAD, rel=1e-6)


@pytest.mark.parametrize(("slots", "each"), [(1.0, 3), (2.0, 4)])
def test_an_instruction_may_keep_its_scheduler_longer_than_a_slot(slots: float, each: int) -> None:
    text = CHAIN.replace("v * p + 1.0", "min(v * p + 1.0, v * p)")  # two multiply-adds and a minimum
    assert per_trip(text, {"G": 4}, toy(alu_slots=slots), WARPS=4) == pytest.approx(each * 32 * OVERHEAD, rel=1e-6)


def test_the_narrowest_pipe_limits_warps_that_fill_it() -> None:
    text = CHAIN.replace("v * p + 1.0", "exp2(v)")
    # 32 a warp on the special functions, 16 lanes: 8 clocks each of the warp's quarter
    assert per_trip(text, {"G": 4}, WARPS=4) == pytest.approx(32 * 8, rel=1e-6)
    assert per_trip(text, {"G": 4}, WARPS=16) == pytest.approx(4 * 32 * 8, rel=1e-6)
    assert run(text, {"G": 4, "trips": 1000}, WARPS=16).limited_by == "sfu"


def test_what_one_warp_waits_for_comes_after_what_the_pipes_give_all() -> None:
    text = """
@kernel(target="sm_90a")
def crowd(x: In[f32, 128], y: Out[f32, G, WARPS, 128], p: f32, *, WARPS: (1, 16) = 1):
    launch(ctas=G)
    units = role(warp, count=WARPS)
    with units as w:
        v = fragment(f32, vec(4).cols[1024], p)
        v = v * p + 1.0
        sync(warp)
        u = load(x[0:], vec(4).cols[128])
        store(y[cta, w, :], u + v.cols(0, 128))
"""
    m = toy(latency=latency(load=1000, l1=1000))
    one, many = (clocks(text, {"G": 4}, m, l2="warm", WARPS=n) for n in (1, 16))
    # 32 multiply-adds a warp: the last of the sixteen comes to its load when four schedulers have done four each
    assert many - one == pytest.approx(3 * 32 * OVERHEAD, rel=0.4)


# ---- products ------------------------------------------------------------------------------------------------------

PRODUCT = """
@kernel(target="sm_90a")
def product(a: In[bf16, 192, 64], b: In[bf16, 128, 64], y: Out[f32, G, 64 * WG], p: f32, trips: i32, *,
            WG: (1, 2, 3) = 1, AHEAD: (0, 1) = 0):
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
        low = fragment(f32, wgmma_d[64, 128], p)
        acc = fragment(f32, wgmma_d[64, 128], 0)
        for t in range(trips):
            wgmma(acc, fa, b_s, init=True)
            wgmma_commit()
            wgmma_wait(AHEAD)
            low = low * p + 1.0
        wgmma_wait(0)
        store(y[cta, 64 * wg:], row_max(low))
"""
TENSOR = 2 * 64 * 128 * 64 / 4096
"""256 clocks."""
LOW = 64 * OVERHEAD
"""The multiply-adds of a warp of a warpgroup."""
ISSUE = 4 * OVERHEAD
"""A product of K = 64 is four instructions."""


def test_a_product_that_is_waited_for_at_once_costs_its_latency() -> None:
    assert per_trip(PRODUCT, {"G": 4}) == pytest.approx(ISSUE + TENSOR + TOY.latency["wgmma"] + WAIT + LOW, rel=1e-6)


def test_a_product_that_is_left_open_hides_what_follows() -> None:
    assert per_trip(PRODUCT, {"G": 4}, AHEAD=1) == pytest.approx(TENSOR, rel=1e-6)
    slow = toy(latency=latency(wgmma=100))
    assert per_trip(PRODUCT, {"G": 4}, slow, AHEAD=1) == pytest.approx(TENSOR, rel=1e-6)


@pytest.mark.parametrize("groups", [2, 3])
def test_other_warpgroups_fill_the_tensor_cores(groups: int) -> None:
    assert per_trip(PRODUCT, {"G": 4}, WG=groups) == pytest.approx(groups * TENSOR, rel=1e-6)


PAIR = """
@kernel(target="sm_90a")
def pair(b: In[bf16, 128, 64], y: Out[f32, G, 64], *, WG: (1, 2) = 1, WHO: (0, 1) = 0):
    launch(ctas=G)
    math = role(warpgroup, count=WG)
    b_s = smem(bf16, 128, 64, swizzle=128)
    with math as wg:
        acc = fragment(f32, wgmma_d[64, 128], 0)
        wgmma(acc, b_s.rows(0, 64), b_s)
        wgmma_commit()
        wgmma_wait(0)
        if wg == WHO:
            for i in range(20):
                acc = acc * 0.5 + 1.0
            store(y[cta, 0:], row_max(acc))
"""


def test_products_of_warpgroups_that_begin_together_end_together() -> None:
    alone = clocks(PAIR, {"G": 4})
    later = [clocks(PAIR, {"G": 4}, WG=2, WHO=who) - alone for who in (0, 1)]
    assert max(later) == pytest.approx(TENSOR, abs=1)  # both are done after two products' time
    assert min(later) > 0.7 * TENSOR  # and neither long before


@pytest.mark.parametrize("price", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("free", [0.0, 0.1])
def test_instructions_hold_products_up(price: float, free: float) -> None:
    # three warpgroups: the multiply-adds of two run beside the product of the third, a part of them for nothing
    slots = 3 * 64
    held = max(0.0, price * slots - free * 3 * TENSOR)
    assert per_trip(PRODUCT, {"G": 4}, toy(drag=(price, 0.0, free)), WG=3) == pytest.approx(3 * TENSOR + held, rel=0.01)


MMA = """
@kernel(target="sm_90a")
def mma_chain(x: In[bf16, 16, 16], y: Out[f32, G, WARPS, 16], trips: i32, *, WARPS: (1, 4, 16) = 1):
    launch(ctas=G)
    math = role(warp, count=WARPS)
    x_s = smem(bf16, 16, 16)
    with math as w:
        fa = load(x[0:, :], mma_a[16, 16])
        fb = load(x[0:, :], mma_b[16, 16])
        acc = fragment(f32, mma_d[16, 16], 0)
        for t in range(trips):
            mma(acc, fa, fb)
        store(y[cta, w, 0:], row_max(acc))
"""


def test_a_warps_product_is_waited_for_where_its_sum_goes_on() -> None:
    issue, late = 2 * OVERHEAD, TOY.latency["mma"]
    each = 2 * 16**3 / 2048  # 4 clocks of the SM at half of 4096 a clock; a warp has a quarter of the tensor cores
    assert per_trip(MMA, {"G": 4}) == pytest.approx(issue + max(4 * each, late), rel=1e-3)
    assert per_trip(MMA, {"G": 4}, toy(latency=latency(mma=10))) == pytest.approx(issue + 4 * each, rel=1e-3)
    assert per_trip(MMA, {"G": 4}, WARPS=16) == pytest.approx(16 * each, rel=0.01)


# ---- rings ---------------------------------------------------------------------------------------------------------

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
            tma_load(x_s[n], x[64 * (n % 16):, :], signal=full[n])
        with math as wg:
            wait(full[n])
            wgmma(acc, x_s[n], x_s[n])
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
    with math as wg:
        store(y[cta, 0:], row_max(acc))
"""


PASSED = TOY.latency["passed"]
HELD = ISSUE + 128 + TOY.latency["wgmma"] + WAIT + WAIT
"""What the consumer does with a stage: a product (64 x 64 x 64: 128 clocks), its wait, the arrival."""
ROUND = WAIT + 12 * OVERHEAD + TOY.latency["tma"] + HELD + TOY.latency["hop"]
"""From a stage's release to its next: expect and the copy's twelve instructions, the copy, the consumer, the hop back."""


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
def test_a_trip_of_a_ring_is_the_work_or_the_round_trip_over_the_stages(stages: int) -> None:
    found = per_trip(RING, {"G": 4, "N": 1024}, l2="warm", STAGES=stages)
    assert found == pytest.approx(max(ROUND / stages, WAIT + PASSED + HELD), rel=1e-3)


def test_a_stage_is_waited_for_no_longer_than_it_is_used() -> None:
    slow = toy(latency=latency(tma=2400))
    found = [per_trip(RING, {"G": 4, "N": 1024}, slow, l2="warm", STAGES=s) for s in (1, 2, 4)]
    assert found == pytest.approx([(ROUND + 2000) / s for s in (1, 2, 4)], rel=5e-3)


# ---- barriers ------------------------------------------------------------------------------------------------------

HOP = """
@kernel(target="sm_90a")
def hop(y: Out[i32, G], trips: i32):
    launch(ctas=G)
    right = role(RIGHT)
    left = role(thread)
    ping = mbarrier(arrivals=1)
    pong = mbarrier(arrivals=ARRIVALS)
    for t in range(trips):
        with left:
            arrive(ping[t])
            wait(pong[t])
        with right:
            wait(ping[t])
            arrive(pong[t])
    with left:
        store(y[cta], trips)
"""


@pytest.mark.parametrize(("unit", "arrivals"), [("thread", 1), ("warpgroup", 4)])
def test_a_hand_over_and_back_is_two_hops(unit: str, arrivals: int) -> None:
    text = HOP.replace("RIGHT", unit).replace("ARRIVALS", str(arrivals))
    assert per_trip(text, {"G": 4}) == pytest.approx(2 * (WAIT + TOY.latency["hop"]))


def test_a_hand_over_to_another_cta_of_the_cluster_costs_more() -> None:
    text = """
@kernel(target="sm_90a")
def far(y: Out[i32, G], trips: i32):
    where(G % 2 == 0)
    launch(ctas=G, cluster=2)
    single = role(thread)
    ping = mbarrier(arrivals=1)
    pong = mbarrier(arrivals=1)
    for t in range(trips):
        with single:
            if cluster_rank == 0:
                arrive(ping[t].on(1))
                wait(pong[t])
            else:
                wait(ping[t])
                arrive(pong[t].on(0))
    with single:
        store(y[cta], trips)
    sync(cluster)
"""
    assert per_trip(text, {"G": 4}) == pytest.approx(2 * (WAIT + TOY.latency["far"]))


def test_a_wait_that_passes_costs_its_instructions_and_a_look() -> None:
    text = """
@kernel(target="sm_90a")
def look(y: Out[i32, G], trips: i32):
    launch(ctas=G)
    single = role(thread)
    bar = mbarrier(stages=4, arrivals=1)
    with single:
        for t in range(trips):
            arrive(bar[t])
            wait(bar[t - 3])
        store(y[cta], trips)
"""
    assert per_trip(text, {"G": 4}) == pytest.approx(2 * WAIT + PASSED)


MEET = """
@kernel(target="sm_90a")
def meet(y: Out[i32, G, 4], trips: i32):
    where(G % 2 == 0)
    launch(ctas=G, cluster=2)
    units = role(warp, count=4)
    for t in range(trips):
        sync(SCOPE)
    with units as w:
        store(y[cta, w], trips)
"""


@pytest.mark.parametrize(("scope", "name"), [("cta", "named"), ("cluster", "cluster")])
def test_a_rendezvous_costs_its_latency(scope: str, name: str) -> None:
    assert per_trip(MEET.replace("SCOPE", scope), {"G": 4}) == pytest.approx(WAIT + TOY.latency[name])


def test_a_rendezvous_of_a_role_waits_for_its_last_instance() -> None:
    text = """
@kernel(target="sm_90a")
def late(y: Out[f32, G, 4, 128], p: f32, trips: i32):
    launch(ctas=G)
    units = role(warp, count=4)
    with units as w:
        v = fragment(f32, vec(4).cols[128], p)
        for t in range(trips):
            if w == 3:
                for i in unroll(10):
                    v = v * p + 1.0
            sync(units)
        store(y[cta, w, :], v)
"""
    # ten times four multiply-adds of one warp
    assert per_trip(text, {"G": 4}) == pytest.approx(40 * OVERHEAD + WAIT + TOY.latency["named"])


@pytest.mark.parametrize("groups", [2, 3])
def test_turns_go_round(groups: int) -> None:
    text = f"""
@kernel(target="sm_90a")
def turns(y: Out[i32, G, {groups}], trips: i32):
    launch(ctas=G)
    math = role(warpgroup, count={groups})
    turn = named_barrier({groups})
    with math as wg:
        if wg == {groups - 1}:
            arrive(turn[0])
        for t in range(trips):
            sync(turn[wg])
            arrive(turn[(wg + 1) % {groups}])
        if wg == 0:
            sync(turn[0])
        store(y[cta, wg], trips)
"""
    assert per_trip(text, {"G": 4}) == pytest.approx(groups * (WAIT + TOY.latency["named"]))


# ---- what cannot be run --------------------------------------------------------------------------------------------


def test_roles_that_wait_for_ever_are_declined_in_words() -> None:
    text = """
@kernel(target="sm_90a")
def stuck(y: Out[i32, G]):
    launch(ctas=G)
    left = role(thread)
    right = role(thread)
    one = mbarrier(arrivals=1)
    two = mbarrier(arrivals=1)
    with left:
        wait(one[0])
        arrive(two[0])
        store(y[cta], 1)
    with right:
        wait(two[0])
        arrive(one[0])
"""
    with pytest.raises(
        CakeError, match=r"'stuck' cannot be estimated at this shape: some of its roles wait for ever"
    ) as e:
        run(text, {"G": 4})
    assert e.value.diagnostic.rule == "cost/too-long"


@pytest.mark.parametrize(("depth", "trips"), [(7, 6), (8, 1000)])
def test_loops_in_loops_without_end_are_declined_in_words(depth: int, trips: int) -> None:
    deep = "".join("    " * (2 + i) + f"for t{i} in range({trips}):\n" for i in range(depth))
    text = f"""
@kernel(target="sm_90a")
def deep(y: Out[f32, G, 128], p: f32):
    launch(ctas=G)
    unit = role(warp)
    with unit:
        v = fragment(f32, vec(4).cols[128], p)
{deep}{"    " * (2 + depth)}v = v * p
        store(y[cta, :], v)
"""
    with pytest.raises(CakeError, match="'deep' cannot be estimated at this shape: its loops are too long") as e:
        run(text, {"G": 4})
    assert e.value.diagnostic.rule == "cost/too-long"
