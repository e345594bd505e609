"""The critical path: what it adds up to, and whom it names, by hand on a machine with round numbers (`toy_machine`)."""

from __future__ import annotations

from collections import defaultdict

import pytest

from analyses.cost.path import Step
from tests.analyses.test_cost_grid import WORK
from tests.analyses.test_cost_simulation import PRODUCT, RING
from tests.analyses.test_cost_traffic import STORES
from tests.analyses.toy_machine import OVERHEAD, TOY, WAIT, run, toy

TRIPS = {"G": 4, "N": 1024, "trips": 40}


def path(text: str, shape: dict[str, int], **how: object) -> tuple[Step, ...]:
    """The path of a text, which adds up to its time."""
    e = run(text, shape, l2="warm", explain=True, **how)  # type: ignore[arg-type]
    assert sum(s.us for s in e.path) == pytest.approx(e.time_us, rel=0.06)  # steps below one per cent are left out
    assert all(s.share == pytest.approx(s.us / e.time_us) for s in e.path) and all(s.share >= 0.01 for s in e.path[1:])
    first = e.path[0]
    assert (first.role, first.us, first.why) == ("launch", e.launch_us, "executes")
    return e.path


def spent(steps: tuple[Step, ...]) -> dict[tuple[str, str, str], float]:
    """Clocks by role, op and why."""
    out: dict[tuple[str, str, str], float] = defaultdict(float)
    for s in steps[1:]:
        out[s.role, s.what, s.why] += s.us * 1000
    return dict(out)


def test_a_ring_of_one_stage_goes_round_between_its_roles() -> None:
    found = spent(path(RING, TRIPS, STAGES=1))
    assert found == pytest.approx(
        {
            ("producer", "expect", "executes"): 40 * WAIT,
            ("producer", "tma_load", "executes"): 40 * 12 * OVERHEAD,
            ("math", "wait", "waits for full"): 40 * 400,
            ("math", "wgmma_wait", "waits for products"): 40 * (128 + 16 + WAIT),
            ("math", "arrive", "executes"): 40 * WAIT,
            ("producer", "wait", "waits for free"): 39 * 50,
        },
        rel=1e-3,
    )


def test_a_ring_of_enough_stages_is_its_consumer() -> None:
    found = path(RING, TRIPS, STAGES=8)
    assert {s.role for s in found} == {"launch", "math"}
    assert spent(found)["math", "wait", "waits for full"] == pytest.approx(400, abs=1)  # the first copy alone
    assert max(found, key=lambda s: s.us).why == "waits for products"
    assert [s.line for s in found if s.what == "wgmma_wait"] == [
        RING.split("\n").index("            wgmma_wait(0)") + 1
    ]


def test_a_path_through_cut_loops_has_the_same_shares() -> None:
    short, long = (spent(path(RING, TRIPS | {"trips": n}, STAGES=2)) for n in (200, 4000))
    waits = ("math", "wait", "waits for full")
    assert short.keys() == long.keys()
    assert long[waits] / sum(long.values()) == pytest.approx(short[waits] / sum(short.values()), rel=0.05)
    assert long[waits] == pytest.approx(20 * short[waits], rel=0.05)


def test_what_a_role_does_between_its_products_is_on_the_path() -> None:
    found = spent(path(PRODUCT, {"G": 4, "trips": 50}))
    assert found["math", "low", "executes"] == pytest.approx(50 * 64 * OVERHEAD)
    assert found["math", "wgmma_wait", "waits for products"] == pytest.approx(50 * (256 + 16 + WAIT))


def test_who_comes_last_to_a_rendezvous_is_the_path() -> None:
    text = WORK.replace(
        "            v = v * p + 1.0",
        "            if w == 2:\n                v = v * p + 1.0\n            sync(units)",
    )
    found = path(text, {"G": 4, "trips": 100})
    most = max(found, key=lambda s: s.us)
    assert {(s.role, s.instance) for s in found} >= {("units", 2)} and (most.what, most.why) == (
        "sync",
        "waits at sync",
    )
    assert spent(found)["units", "v", "executes"] == pytest.approx(100 * 4 * OVERHEAD, rel=0.02)


def test_stores_that_the_launch_waits_for_are_on_the_path() -> None:
    found = spent(path(STORES, {"G": 4, "N": 64, "n": 40, "busy": 20}, machine=toy(l2_write=4 * 4e9)))
    assert found["unit", "store", "executes"] > 0.9 * 41 * 128 - 2000


def test_without_an_explanation_there_is_no_path() -> None:
    assert run(RING, TRIPS).path == ()
    assert run(RING, TRIPS, TOY, explain=True).path
