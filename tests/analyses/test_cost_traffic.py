"""Bytes against the clock: L2 and its sharers, device memory, L1, stores; by hand, on a machine with round numbers (`toy_machine`)."""

from __future__ import annotations

from typing import Any

import pytest

from analyses.cost.estimate import L2
from analyses.cost.sharing import _gpcs
from analyses.cost.simulate import SETTLE
from tests.analyses.toy_machine import OVERHEAD, WAIT, bound_of, clocks, latency, per_trip, run, toy

COPIES = """
@kernel(target="sm_90a")
def copies(x: In[bf16, N, 64], y: Out[i32, G], n: i32, *, OWN: (0, 1) = 1):
    launch(ctas=G)
    producer = role(thread)
    x_s = smem(bf16, 64, 64, swizzle=128)
    full = mbarrier(arrivals=1)
    with producer:
        for i in range(n):
            expect(full[i])
            tma_load(x_s, x[64 * (i + OWN * n * cta):, :], signal=full[i])
        for i in range(n):
            wait(full[i])
        store(y[cta], 1)
"""
TILE = 64 * 64 * 2
"""8192 bytes a copy."""
ISSUED = WAIT + 12 * OVERHEAD
"""Clocks of the instructions of a copy and its expect."""
STARTS: tuple[L2, ...] = ("cold", "warm")


def next_copy(g: int, own: int = 1, start: L2 = "warm", **rates: Any) -> float:
    """Clocks of one more copy a CTA. Tensors are as large as what is read of them."""
    a, b = (
        clocks(COPIES, {"G": g, "N": 64 * i * (g if own else 1), "n": i}, toy(**rates), l2=start, OWN=own)
        for i in (8, 9)
    )
    return b - a


@pytest.mark.parametrize("sms", [1, 2, 4])
def test_copies_queue_at_the_share_of_l2_that_the_busy_sms_have(sms: int) -> None:
    assert next_copy(sms, l2=4 * 64e9) == pytest.approx(TILE / 64 * sms / 4)  # 64 bytes a clock for each of four


def test_an_sm_takes_in_no_more_than_its_port() -> None:
    assert next_copy(1, l2=4 * 64e9, port=100, port_alone=128) == pytest.approx(TILE / 128)
    assert next_copy(4, l2=4 * 640e9, port=100, port_alone=128) == pytest.approx(TILE / 100)


def test_the_first_copy_also_takes_its_latency() -> None:
    found = clocks(COPIES, {"G": 4, "N": 256, "n": 1}, toy(l2=4 * 64e9), l2="warm")
    assert found == pytest.approx(ISSUED + TILE / 64 + 400, abs=10)  # and a store of one number


def test_a_line_that_several_sms_read_costs_less_than_one_of_their_own_and_more_than_its_part() -> None:
    own, shared = next_copy(4, l2=4 * 64e9), next_copy(4, own=0, l2=4 * 64e9)
    assert own / 4 <= shared <= 0.75 * own
    # what is counted of L2 is each line once
    e = run(COPIES, {"G": 4, "N": 64 * 8, "n": 8}, l2="warm", OWN=0)
    assert e.l2_bytes == pytest.approx(8 * TILE, abs=4 * 32)  # and the marks that are stored
    assert run(COPIES, {"G": 4, "N": 4 * 64 * 8, "n": 8}, l2="warm").l2_bytes == pytest.approx(4 * 8 * TILE, abs=4 * 32)


def test_a_multicast_brings_more_than_it_asks_for() -> None:
    text = """
@kernel(target="sm_90a")
def pair(x: In[bf16, N, 64], y: Out[i32, G], n: i32):
    where(G % 2 == 0)
    launch(ctas=G, cluster=2)
    producer = role(thread)
    x_s = smem(bf16, 64, 64, swizzle=128)
    full = mbarrier(arrivals=1)
    with producer:
        for i in range(n):
            expect(full[i])
            row = 64 * (i + n * cluster_id) + 32 * cluster_rank
            tma_load(x_s.rows(32 * cluster_rank, 32), x[row:, :], signal=full[i], multicast=cluster)
        for i in range(n):
            wait(full[i])
        store(y[cta], 1)
    sync(cluster)
"""

    def more(**rates: float) -> float:
        a, b = (clocks(text, {"G": 4, "N": 128 * i, "n": i}, toy(**rates), l2="warm") for i in (8, 9))
        return b - a

    assert more(l2=4 * 64e9) == pytest.approx(TILE / 2 / 64, rel=0.01)  # half the tile is asked for
    assert more(l2=4 * 640e9, port=64, port_alone=64) == pytest.approx(TILE / 64, rel=0.01)  # all of it comes in


# ---- device memory -------------------------------------------------------------------------------------------------

SLOW: dict[str, Any] = {"hbm_read": 4 * 8e9, "hbm_write": 4 * 8e9}
"""Device memory: 8 bytes a clock for each of four SMs."""


