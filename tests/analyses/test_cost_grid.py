"""From CTAs to a grid, on a machine with round numbers: waves, residency, starts, persistent clusters, what is extrapolated."""

from __future__ import annotations

import math
from typing import Any

import pytest

from analyses import estimate
from analyses.cost import reading
from analyses.cost.machine import Machine
from analyses.cost.sm import Outcome
from cake_ir import bound as B
from cake_ir import targets
from cake_ir.diagnostics import CakeError
from corpus import kernels
from tests.analyses.test_cost_simulation import RING
from tests.analyses.toy_machine import OVERHEAD, TOY, bound_of, clocks, latency, run, toy

WORK = """
@kernel(target="sm_90a")
def work(y: Out[f32, G, WARPS, 128], p: f32, trips: i32, *, WARPS: (1, 4, 16) = 4, ROOM: (1, 50, 100, 200) = 200):
    launch(ctas=G)
    units = role(warp, count=WARPS)
    held = smem(f32, 256 * ROOM)
    with units as w:
        v = fragment(f32, vec(4).cols[128], p)
        for t in range(trips):
            v = v * p + 1.0
        store(y[cta, w, :], v)
"""
ONE = 1000 * 4 * OVERHEAD
"""Clocks of a thousand trips of a CTA that is alone: four multiply-adds a thread."""


def work(g: int, machine: Machine = TOY, **bindings: Any) -> float:
    return clocks(WORK, {"G": g, "trips": 1000}, machine, **bindings)


@pytest.mark.parametrize("turnaround", [0, 400])
def test_waves_are_whole_and_the_next_cta_starts_when_one_has_ended(turnaround: int) -> None:
    m = toy(latency=latency(turnaround=turnaround))
    found = {g: work(g, m) for g in (1, 4, 5, 8, 9)}  # 200 KB of shared memory: a CTA an SM, four SMs
    assert found[1] == pytest.approx(ONE, abs=20) and found[4] == pytest.approx(ONE, abs=20)
    assert found[5] == pytest.approx(2 * ONE + turnaround, abs=30)  # a wave of one CTA takes as long as a full one
    assert found[8] == pytest.approx(found[5])
    assert found[9] == pytest.approx(3 * ONE + 2 * turnaround, abs=40)


def test_a_launch_is_added_and_waves_are_counted() -> None:
    e = run(WORK, {"G": 6, "trips": 1000})
    assert (e.ctas, e.ctas_per_sm, e.waves, e.launch_us) == (6, 1, 1.5, 1.0)
    assert e.time_us == pytest.approx(1.0 + 2 * ONE / 1000, rel=0.01)
    after = run(WORK.replace("    with units", "    griddep_wait()\n    with units"), {"G": 6, "trips": 1000})
    assert after.launch_us == 0.5  # begun while the kernel before still runs


@pytest.mark.parametrize(("room", "fit"), [(200, 1), (100, 2), (50, 4)])
def test_ctas_of_an_sm_share_its_pipes(room: int, fit: int) -> None:
    # four warps fill the four schedulers: two CTAs beside each other take as long as one after the other
    assert run(WORK, {"G": 8, "trips": 1}, ROOM=room).ctas_per_sm == fit
    assert work(8, ROOM=room) == pytest.approx(2 * ONE, rel=0.01)
    # one warp leaves three schedulers to others
    assert work(8, WARPS=1, ROOM=room) == pytest.approx(ONE if fit > 1 else 2 * ONE, rel=0.01)


def test_ctas_of_an_sm_wait_for_their_loads_together() -> None:
    text = """
@kernel(target="sm_90a")
def wait(x: In[f32, G, 128], y: Out[f32, G, 128], *, ROOM: (100, 200) = 200):
    launch(ctas=G)
    unit = role(warp)
    held = smem(f32, 256 * ROOM)
    with unit:
        store(y[cta, :], load(x[cta, :], vec(4).cols[128]) * 2.0)
"""
    m = toy(latency=latency(load=5000))
    together, alone = (clocks(text, {"G": 8}, m, l2="warm", ROOM=room) for room in (100, 200))
    assert together == pytest.approx(5000, rel=0.02) and alone == pytest.approx(10000, rel=0.02)


@pytest.mark.parametrize("ctas", [1, 2, 10, 1000])
def test_ctas_start_at_a_rate(ctas: int) -> None:
    m = toy(latency=latency(cta_start=150))
    found = clocks(WORK, {"G": 4 * ctas, "trips": 1}, m, ROOM=1)
    assert found == pytest.approx(150 * (ctas - 1), abs=20)


TILES = """
@kernel(target="sm_90a")
def tiles(y: Out[f32, T, 2, 128], p: f32, *, ROOM: (1, 200) = 200):
    tiles = tile_space(T)
    launch(ctas=2 * min(tiles.count, device.sms // 2), cluster=2)
    units = role(warp, count=4)
    held = smem(f32, 256 * ROOM)
    for tile in tiles.persistent():
        with units as w:
            v = fragment(f32, vec(4).cols[128], p)
            for t in range(1000):
                v = v * p + 1.0
            if w == 0:
                store(y[tile, cluster_rank, :], v)
"""


@pytest.mark.parametrize(("usable", "tiles", "turns"), [
    (8, 4, 1), (8, 5, 2), (8, 8, 2), (8, 9, 3),  # four clusters run at once
    (6, 4, 2), (6, 5, 2), (6, 8, 4), (6, 9, 4),  # three do: the fourth, with its tiles, comes when one with the fewest has ended
    (4, 4, 2), (4, 5, 3), (4, 8, 4), (2, 4, 4), (2, 8, 8),
])  # fmt: skip
def test_persistent_clusters_that_do_not_fit_come_later(usable: int, tiles: int, turns: int) -> None:
    m = toy(sms=8, cluster_sms={2: usable}, latency=latency(cluster=0, named=0))
    assert clocks(TILES, {"T": tiles}, m) == pytest.approx(turns * ONE, rel=0.01)


