"""The order reading's word on a launch that hung: planted deadlocks block where they are planted, right kernels do not."""

from __future__ import annotations

import pytest

from analyses.order import stand as standing
from analyses.order.stand import stand
from cake_ir import bind, parse
from cake_ir.derive import derive
from corpus import kernels
from tests.faults.build import SMS, stands
from tests.faults.kernels import DEADLOCKS, GEMM, Changed

WAITS = {  # line of the wait that nothing satisfies, and who stands there
    "gemm_release_of_the_other_cta_left_out": ("producer of CTA 1 waits for free[0]", "free"),
    "gemm_wait_for_the_next_slot": ("math[0] of CTA 0 waits for full", "full"),
    "kmeans_points_not_released": ("producer of CTA 0 waits for x_free[0]", "x_free"),
    "kmeans_points_of_the_next_tile": ("math[0] of CTA 0 waits for x_full[1]", "x_full"),
}


@pytest.mark.parametrize("kernel", DEADLOCKS, ids=lambda k: k.name)
def test_every_planted_deadlock_blocks(kernel: Changed) -> None:
    got = stands(kernel)
    assert got.blocks is True and got.text.startswith("the order reading blocks as well, line ")
    assert got.stuck and got.needs
    if kernel.name in WAITS:
        who, barrier = WAITS[kernel.name]
        assert any(s.startswith(who) for s in got.stuck)
        line = int(got.text.partition("line ")[2].partition(":")[0])
        assert (line, barrier) in {(n.line, n.barrier) for n in got.needs}


def bound_gemm() -> tuple:  # type: ignore[type-arg]
    k = next(k for k in kernels() if k.name == "gemm_sm90")
    file = parse(k.text()).file
    assert file is not None
    bound = bind(file, dict(k.bindings), "sm_90a", k.kernel).bound
    assert bound is not None
    return bound, derive(bound)


def test_a_right_kernel_comes_to_its_end_and_its_waits_are_explained() -> None:
    bound, derived = bound_gemm()
    got = stand(bound, derived, GEMM, SMS)
    assert got.blocks is False and got.stuck == () and "a rule is missing" in got.text
    by = {n.barrier: n for n in got.needs}
    assert by["free"].role == "producer" and by["free"].arrivals == 4 and all("math" in b for b in by["free"].by)
    assert by["full"].role == "math" and any(b.startswith("tma_load of producer") for b in by["full"].by)
    told = got.to_json()["needs"][0]["text"]
    assert told.startswith("wait on free (line ") and "needs 4 arrivals by arrive of math" in told


def test_a_run_past_its_limit_and_a_shape_outside_where_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    bound, derived = bound_gemm()
    outside = stand(bound, derived, {"M": 3, "N": 3, "K": 3}, SMS)
    assert outside.blocks is None and "`where`" in outside.text
    monkeypatch.setattr(standing, "EVENTS", 10)
    long = stand(bound, derived, GEMM, SMS)
    assert long.blocks is None and "longer than its limit of 10 events" in long.text