def test_cold_inputs_come_from_device_memory_and_warm_ones_do_not() -> None:
    assert next_copy(4, start="cold", **SLOW) == pytest.approx(TILE / 8)
    assert next_copy(4, **SLOW) == pytest.approx(ISSUED)
    cold, warm = (run(COPIES, {"G": 4, "N": 4 * 64 * 8, "n": 8}, toy(**SLOW), l2=l2) for l2 in STARTS)
    assert (cold.hbm_bytes, warm.hbm_bytes) == (4 * 8 * TILE, 0)
    assert cold.bound_by == cold.limited_by == cold.bound_class == "hbm"
    assert cold.bounds_us["hbm"] == pytest.approx(4 * 8 * TILE / 32e3)  # 32 bytes a clock
    assert cold.floor_us <= cold.bounds_us["hbm"] < cold.time_us


@pytest.mark.parametrize("sms", [1, 4])
def test_a_miss_takes_longer_than_a_hit_even_alone_and_for_all_who_share_it(sms: int) -> None:
    cold, warm = (clocks(COPIES, {"G": sms, "N": 64, "n": 1}, l2=l2, OWN=0) for l2 in STARTS)
    assert cold - warm == pytest.approx(700 - 400, abs=1)


def test_what_lies_outside_a_tensor_is_not_moved() -> None:
    whole, half = (clocks(COPIES, {"G": 1, "N": n, "n": 4}, toy(l2=64e9), l2="warm") for n in (256, 224))
    assert whole - half == pytest.approx(TILE / 2 / 64)


