"""CTAs that do different things, loads ahead of their use, releases to the cluster, divisions: against times worked out by hand on the
toy machine."""

from __future__ import annotations

import pytest

from analyses.cost.code import DIVISION_CLK
from analyses.registers import peak
from tests.analyses.toy_machine import OVERHEAD, bound_of, clocks, latency, per_trip, run, toy

UNEVEN = """
@kernel(target="sm_90a")
def uneven(y: Out[f32, G, 128], p: f32, R: i32, *, SPLIT: (1, 4) = 4):
    launch(ctas=G)
    units = role(warp)
    held = smem(f32, 256 * 200)
    part = cta % SPLIT
    with units as w:
        v = fragment(f32, vec(4).cols[128], p)
        for t in range(part * R, R, SPLIT * R):
            for k in range(1000):
                v = v * p + 1.0
        store(y[cta, :], v)
"""
"""One CTA of SPLIT finds work: a thousand times four multiply-adds; 200 KB of shared memory, a CTA an SM."""
ONE = 1000 * 4 * OVERHEAD


def test_ctas_without_work_take_none() -> None:
    shape = {"G": 4 * 32, "R": 1}  # 32 rounds on four SMs
    assert clocks(UNEVEN, shape, SPLIT=1) == pytest.approx(32 * ONE, rel=0.02)
    assert clocks(UNEVEN, shape, SPLIT=4) == pytest.approx(32 * ONE / 4, rel=0.3)  # a sample says how many have work


def test_one_round_takes_what_its_first_cta_takes() -> None:
    assert clocks(UNEVEN, {"G": 4, "R": 1}, SPLIT=4) == pytest.approx(ONE, rel=0.02)


def test_bandwidth_is_shared_by_ctas_not_by_sms() -> None:
    text = """
@kernel(target="sm_90a")
def copy(x: In[f32, G, 4096], y: Out[f32, G]):
    launch(ctas=G)
    units = role(warp)
    with units as w:
        store(y[cta], row_max(load(x[cta, :], vec(4).cols[4096])))
"""
    m = toy(hbm_read=1e12)  # 1000 bytes a clock
    four, five = (clocks(text, {"G": g}, m) for g in (4, 5))
    # the fifth CTA shares an SM with the first and has as much of the bandwidth as the others: a quarter more bytes
    assert five - four == pytest.approx(4096 * 4 / 1000, abs=10)


FIRST, SECOND = "v = load(x[i, :], vec(4).cols[128])", "u = load(x[i + 1, :], vec(4).cols[128])"


@pytest.mark.parametrize(("body", "waits"), [
    ((FIRST, SECOND), 1), ((FIRST, "v = v * p", SECOND), 1), ((FIRST, "v = v * p", "sync(warp)", SECOND), 2),
])  # fmt: skip
def test_loads_that_nothing_holds_back_wait_together(body: tuple[str, ...], waits: int) -> None:
    lines = "\n            ".join(body)
    text = f"""
@kernel(target="sm_90a")
def ahead(x: In[f32, R, 128], y: Out[f32, R, 128], p: f32):
    launch(ctas=1)
    units = role(warp)
    with units as w:
        for i in range(0, R, 2):
            {lines}
            store(y[i, :], v + u)
"""
    m = toy(latency=latency(load=1000, load_hbm=1000, l1=1000))
    assert clocks(text, {"R": 2}, m, l2="warm") == pytest.approx(waits * 1000, abs=80)


def test_no_load_passes_a_store_to_what_it_reads() -> None:
    text = """
@kernel(target="sm_90a")
def order(x: In[f32, 128], y: InOut[f32, 2, 128]):
    launch(ctas=1)
    units = role(warp)
    with units as w:
        v = load(x[0:], vec(4).cols[128])
        store(y[0, :], v)
        store(y[1, :], load(y[0, :], vec(4).cols[128]))
"""
    m = toy(latency=latency(load=1000, load_hbm=1000, l1=1000))
    assert clocks(text, {}, m, l2="warm") == pytest.approx(2000, abs=80)