def test_clusters_leave_sms_idle() -> None:
    h200 = toy(sms=132)
    assert [h200.usable_sms(n) for n in (1, 2, 3, 4, 8, 12, 16)] == [
        132,
        132,
        117,
        120,
        120,
        84,
        112,
    ]  # assumed shares
    measured = toy(sms=132, cluster_sms={2: 130, 4: 124, 8: 112, 16: 96})
    assert [measured.usable_sms(n) for n in (1, 2, 4, 6, 8, 16)] == [132, 130, 124, 108, 112, 96]
    assert TOY.usable_sms(4) == 4  # one runs on any machine


def test_the_clock_falls_with_the_load_of_the_tensor_cores() -> None:
    m = toy(clock_some_hz=0.9e9, clock_tensor_hz=0.5e9)
    assert m.clock_under(0.0) == 1e9
    assert m.clock_under(0.01) == m.clock_under(0.3) == 0.9e9
    assert 0.5e9 < m.clock_under(0.8) < 0.9e9 and m.clock_under(1.0) == 0.5e9
    assert run(WORK, {"G": 4, "trips": 1000}, m).clock_mhz == 1000


# ---- what is extrapolated --------------------------------------------------------------------------------------------


def as_a_whole(bound: B.BoundKernel, shape: dict[str, int], m: Machine, monkeypatch: pytest.MonkeyPatch) -> float:
    """The estimate, which some simulations were made for, over one with every loop and every CTA of an SM run."""
    runs: list[Outcome] = []

    def counted(*what: Any, **how: Any) -> Outcome:
        runs.append(made(*what, **how))
        return runs[-1]

    made = reading.run
    with monkeypatch.context() as patch:
        patch.setattr(reading, "run", counted)
        now = run(bound, shape, m)
        assert len(runs) > 1
        runs.clear()
        patch.setattr(reading, "WHOLE", 10**6)
        whole = run(bound, shape, m)
        assert len(runs) == 1
    assert now.bounds_us == pytest.approx(whole.bounds_us, rel=0.01)
    assert now.tensor_flop == pytest.approx(whole.tensor_flop, rel=1e-9)
    return now.time_us / whole.time_us


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_long_loop_over_a_ring_takes_what_all_of_its_trips_take(stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert as_a_whole(
        bound_of(RING, STAGES=stages), {"G": 4, "N": 1024, "trips": 1001}, TOY, monkeypatch
    ) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("stay", [0, 1])
def test_many_ctas_take_what_all_of_them_take(stay: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = WORK.replace("v = v * p + 1.0", "sync(units)\n            v = v * p + 1.0")
    m = toy(latency=latency(turnaround=300, cta_start=50))
    found = as_a_whole(bound_of(text, ROOM=50 if stay else 200), {"G": 1203, "trips": 5}, m, monkeypatch)
    assert found == pytest.approx(1, abs=0.01)


SHEET = Machine.of(targets.get("sm_90a"), None)


@pytest.mark.parametrize(("name", "shape"), [
    ("gemm_sm90", {"M": 4096, "N": 14336, "K": 4096}),  # an extent drives the inner loop, the CTA's index the outer one
    ("kmeans_assign", {"B": 1, "N": 1_000_000, "C": 1024, "D": 128}),
    ("gemm_sm80", {"M": 4096, "N": 4096, "K": 4096}),  # a tile a CTA
    ("softmax", {"M": 65536, "N": 1024}),  # hundreds of CTAs an SM, several at once
    ("rmsnorm_ring", {"M": 65536, "D": 2048}),
])  # fmt: skip
def test_long_kernels_take_what_all_of_them_takes(
    name: str, shape: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = next(k for k in kernels() if k.name == name)
    bound = bound_of(kernel.text(), "sm_90a", **kernel.bindings)
    assert as_a_whole(bound, shape, SHEET, monkeypatch) == pytest.approx(1, abs=0.01)


EMPTY = """
@kernel(target="sm_90a")
def idle(y: Out[i32, G]):
    launch(ctas=%s)
    unit = role(thread)
    with unit:
        %s
"""


@pytest.mark.parametrize(("ctas", "does", "g", "least_us"), [
    ("G", "for i in range(0):\n            store(y[i], 1)", 2**31 - 1, 1e5),  # two milliards of CTAs that do nothing
    ("G - G", "store(y[cta], 1)", 2**31 - 1, 1.0),  # no CTA, and more bytes than L2 keeps
])  # fmt: skip
def test_grids_that_do_nothing_are_a_launch_and_the_starts_of_their_ctas(
    ctas: str, does: str, g: int, least_us: float
) -> None:
    found = estimate(bound_of(EMPTY % (ctas, does)), {"G": g}, explain=False)
    assert math.isfinite(found.time_us) and found.time_us >= least_us


def test_a_launch_that_divides_by_zero_is_refused() -> None:
    with pytest.raises(CakeError, match="divides by zero") as refused:
        estimate(bound_of(EMPTY % ("100 // (G - 4)", "store(y[cta], 1)")), {"G": 4})
    assert refused.value.diagnostic.rule == "language/shape"


def test_an_estimate_is_the_same_again() -> None:
    kernel = next(k for k in kernels() if k.name == "kmeans_assign")
    shape = {"B": 1, "N": 100_000, "C": 1000, "D": 128}
    one, two = (run(bound_of(kernel.text()), shape, SHEET, explain=True) for _ in range(2))
    assert one == two