def test_a_footprint_beyond_l2_misses_although_it_is_warm() -> None:
    read = 4 * 8 * TILE
    found = [
        run(COPIES, {"G": 4, "N": 4 * 64 * 8, "n": 8}, toy(**SLOW, l2_keeps=keeps), l2="warm")
        for keeps in ((10 * read, 20 * read), (read // 2, 4 * read), (1, 2))
    ]
    none, some, all_ = (e.hbm_bytes for e in found)
    assert none == 0 < 0.05 * read < some < 0.95 * read < read <= all_ <= read + 16
    assert found[0].time_us < found[1].time_us < found[2].time_us


AGAIN = """
@kernel(target="sm_90a")
def again(x: In[f32, R, 1024], y: Out[f32, G, 1024], n: i32):
    launch(ctas=G)
    unit = role(warp)
    with unit:
        v = fragment(f32, vec(4).cols[1024], 0)
        for i in range(n):
            v = v + load(x[cta, :], vec(4).cols[1024])
        store(y[cta, :], v)
"""


def test_bytes_of_device_memory_are_counted_once_however_often_they_are_read() -> None:
    few, many = (run(AGAIN, {"R": 4, "G": 4, "n": n}, toy(**SLOW)) for n in (1, 100))
    assert few.hbm_bytes == many.hbm_bytes == 4 * 4096


# ---- L1 ------------------------------------------------------------------------------------------------------------

TWICE = """
@kernel(target="sm_90a")
def twice(x: In[f32, M, D], y: Out[f32, M, D]):
    launch(ctas=M)
    unit = role(warp)
    with unit:
        low = fragment(f32, vec(4).cols[128], 0.0)
        for c in range(0, D, 128):
            low = low + load(x[cta, c:], vec(4).cols[128])
        scale = row_max(low)
        for c in range(0, D, 128):
            store(y[cta, c:], load(x[cta, c:], vec(4).cols[128]) * scale)
"""


@pytest.mark.parametrize(("d", "far", "near"), [(1024, 8, 8), (1 << 17, 2 * 1024, 0)])
def test_a_second_pass_over_a_row_that_l1_holds_finds_it_there(d: int, far: int, near: int) -> None:
    # a row of 4 KiB, one of 512 KiB: every load is waited for
    bound = bound_of(TWICE)
    base, slow, slow_l1 = (
        clocks(bound, {"M": 4, "D": d}, toy(latency=latency(**kw)), l2="warm")
        for kw in ({}, {"load": 1100.0}, {"l1": 90.0})
    )
    assert slow - base == pytest.approx(1000 * far, rel=0.01)
    assert slow_l1 - base == pytest.approx(50 * near, rel=0.01, abs=1)


def test_a_load_is_waited_for_where_its_value_is_used() -> None:
    text = """
@kernel(target="sm_90a")
def later(x: In[f32, G, 128], y: Out[f32, G, 128], p: f32, *, BEFORE: (0, 1) = 0):
    launch(ctas=G)
    unit = role(warp)
    with unit:
        v = load(x[cta, :], vec(4).cols[128])
        w = fragment(f32, vec(4).cols[128], p)
        if BEFORE == 1:
            w = w + v
        for i in unroll(100):
            w = w * p + 1.0
        store(y[cta, :], w + v)
"""
    work = 400 * OVERHEAD
    early, late = (clocks(text, {"G": 4}, toy(latency=latency(load=1000)), l2="warm", BEFORE=b) for b in (1, 0))
    assert early == pytest.approx(1000 + work, abs=40)
    assert late == pytest.approx(max(1000, work), abs=40)


# ---- stores --------------------------------------------------------------------------------------------------------

STORES = """
@kernel(target="sm_90a")
def stores(y: Out[f32, G, N, 128], p: f32, n: i32, busy: i32):
    launch(ctas=G)
    unit = role(warp)
    with unit:
        v = fragment(f32, vec(4).cols[128], p)
        for i in range(n):
            store(y[cta, i, :], v)
        for i in range(busy):
            v = v * p + 1.0
        store(y[cta, n, :], v)
"""
OUT = 4 * 4e9
"""4 bytes a clock for each of four SMs: a store of 512 bytes takes 128."""


def test_a_launch_ends_when_its_stores_have() -> None:
    found = [clocks(STORES, {"G": 4, "N": 64, "n": n, "busy": 0}, toy(l2_write=OUT)) for n in (7, 15)]
    assert found == pytest.approx([8 * 128, 16 * 128], abs=10)


def test_stores_drain_under_what_follows_until_too_many_are_on_their_way() -> None:
    work = 1000 * 4 * OVERHEAD
    few, many = (clocks(STORES, {"G": 4, "N": 200, "n": n, "busy": 1000}, toy(l2_write=OUT)) for n in (8, 64))
    assert few == pytest.approx(work + 128, rel=0.02)  # the last store
    # 64 take 8192 clocks, of which no more than the backlog remains when the work begins
    assert work + 128 + 4000 < many < work + 64 * 128


def test_a_wait_for_bulk_stores_is_for_the_source_or_for_all_of_it() -> None:
    text = """
@kernel(target="sm_90a")
def bulk(y: Out[bf16, G, 64, 64], trips: i32):
    launch(ctas=G)
    unit = role(thread)
    held = smem(bf16, 64, 64, swizzle=128)
    with unit:
        for t in range(trips):
            tma_store(y[cta, 0:, :], held)
            bulk_commit()
            AFTER
"""
    written, read, open_ = (
        per_trip(text.replace("AFTER", after), {"G": 4}, toy(l2_write=OUT), l2="warm")
        for after in ("bulk_wait(0)", "bulk_wait_read(0)", "bulk_wait_read(1)")
    )
    assert written == pytest.approx(12 * OVERHEAD + TILE / 4 + 400)
    assert open_ == pytest.approx(TILE / 4, abs=20)  # the one before is read while this one is
    assert open_ + 100 < read < written - 100


@pytest.mark.parametrize(("read", "write", "bound"), [(64, 64, 2 / 64), (64, 16, 1 / 16)])
def test_reads_and_writes_pass_l2_at_once(read: int, write: int, bound: float) -> None:
    e = run(TWICE, {"M": 4, "D": 1 << 17}, toy(l2=4 * read * 1e9, l2_write=4 * write * 1e9), l2="warm")
    row = 4 << 17  # read twice, far beyond L1, and written once
    assert e.l2_bytes == 4 * 3 * row
    assert e.bounds_us["l2"] == pytest.approx(row * bound / 1000) and e.time_us > e.bounds_us["l2"]


def test_what_sms_of_one_gpc_share_crosses_once_and_to_every_gpc_again() -> None:
    rates = {"l2": 4 * 32e9, "port": 64}
    alone, shared = next_copy(4, own=1, **rates), next_copy(4, own=0, **rates)
    assert next_copy(4, own=0, gpcs=4, **rates) == pytest.approx(alone)  # an SM each
    assert shared < next_copy(4, own=0, gpcs=2, **rates) < alone


def test_clusters_take_turns_among_gpcs_and_other_ctas_fill_one_after_the_other() -> None:
    assert _gpcs(range(8), 1, 8, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert _gpcs(range(8), 2, 8, 2) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert _gpcs(range(6), 1, 4, 2) == [[0, 1, 4, 5], [2, 3]], "the second CTAs of the SMs"


@pytest.mark.parametrize("server", ["l2", "hbm"])
def test_reads_wait_longer_the_busier_memory_is(server: str) -> None:
    shape, start = {"G": 4, "N": 64 * 4, "n": 1}, "warm" if server == "l2" else "cold"
    rates = {"l2": 4 * 32e9, "port": 32.0} if server == "l2" else {"hbm_read": 4 * 32e9, "l2": 4 * 1e12}
    plain, crowded = (
        clocks(COPIES, shape, toy(latency=latency(**{f"crowd_{server}": c}), **rates), l2=start) for c in (0.0, 100.0)
    )
    busy = TILE / 32  # clocks of the only copy, from when its instructions are issued
    used = busy / (ISSUED + busy + SETTLE)
    assert crowded - plain == pytest.approx(100 * used / (1 - used), rel=0.05)


PIECES = """
@kernel(target="sm_90a")
def pieces(y: Out[f32, G, N, D], p: f32, trips: i32):
    launch(ctas=G)
    unit = role(warp)
    with unit:
        v = fragment(f32, vec(4).cols[512], p)
        for i in range(trips):
            store(y[cta, i, :], v * p)
"""


def test_of_a_store_only_what_exists_is_executed() -> None:
    whole, half, quarter = (per_trip(PIECES, {"G": 4, "N": 128, "D": d}) for d in (512, 256, 128))
    assert whole - half == pytest.approx(2 * (half - quarter)) and half - quarter > 4  # as many products a lane are left out
