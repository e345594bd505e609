"""The cost model against counts made by hand."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest

from analyses import estimate
from analyses.cost import Estimate, calibration
from analyses.cost.estimate import estimate_on
from analyses.cost.machine import Machine
from cake_ir import bind, parse
from cake_ir.bound import BoundKernel
from cake_ir.diagnostics import CakeError

KERNELS = Path(__file__).parents[2] / "corpus" / "kernels"
RESULTS = KERNELS.parent / "results"


def kernel(name: str, target: str | None = None, **bindings: int) -> BoundKernel:
    parsed = parse((KERNELS / f"{name}.cake").read_text())
    assert parsed.file is not None
    bound = bind(parsed.file, bindings, target).bound
    assert bound is not None
    return bound


def sheet(bound: BoundKernel, shape: dict[str, int]) -> Estimate:
    """With the rates of the data sheet, whether or not the device has a calibration."""
    return estimate_on(bound, shape, Machine.of(bound.target, None))


@pytest.mark.parametrize(("name", "shape", "flop"), [
    ("gemm_sm90", {"M": 4096, "N": 4096, "K": 4096}, 2 * 4096**3),
    ("gemm_sm100", {"M": 4096, "N": 4096, "K": 4096}, 2 * 4096**3),
    ("gemm_sm80", {"M": 4096, "N": 4096, "K": 4096}, 2 * 4096**3),
    ("kmeans_assign", {"B": 32, "N": 61440, "C": 1024, "D": 128}, 2 * 32 * 61440 * 1024 * 128),
])  # fmt: skip
def test_flop_of_a_product_is_counted_exactly(name: str, shape: dict[str, int], flop: int) -> None:
    assert estimate(kernel(name), shape).tensor_flop == pytest.approx(flop, rel=1e-9)


def test_gemm_bound_is_the_tensor_rate() -> None:
    found = sheet(kernel("gemm_sm90"), {"M": 4096, "N": 4096, "K": 4096})
    assert found.bounds_us["tensor"] == pytest.approx(2 * 4096**3 / (4096 * 132 * 1.83e9) * 1e6, rel=1e-6)
    assert found.time_us >= found.floor_us and not found.calibrated


def test_row_kernel_is_bound_by_memory() -> None:
    found = sheet(kernel("rmsnorm", "sm_90a"), {"M": 16384, "D": 4096})
    assert found.hbm_bytes == 2 * 16384 * 4096 * 2 + 4096 * 2
    assert found.bounds_us["hbm"] == pytest.approx(found.hbm_bytes / 4.8e12 * 1e6)
    assert found.bound_by == "hbm" and found.bounds_us["hbm"] == max(found.bounds_us.values())


def test_a_small_problem_is_limited_by_latency_not_by_its_roofline() -> None:
    found = estimate(kernel("rmsnorm", "sm_90a", DMAX=256, WARPS=1), {"M": 132, "D": 256})
    assert found.limited_by == "latency"
    assert found.time_us >= (found.cta_us + found.launch_us) * (1 - 1e-9) > found.floor_us


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


# ---- devices -----------------------------------------------------------------------------------------------------------


def test_the_measured_device_is_calibrated_and_says_when() -> None:
    bound = kernel("gemm_sm90")
    found = estimate(bound, {"M": 4096, "N": 4096, "K": 4096})
    assert found.calibrated and found.device == "NVIDIA H200" and found.source.startswith("NVIDIA H200, 20")
    assert found == estimate(bound, {"M": 4096, "N": 4096, "K": 4096}, "NVIDIA H200")
    # the power cap: dense products run below the idle clock, a memory-bound kernel does not
    rows = estimate(kernel("rmsnorm", "sm_90a"), {"M": 16384, "D": 4096})
    assert found.clock_mhz < 1800 < 1950 < rows.clock_mhz


@pytest.mark.parametrize("target", ["sm_80", "sm_100a"])
def test_a_data_sheet_is_marked_uncalibrated(target: str) -> None:
    found = estimate(kernel("rmsnorm", target), {"M": 16384, "D": 4096})
    assert (
        not found.calibrated and "not measured on your device" in found.assumptions[0] and "data sheet" in found.source
    )


@pytest.mark.parametrize("device", ["NVIDIA GeForce RTX 3090", "NVIDIA A100-SXM4-80GB"])
def test_other_devices_are_declined(device: str) -> None:
    with pytest.raises(CakeError) as found:
        estimate(kernel("gemm_sm90"), {"M": 4096, "N": 4096, "K": 4096}, device)
    assert found.value.diagnostic.rule == "cost/unknown-device"


def test_the_measured_machine_is_within_its_data_sheet() -> None:
    bound = kernel("gemm_sm90")
    measured, book = Machine.of(bound.target, calibration.find("sm_90a")), Machine.of(bound.target, None)
    assert all(0.85 * 4096 < rate <= 4096 for rate in measured.wgmma.values())
    assert 0.9 * book.hbm_read > measured.hbm_write > 0.6 * book.hbm_read and measured.hbm_read < book.hbm_read
    assert (measured.smem, measured.fma, measured.alu, measured.special) == pytest.approx((128, 128, 64, 16), rel=0.05)
    assert 1.4e9 < measured.clock_tensor_hz < measured.clock_hz <= 1.98e9
    assert measured.alu_slots == pytest.approx(2.0, abs=0.2)
    assert all(0 < free < 0.5 and 0.5 < price < 2 for free, price in measured.interference.values())
    assert (
        20
        < measured.latency["passed"]
        < measured.latency["hop"]
        < measured.latency["cluster"]
        < measured.latency["tma"]
    )
    assert set(measured.assumed) <= {"smem_load", "load", "passed", "cta_start", "cluster_sms"}


MEASURED = ("gemm_sm80", "gemm_sm90", "kmeans_assign", "kmeans_packed", "rmsnorm", "softmax")


def test_predictions_stand_beside_the_committed_measurements() -> None:
    logs = []
    for name in MEASURED:
        for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]:
            if row["mode"] == "warm" and row["device"] == "NVIDIA H200":
                parsed = parse((KERNELS / f"{name}.cake").read_text())
                assert parsed.file is not None
                bound = bind(parsed.file, row["bindings"], "sm_90a").bound
                assert bound is not None
                found = estimate(bound, {d: row["shape"][d] for d in bound.dims}).time_us
                logs.append(math.log(found / row["time_us"]))
    assert len(logs) >= 8
    assert abs(statistics.fmean(logs)) < 0.15 and max(map(abs, logs)) < 0.4
