"""The cost model against counts made by hand."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from analyses import estimate
from analyses.cost import Estimate, calibration
from analyses.cost.estimate import estimate_on
from analyses.cost.machine import ASSUMED, Machine
from cake_ir import bind, parse
from cake_ir.bound import BoundKernel
from cake_ir.diagnostics import CakeError
from corpus import kernels
from corpus.contract import contracts
from corpus.kernels import CorpusKernel
from corpus.signature import scalar_values, solve_dims

KERNELS = Path(__file__).parents[2] / "corpus" / "kernels"
RESULTS = KERNELS.parent / "results"


def kernel(name: str, target: str | None = None, **bindings: Any) -> BoundKernel:
    parsed = parse((KERNELS / f"{name}.cake").read_text())
    assert parsed.file is not None
    bound = bind(parsed.file, bindings, target).bound
    assert bound is not None
    return bound


def sheet(bound: BoundKernel, shape: dict[str, int]) -> Estimate:
    """With the rates of the data sheet, whether or not the device has a calibration."""
    return estimate_on(bound, shape, Machine.of(bound.target, None), explain=False)


@pytest.mark.parametrize(("name", "shape", "flop"), [
    ("gemm_sm90", {"M": 4096, "N": 4096, "K": 4096}, 2 * 4096**3),
    ("gemm_sm100", {"M": 4096, "N": 4096, "K": 4096}, 2 * 4096**3),  # CTA pairs
    ("gemm_sm80", {"M": 4096, "N": 4096, "K": 4096}, 2 * 4096**3),
    ("kmeans_assign", {"B": 32, "N": 61440, "C": 1024, "D": 128}, 2 * 32 * 61440 * 1024 * 128),
])  # fmt: skip
def test_flop_of_a_product_is_counted_exactly(name: str, shape: dict[str, int], flop: int) -> None:
    assert estimate(kernel(name), shape, explain=False).tensor_flop == pytest.approx(flop, rel=1e-9)


@pytest.mark.parametrize("n", [4096, 5120])
def test_gemm_bound_is_the_tensor_rate_however_tiles_fall(n: int) -> None:
    found = sheet(kernel("gemm_sm90"), {"M": 4096, "N": n, "K": 4096})
    assert found.bounds_us["tensor"] == pytest.approx(2 * 4096**2 * n / (4096 * 132 * 1.83e9) * 1e6, rel=1e-6)
    assert found.time_us > found.bounds_us["tensor"] == pytest.approx(found.floor_us) and not found.calibrated


def test_a_pair_of_ctas_multiplies_on_both_sms() -> None:
    # each of two CTAs one half of a product: as long, for twice the work, and half as many operands
    one, two = (sheet(kernel("gemm_sm100", CG=cg), {"M": 8192, "N": 8192, "K": 4096}) for cg in (1, 2))
    assert one.tensor_flop == pytest.approx(two.tensor_flop) == pytest.approx(2 * 8192**2 * 4096)
    assert one.bounds_us["tensor"] == pytest.approx(two.bounds_us["tensor"], rel=1e-6)


def test_row_kernel_is_bound_by_memory() -> None:
    found = sheet(kernel("rmsnorm", "sm_90a"), {"M": 16384, "D": 4096})
    # x and y once; of the gains a part again, when 71 MB of rows have passed
    assert found.hbm_bytes == pytest.approx(2 * 16384 * 4096 * 2 + 4096 * 2, rel=1e-3)
    assert found.bounds_us["hbm"] == pytest.approx(found.hbm_bytes / 4.8e12 * 1e6)
    assert found.bound_by == "hbm" and found.bounds_us["hbm"] == max(found.bounds_us.values())


def test_a_small_problem_is_limited_by_latency_not_by_its_roofline() -> None:
    found = estimate(kernel("rmsnorm", "sm_90a", DMAX=256, WARPS=1), {"M": 132, "D": 256})
    assert found.limited_by in ("latency", "barriers") and max(found.bounds_us.values()) < 0.5 * found.time_us
    assert found.time_us >= (found.cta_us + found.launch_us) * (1 - 1e-9) > found.floor_us


def test_more_work_never_costs_less() -> None:
    bound = kernel("kmeans_assign")
    times = [
        estimate(bound, {"B": 1, "N": n, "C": c, "D": 128}, explain=False).time_us
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
    assert all(0 <= x < 2 for x in measured.drag)
    late = measured.latency
    assert 20 < late["named"] < late["hop"] < late["cluster"] < late["tma"] < late["tma_hbm"] < 2000
    assert late["l1"] < late["load"] < late["load_hbm"] and late["fence"] < late["hop"] < late["far"]
    assert 0.5 < late["launch_us"] < 5 and 10 < late["cta_start"] < late["turnaround"] < 2000
    assert measured.port <= measured.port_alone and measured.l2 / 132 / measured.clock_hz < measured.port
    # the calibration measures what most of the time goes by
    measures = {
        "load",
        "load_hbm",
        "tma",
        "tma_hbm",
        "hop",
        "far",
        "named",
        "cluster",
        "fence",
        "wgmma",
        "launch_us",
        "cta_start",
        "turnaround",
    }
    assert not measures & set(measured.assumed)
    assert set(book.assumed) == set(ASSUMED) and book.latency == ASSUMED


# ---- the corpus --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("corpus", kernels(), ids=lambda k: k.name)
def test_corpus_kernels_take_no_less_than_their_floor_and_bounds(corpus: CorpusKernel) -> None:
    contract = contracts()[corpus.contract]
    file = parse(corpus.text()).file
    assert file is not None
    made = 0
    for target in corpus.targets:
        bound = bind(file, corpus.bindings, target, corpus.kernel).bound
        assert bound is not None
        for i, shape in enumerate(contract.shapes["tuning"]):
            scalars = {k: int(v) for k, v in scalar_values(bound, contract, shape).items() if float(v).is_integer()}
            l2 = ("cold", "warm")[i % 2]
            try:
                found = estimate(bound, solve_dims(bound, contract, shape) | scalars, l2=l2, explain=False)
            except CakeError as exc:  # rows longer than these tunables hold
                assert exc.diagnostic.rule == "language/where-unsatisfied"
                continue
            made += 1
            assert math.isfinite(found.time_us) and found.bound_class
            assert found.time_us >= (1 - 1e-9) * max(found.floor_us, *found.bounds_us.values())
            if found.calibrated:
                assert found.low_us is not None and found.high_us is not None
                assert found.low_us <= found.time_us <= found.high_us
    assert made


CLASSES = {"tensor", "hbm", "l2", "smem", "issue", "latency", "barrier wait", "occupancy", "tail", "launch"}


@pytest.mark.parametrize("corpus", kernels(), ids=lambda k: k.name)
def test_corpus_kernels_are_estimated_at_odd_shapes_with_a_path_that_is_part_of_the_time(corpus: CorpusKernel) -> None:
    contract = contracts()[corpus.contract]
    bound = kernel(corpus.path.stem, corpus.targets[0], **corpus.bindings)
    for l2, where, i in (("cold", "boundary", 0), ("warm", "heldout", -1)):
        shape = contract.shapes[where][i]
        dims = solve_dims(bound, contract, shape)
        dims |= {k: int(v) for k, v in scalar_values(bound, contract, shape).items() if float(v).is_integer()}
        try:
            found = estimate(bound, dims, l2=l2)
        except CakeError as exc:
            assert exc.diagnostic.rule == "language/where-unsatisfied"
            continue
        short = estimate(bound, dims, l2=l2, explain=False)
        assert replace(found, path=(), sites=()) == short, "explained or not, it is one prediction"
        assert found.bound_class in CLASSES and found.path
        assert sum(s.share for s in found.path) <= 1 + 1e-9 and all(s.us >= 0 for s in found.path)
        json.dumps(asdict(short), allow_nan=False)


@pytest.mark.parametrize(("name", "shape", "bindings", "once"), [
    ("softmax", {"M": 65536, "N": 4096}, {}, 2 * 65536 * 4096 * 4),  # rows pass L2 more than once
    ("col_sums_split", {"M": 7000, "N": 7000}, {"COLS": 64, "ROWS": 64, "WARPS": 4, "SPLIT": 128}, 7000 * 7000 * 2 + 2 * 7000 * 4),
])  # fmt: skip
def test_the_floor_is_no_more_than_each_tensor_once(
    name: str, shape: dict[str, int], bindings: dict[str, Any], once: int
) -> None:
    found = estimate(kernel(name, "sm_90a", **bindings), shape, explain=False)
    assert found.floor_us == pytest.approx(once / 4.8e12 * 1e6, rel=1e-3)


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
                found = estimate(bound, {d: row["shape"][d] for d in bound.dims}, explain=False).time_us
                logs.append(math.log(found / row["time_us"]))
    assert len(logs) >= 8
    assert abs(statistics.fmean(logs)) < 0.15 and max(map(abs, logs)) < 0.4
