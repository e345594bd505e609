"""Every term of the model says something: there is a program that is faster without it, and none that is slower."""

from __future__ import annotations

import pytest

from analyses.cost.terms import TERMS
from cake_ir.diagnostics import CakeError
from tests.analyses.test_cost_explain import TURN
from tests.analyses.test_cost_grid import WORK
from tests.analyses.test_cost_simulation import MEET, PRODUCT, RING
from tests.analyses.test_cost_traffic import COPIES, STORES, TWICE
from tests.analyses.toy_machine import bound_of, latency, run, toy

BUSY = toy(
    hbm_read=4 * 8e9, hbm_write=4 * 8e9, l2=4 * 64e9, l2_write=4 * 32e9, port=80, port_alone=100, write_alone=40, smem=128, far=16,
    drag=(0.8, 0.8, 0.05), clock_some_hz=0.95e9, clock_tensor_hz=0.8e9, l2_keeps=(1e6, 2e6),
    latency=latency(cta_start=50, turnaround=100, start=200),
)  # fmt: skip
"""A machine on which everything takes time."""
PROGRAMS = {
    "product": (bound_of(PRODUCT, WG=3), {"G": 4, "trips": 50}),
    "product of one warpgroup": (bound_of(PRODUCT, WG=1), {"G": 4, "trips": 50}),
    "ring of one": (bound_of(RING, STAGES=1), {"G": 4, "N": 1024, "trips": 40}),
    "ring of four": (bound_of(RING, STAGES=4), {"G": 5, "N": 4096, "trips": 64}),
    "copies": (bound_of(COPIES), {"G": 4, "N": 64 * 4 * 20, "n": 20}),
    "shared copies": (bound_of(COPIES.replace("i + OWN", "i % 2 + OWN"), OWN=0), {"G": 4, "N": 128, "n": 40}),
    "instructions": (bound_of(WORK, WARPS=16, ROOM=50), {"G": 8, "trips": 100}),
    "five CTAs": (bound_of(WORK), {"G": 5, "trips": 100}),
    "many CTAs": (bound_of(WORK, ROOM=1), {"G": 200, "trips": 1}),
    "two passes": (bound_of(TWICE), {"M": 8, "D": 2048}),
    "stores": (bound_of(STORES), {"G": 4, "N": 64, "n": 40, "busy": 20}),
    "meetings": (bound_of(MEET.replace("SCOPE", "cluster")), {"G": 4, "trips": 20}),
    "through shared memory": (bound_of(TURN), {"G": 8, "trips": 40}),
}


@pytest.fixture(scope="module")
def times() -> dict[str, dict[str, float]]:
    """By program and term: the time without it, over the time with all."""
    out = {}
    for name, (bound, shape) in PROGRAMS.items():
        now = run(bound, shape, BUSY).time_us
        out[name] = {term: run(bound, shape, BUSY, without=term).time_us / now for term in TERMS}
    return out


WHERE = {
    "tensor": ("product", "ring of one"), "clock": ("product",), "interference": ("product",), "ring": ("ring of one",),
    "issue": ("instructions", "product"), "residency": ("instructions", "through shared memory"), "wave": ("five CTAs",),
    "smem": ("through shared memory",), "copies": ("shared copies",), "l2": ("shared copies", "stores"), "hbm": ("copies", "two passes"),
    "load latency": ("ring of one", "product of one warpgroup", "two passes"), "barriers": ("ring of one", "meetings"),
    "launch": ("many CTAs", "stores"),
}  # fmt: skip
"""Programs that a term costs more than two per cent of their time."""


@pytest.mark.parametrize("term", TERMS)
def test_a_term_costs_the_programs_time_that_pay_it(term: str, times: dict[str, dict[str, float]]) -> None:
    free = [name for name in WHERE[term] if times[name][term] > 0.98]
    assert not free


def test_no_program_is_slower_without_a_term(times: dict[str, dict[str, float]]) -> None:
    # who is served first may change, and with it a few clocks of a thousand
    slower = [(name, term, x) for name, row in times.items() for term, x in row.items() if x > 1.005]
    assert not slower


def test_terms_that_do_not_exist_are_named() -> None:
    bound, shape = PROGRAMS["stores"]
    with pytest.raises(CakeError, match="no term gravity; it has tensor, issue"):
        run(bound, shape, without="gravity")