RELEASE = """
@kernel(target="sm_90a")
def released(x: In[bf16, R, 64], y: Out[f32, G, 32], *, COPY: (0, 1) = 1):
    where(G % 2 == 0, R >= 128)
    launch(ctas=G, cluster=2)
    producer = role(thread)
    reader = role(warp)
    x_s = smem(bf16, 128, 64, stages=1, swizzle=128)
    t_s = smem(f32, 1, 32)
    full = mbarrier(stages=1, arrivals=1)
    free = mbarrier(arrivals=1)
    with producer:
        if COPY == 1:
            expect(full[0])
            tma_load(x_s[0], x[0:, :], signal=full[0])
    with reader as w:
        store(t_s[0], fragment(f32, vec(1).cols[32], 0))
        with elected():
            arrive(free[0].on(cluster_rank))
        if COPY == 1:
            wait(full[0])
    sync(cluster)
    with reader as w:
        store(t_s[0].on(1 - cluster_rank), fragment(f32, vec(1).cols[32], 1))
    sync(cluster)
    with reader as w:
        store(y[cta, :], load(t_s[0], vec(1).cols[32]))
"""


def released(release: float, copy: int) -> float:
    m = toy(latency=latency(release=release, tma=2000, tma_hbm=2000, cluster=0))
    return clocks(RELEASE, {"G": 2, "R": 128}, m, l2="warm", COPY=copy)


def test_a_release_to_the_cluster_waits_for_copies_on_their_way() -> None:
    assert released(100, 0) - released(0, 0) == pytest.approx(100)
    assert released(100, 1) == pytest.approx(2000, abs=90) and released(100, 1) - released(0, 1) < 30  # the copy takes longer
    m = toy(latency=latency(release=100, tma=2000, tma_hbm=2000, cluster=0))
    e = run(RELEASE, {"G": 2, "R": 128}, m, l2="warm", explain=True)
    assert [s.what for s in e.path if s.us > 1.0] == ["arrive"]  # where the time goes, not the wait for the copy


def test_accumulators_reach_another_cta_in_pieces() -> None:
    text = """
@kernel(target="sm_90a")
def send(y: Out[f32, G, 64], trips: i32):
    where(G % 2 == 0)
    launch(ctas=G, cluster=2)
    math = role(warpgroup)
    t_s = smem(f32, 64, 32, swizzle=128)
    with math as wg:
        store(t_s, fragment(f32, wgmma_d[64, 32], 0))
    sync(cluster)
    with math as wg:
        v = fragment(f32, wgmma_d[64, 32], 1)
        for t in range(trips):
            store(t_s.on(1 - cluster_rank), v)
    sync(cluster)
    with math as wg:
        store(y[cta, :], row_max(load(t_s, wgmma_d[64, 32])))
"""
    few, many = (clocks(text, {"G": 2, "trips": n}, toy(far=64.0, far_pieces=8.0)) for n in (10, 20))
    assert many - few == pytest.approx(10 * 64 * 32 * 4 / 8, rel=0.01)


@pytest.mark.parametrize(("value", "divisions"), [("i // 8", 0), ("i // D", 1), ("i // D + i % D", 1), ("i // D + (i + 1) // D", 2)])
def test_a_division_by_what_is_known_at_run_time_takes_its_chain(value: str, divisions: int) -> None:
    text = f"""
@kernel(target="sm_90a")
def divide(y: Out[i32, G], D: i32, trips: i32):
    launch(ctas=G)
    single = role(thread)
    n = 0
    for i in range(trips):
        n = {value}
    with single:
        store(y[cta], n)
"""
    few, many = (clocks(text, {"G": 4, "D": 3, "trips": n}) for n in (10, 20))
    assert many - few == pytest.approx(10 * DIVISION_CLK * divisions, abs=1)


def test_a_value_is_computed_once_and_a_product_that_is_summed_is_part_of_the_sum() -> None:
    text = """
@kernel(target="sm_90a")
def square(y: Out[f32, G], p: f32, trips: i32):
    launch(ctas=G)
    units = role(warp)
    with units as w:
        v = fragment(bf16, vec(8).cols[256], p)
        total = 0.0
        for t in range(trips):
            total = total + row_sum({})
        store(y[cta], total)
"""
    one, two, three, added = (
        per_trip(text.format(x.format("cast(v, f32)")), {"G": 4}) / OVERHEAD
        for x in ("{0}", "{0} * {0}", "{0} * {0} * {0}", "{0} + {0}")
    )
    assert two == pytest.approx(one)
    assert three == pytest.approx(one + 8) and added == pytest.approx(one + 8)  # eight elements a lane


def test_registers_of_16_bit_elements_are_told_apart() -> None:
    text = """
@kernel(target="sm_90a")
def held(x: In[bf16, 1024], y: Out[f32, 1]):
    launch(ctas=1)
    units = role(warp)
    with units as w:
        v = load(x[0:], vec(8).cols[1024])
        store(y[0], row_sum(cast(v, f32)))
"""
    bound = bound_of(text)
    found = peak(bound, bound.roles[0])
    assert (found.registers, found.packed) == (16, 16)
