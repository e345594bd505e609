"""The cost model against counts made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyses import estimate
from cake_ir import bind, parse
from cake_ir.bound import BoundKernel
from cake_ir.diagnostics import CakeError

KERNELS = Path(__file__).parents[2] / "corpus" / "kernels"


def kernel(name: str, target: str | None = None) -> BoundKernel:
    parsed = parse((KERNELS / f"{name}.cake").read_text())
    assert parsed.file is not None
    bound = bind(parsed.file, {}, target).bound
    assert bound is not None
    return bound


@pytest.mark.parametrize(("name", "shape", "flop"), [
    ("gemm_sm90", {"M": 4096, "N": 4096, "K": 4096}, 2 * 4096**3),
    ("gemm_sm100", {"M": 4096, "N": 4096, "K": 4096}, 2 * 4096**3),
    ("gemm_sm80", {"M": 4096, "N": 4096, "K": 4096}, 2 * 4096**3),
    ("kmeans_assign", {"B": 32, "N": 61440, "C": 1024, "D": 128}, 2 * 32 * 61440 * 1024 * 128),
])  # fmt: skip
def test_flop_of_a_product_is_counted_exactly(name: str, shape: dict[str, int], flop: int) -> None:
    assert estimate(kernel(name), shape).tensor_flop == pytest.approx(flop, rel=1e-9)


def test_gemm_bound_is_the_tensor_rate() -> None:
    found = estimate(kernel("gemm_sm90"), {"M": 4096, "N": 4096, "K": 4096})
    assert found.bounds_us["tensor"] == pytest.approx(2 * 4096**3 / (4096 * 132 * 1.83e9) * 1e6, rel=1e-6)
    assert found.time_us >= found.floor_us and not found.calibrated


def test_row_kernel_is_bound_by_memory() -> None:
    found = estimate(kernel("rmsnorm", "sm_90a"), {"M": 16384, "D": 4096})
    assert found.hbm_bytes == 2 * 16384 * 4096 * 2 + 4096 * 2
    assert found.bounds_us["hbm"] == pytest.approx(found.hbm_bytes / 4.8e12 * 1e6)
    assert found.bound_by == "hbm" and found.bounds_us["hbm"] == max(found.bounds_us.values())


def test_a_small_problem_is_limited_by_latency_not_by_its_roofline() -> None:
    found = estimate(kernel("rmsnorm", "sm_90a"), {"M": 132, "D": 256})
    assert found.limited_by == "latency"
    assert found.time_us >= found.cta_us + found.launch_us > found.floor_us


def test_more_work_never_costs_less() -> None:
    bound = kernel("kmeans_assign")
    times = [
        estimate(bound, {"B": 1, "N": n, "C": c, "D": 128}).time_us
        for n in (1024, 65536, 1 << 20)
        for c in (128, 1024, 4096)
    ]
    for i in range(0, 9, 3):
        assert times[i] <= times[i + 1] <= times[i + 2]
    assert times[0] <= times[3] <= times[6]


@pytest.mark.parametrize("shape", [{"M": 8}, {"M": 8, "D": 16, "X": 1}, {"M": -1, "D": 8}, {"M": 4, "D": 12}])
def test_bad_shapes_are_refused(shape: dict[str, int]) -> None:
    with pytest.raises(CakeError):
        estimate(kernel("rmsnorm", "sm_90a"), shape)
