"""The device runtime and the timing protocol, against a driver that keeps its memory in this process."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cake_ir.diagnostics import CakeError
from lowering.plan import Arg, LaunchPlan, TensorMapPlan
from lowering.runtime import bench, device, errors, host, stats, telemetry, tensor_map

CUBIN = b"\x7fELF fake"


def rule(fault: pytest.ExceptionInfo[CakeError]) -> str:
    return fault.value.diagnostic.rule


@pytest.fixture
def cu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    fake = importlib.import_module("tests.lowering.toolchain_fake_driver").FakeDriver()
    for module in (errors, device, tensor_map):
        monkeypatch.setattr(module, "driver", lambda: fake)
    tensor_map._encode_entry.cache_clear()
    yield fake
    tensor_map._encode_entry.cache_clear()


@pytest.fixture
def gpu(cu: Any) -> Iterator[device.Device]:
    with device.Device() as opened:
        yield opened
    assert cu.memory == {}, "a buffer was leaked"


def test_no_gpu_is_an_answer() -> None:
    if errors.available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(CakeError) as fault:
        device.Device()
    assert rule(fault) == "lowering/no-gpu"


def test_device_info_is_json(gpu: device.Device) -> None:
    info = gpu.info()
    assert (info.name, info.compute_capability, info.sms, info.driver) == ("Fake H200", (9, 0), 132, "13.0")
    assert json.loads(json.dumps(info.to_json()))["sm_clock_mhz"] == 1980
    with pytest.raises(CakeError, match="device 3 was asked for"):
        device.Device(3)


@pytest.mark.parametrize("nbytes", [0, 1, 3, 4, 7, 256, 1001])
@pytest.mark.parametrize("offset", [0, 2, 16])
def test_guard_bands(nbytes: int, offset: int, gpu: device.Device) -> None:
    buffer = gpu.alloc(nbytes, offset=offset)
    assert buffer.pointer % 256 == offset
    data = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    buffer.write(data)
    assert buffer.read() == data.tobytes() and buffer.damage() == []
    for where in (-1, -offset - 4096, nbytes, nbytes + 4095):
        byte = ctypes.c_ubyte.from_address(buffer.pointer + where)
        old, byte.value = byte.value, byte.value ^ 0x40
        assert buffer.damage() == [where]
        byte.value = old
    buffer.poison(0x7FC00000, 4)
    assert buffer.damage() == [] and buffer.read()[: nbytes // 4 * 4] == b"\x00\x00\xc0\x7f" * (nbytes // 4)
    buffer.free()
    buffer.free()


def test_host_memory_forms(gpu: device.Device) -> None:
    buffer = gpu.alloc(8)
    buffer.write(b"readonly")
    out = bytearray(8)
    buffer.read_into(out)
    assert out == b"readonly"
    buffer.write(memoryview(bytearray(b"writable")))
    array = np.zeros(4, dtype=np.uint16)
    buffer.read_into(array)
    assert array.tobytes() == b"writable"
    with pytest.raises(ValueError, match="contiguous"):
        buffer.write(np.zeros((4, 4), dtype=np.uint8)[:, ::2])
    with pytest.raises(ValueError, match="do not fill"):
        buffer.write(b"short")
    with pytest.raises(ValueError, match="writable"):
        buffer.read_into(b"readonly")
    with pytest.raises(ValueError, match="pattern"):
        gpu.fill(buffer.pointer, 7, 1, 4)
    other = gpu.alloc(8)
    gpu.copy_device(other.pointer, buffer.pointer, 8)
    assert other.read() == b"writable"
    other.free()
    buffer.free()


def test_ml_dtypes_arrays_copy(gpu: device.Device) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.array([1, 2, 3.5, -4], dtype=ml_dtypes.bfloat16)
    buffer = gpu.alloc(values.nbytes)
    buffer.write(values)
    back = np.empty_like(values)
    buffer.read_into(back)
    assert back.tolist() == values.tolist()


@pytest.mark.parametrize(
    ("call", "name", "expected"),
    [
        ("cuCtxSynchronize", "ILLEGAL_ADDRESS", "lowering/device-fault"),
        ("cuCtxSynchronize", "LAUNCH_TIMEOUT", "lowering/device-fault"),
        ("cuCtxSynchronize", "NOT_READY", "lowering/cuda-error"),
        ("cuMemAlloc", "OUT_OF_MEMORY", "lowering/out-of-memory"),
        ("cuModuleLoadData", "NO_BINARY_FOR_GPU", "lowering/wrong-architecture"),
    ],
)
def test_driver_errors_have_rules(call: str, name: str, expected: str, gpu: device.Device, cu: Any) -> None:
    cu.fail[call] = getattr(cu.CUresult, "CUDA_ERROR_" + name)
    with pytest.raises(CakeError) as fault:
        {
            "cuCtxSynchronize": gpu.synchronize,
            "cuMemAlloc": lambda: gpu.alloc(4),
            "cuModuleLoadData": lambda: gpu.load(b"x"),
        }[call]()
    assert rule(fault) == expected and name in fault.value.diagnostic.message
    assert errors.is_sticky(fault.value) == (expected == "lowering/device-fault")


def test_health_probe(gpu: device.Device, cu: Any) -> None:
    assert gpu.healthy()
    cu.fail["cuCtxSynchronize"] = cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    assert not gpu.healthy()


# ---- launches ------------------------------------------------------------------------------------------------------


def a_plan(**changes: Any) -> LaunchPlan:
    fields: dict[str, Any] = {
        "symbol": "k", "cubin_sha256": hashlib.sha256(CUBIN).hexdigest(), "grid": 8, "cluster": 1, "threads": 128,
        "smem_bytes": 65536, "pdl": False, "cooperative": False,
        "args": (Arg("tensor", "y"), Arg("i32", value=-5), Arg("i64", value=1 << 40), Arg("f32", value=0.25),
                 Arg("tensor_map", "m")),
        "tensor_maps": {"m": TensorMapPlan("x", "bf16", (256, 100), (512,), (64, 128), 128, "nan")},
    }  # fmt: skip
    return LaunchPlan(**{**fields, **changes})


POINTERS = {"x": 0x7F0000000400, "y": 0x7F0000001234}


def test_arguments_reach_the_kernel(gpu: device.Device, cu: Any) -> None:
    prepared = host.prepare(gpu, CUBIN, a_plan(), POINTERS)
    prepared.launch(16)
    prepared(16)
    (config, function, params), second = cu.launches
    assert second[0] is config and function == ("function", b"k")
    assert (config.gridDimX, config.blockDimX, config.sharedMemBytes, config.numAttrs) == (8, 128, 65536, 0)
    assert int(config.hStream) == 16
    at = (ctypes.c_void_p * 5).from_address(params)
    assert ctypes.c_uint64.from_address(at[0]).value == POINTERS["y"]
    assert ctypes.c_int32.from_address(at[1]).value == -5
    assert ctypes.c_int64.from_address(at[2]).value == 1 << 40
    assert ctypes.c_float.from_address(at[3]).value == 0.25
    assert at[4] % 64 == 0 and ctypes.string_at(at[4], 128) == b"\xab" * 128
    assert cu.set_attributes == {"MAX_DYNAMIC_SHARED_SIZE_BYTES": 65536}
    assert cu.maps == [
        {"dtype": "BFLOAT16", "pointer": POINTERS["x"], "dims": [256, 100], "strides": [512], "box": [64, 128],
         "steps": [1, 1], "swizzle": "128B", "fill": "NAN_REQUEST_ZERO_FMA"}
    ]  # fmt: skip


def test_launch_attributes(gpu: device.Device, cu: Any) -> None:
    cu.resident = 64
    plan = a_plan(grid=32, cluster=16, pdl=True, cooperative=True)
    host.prepare(gpu, CUBIN, plan, POINTERS).launch(0)
    config = cu.launches[0][0]
    ids = cu.CUlaunchAttributeID
    cluster, pdl, cooperative = config.attrs
    assert cluster.id == ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION and cluster.value.clusterDim.x == 16
    assert pdl.id == ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert pdl.value.programmaticStreamSerializationAllowed == 1
    assert cooperative.id == ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE and cooperative.value.cooperative == 1
    assert cu.set_attributes["NON_PORTABLE_CLUSTER_SIZE_ALLOWED"] == 1


@pytest.mark.parametrize(
    ("changes", "setting", "expected"),
    [
        ({"cubin_sha256": "0" * 64}, {}, "lowering/bad-plan"),
        ({"args": (Arg("tensor", "z"),)}, {}, "lowering/bad-plan"),
        ({"smem_bytes": 232449}, {}, "lowering/launch-refused"),
        ({}, {"function_attributes": {"SHARED_SIZE_BYTES": 200000}}, "lowering/launch-refused"),
        ({}, {"function_attributes": {"MAX_THREADS_PER_BLOCK": 96}}, "lowering/launch-refused"),
        ({}, {"resident": 0}, "lowering/launch-refused"),
        ({"grid": 133, "cooperative": True}, {}, "lowering/launch-refused"),
        ({"grid": 133, "cluster": 2}, {}, "lowering/bad-plan"),
    ],
)
def test_hopeless_launches_are_refused_before_they_happen(
    changes: dict[str, Any], setting: dict[str, Any], expected: str, gpu: device.Device, cu: Any
) -> None:
    for name, value in setting.items():
        setattr(cu, name, value)
    with pytest.raises(CakeError) as fault:
        host.prepare(gpu, CUBIN, a_plan(**changes), POINTERS)
    assert rule(fault) == expected and cu.launches == []


def test_misaligned_tensor_cannot_have_a_map(gpu: device.Device) -> None:
    with pytest.raises(CakeError, match="16 bytes"):
        host.prepare(gpu, CUBIN, a_plan(), {**POINTERS, "x": 0x7F0000000408})


def test_a_refused_launch_is_an_error_every_time(gpu: device.Device, cu: Any) -> None:
    """A launch that fails must never look like a fast kernel."""
    prepared = host.prepare(gpu, CUBIN, a_plan(), POINTERS)
    cu.fail["cuLaunchKernelEx"] = cu.CUresult.CUDA_ERROR_INVALID_VALUE
    for _ in range(2):
        with pytest.raises(CakeError) as fault:
            prepared.launch(0)
        assert rule(fault) == "lowering/launch-refused"


def test_repeated_launches_cost_little_python(gpu: device.Device, cu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own share of a launch, without the driver: far below the 10 µs budget."""
    prepared = host.prepare(gpu, CUBIN, a_plan(), POINTERS)
    answer = (0,)
    monkeypatch.setattr(cu, "cuLaunchKernelEx", lambda *_: answer)
    prepared.launch(0)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(2000):
            prepared.launch(0)
        best = min(best, (time.perf_counter() - started) / 2000)
    assert best < 1e-4, "packing arguments again at every launch would show"


# ---- statistics ----------------------------------------------------------------------------------------------------


def test_summary_of_known_numbers() -> None:
    found = stats.summarise([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (found.median, found.mad, found.minimum, found.maximum, found.count) == (3.0, 1.0, 1.0, 100.0, 5)
    assert 1.0 <= found.low <= 3.0 <= found.high <= 100.0
    assert stats.summarise([5.0] * 9) == stats.Summary(5, 0, 5, 5, 5, 5, 9)
    assert stats.median([1, 2, 3, 10]) == 2.5
    with pytest.raises(ValueError):
        stats.median([])


@pytest.mark.parametrize(("factor", "verdict"), [(1.1, "faster"), (0.9, "slower"), (1.0, "inconclusive")])
def test_verdicts(factor: float, verdict: str) -> None:
    noise = np.random.default_rng(0).normal(1, 0.01, (2, 31))
    candidate, baseline = 10 * noise[0], 10 * factor * noise[1]
    found = stats.compare("b", baseline.tolist(), candidate.tolist())
    assert found.verdict == verdict and found.low <= found.ratio <= found.high
    assert found.ratio == pytest.approx(factor, rel=0.01)
    with pytest.raises(ValueError, match="paired"):
        stats.compare("b", [1.0], [1.0, 2.0])


# ---- timing --------------------------------------------------------------------------------------------------------


def candidate(cu: Any, name: str, us: float, calls: list[str] | None = None, **more: Any) -> bench.Candidate:
    def launch(stream: int) -> None:
        if calls is not None:
            calls.append(name)
        cu.work(us)

    return bench.Candidate(name, more.pop("launches", [launch]), **more)


QUICK: dict[str, Any] = {"rounds": 9, "batch_ms": 0.2, "warmup_ms": 1.0, "monitor": False}


def test_warm_graph_timing_compares_rightly(gpu: device.Device, cu: Any) -> None:
    ours, theirs = candidate(cu, "ours", 10.0), candidate(cu, "theirs", 12.0)
    result = bench.bench(gpu, [ours, theirs], bench.Settings(**QUICK))
    assert (result.mode, result.method, result.valid, result.notes) == ("warm", "graph", True, ())
    assert result.timings[0].summary.median == pytest.approx(10, rel=0.01)
    assert result.timings[1].summary.median == pytest.approx(12, rel=0.01)
    assert result.timings[0].batch == 20 and len(result.timings[0].samples_us) == 9
    (comparison,) = result.comparisons
    assert (comparison.baseline, comparison.verdict) == ("theirs", "faster")
    assert comparison.ratio == pytest.approx(1.2, rel=0.01)
    json.dumps(result.to_json(), allow_nan=False)


def test_rounds_alternate_direction(gpu: device.Device, cu: Any) -> None:
    order: list[str] = []
    pair = [
        candidate(cu, name, 10.0, before_round=lambda n, name=name: order.append(f"{name}{n}")) for name in ("a", "b")
    ]
    bench.bench(gpu, pair, bench.Settings(**{**QUICK, "rounds": 5}))
    assert order == ["a0", "b0", "b1", "a1", "a2", "b2", "b3", "a3", "a4", "b4"]


def test_cold_rotates_and_flushes(gpu: device.Device, cu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    launches = [lambda _, i=i: (seen.append(f"launch{i}"), cu.work(10.0)) for i in range(2)]
    original = gpu.fill

    def fill(pointer: int, nbytes: int, pattern: int, width: int = 1, stream: int = 0) -> None:
        if nbytes > 2 * (1 << 16):
            seen.append(f"flush{pattern}")
        original(pointer, nbytes, pattern, width, stream)

    def copy(to: int, source: int, nbytes: int, stream: int = 0) -> None:
        read.append(nbytes)

    read: list[int] = []
    monkeypatch.setattr(gpu, "fill", fill)
    monkeypatch.setattr(gpu, "copy_device", copy)
    monkeypatch.setattr(bench, "FLUSH_CHUNK", 4096)
    result = bench.bench(gpu, [candidate(cu, "a", 0, launches=launches)], bench.Settings(**QUICK, mode="cold"))
    assert (result.method, result.timings[0].batch) == ("events", 1)
    measured = seen[seen.index("flush1") :]
    assert measured[:6] == ["flush1", "launch0", "flush2", "launch1", "flush3", "launch0"]
    assert sum(read) > 9 * 2 * (1 << 16)  # the flushed bytes are read again each round


def test_graph_batches_hold_whole_rotations(gpu: device.Device, cu: Any) -> None:
    seen: list[int] = []
    launches = [lambda _, i=i: (seen.append(i), cu.work(10.0)) for i in range(3)]
    result = bench.bench(gpu, [candidate(cu, "a", 0, launches=launches)], bench.Settings(**QUICK))
    assert result.timings[0].batch == 21
    assert seen[-21:] == [0, 1, 2] * 7


def test_one_uncapturable_candidate_puts_all_on_events(gpu: device.Device, cu: Any) -> None:
    def stubborn(stream: int) -> None:
        if cu.capturing is not None:
            raise RuntimeError("cannot be captured")
        cu.work(12.0)

    pair = [candidate(cu, "ours", 10.0), candidate(cu, "torch", 0, launches=[stubborn])]
    result = bench.bench(gpu, pair, bench.Settings(**QUICK))
    assert result.method == "events" and "torch cannot be captured" in result.notes[0]
    assert cu.capturing is None
    assert result.comparisons[0].ratio == pytest.approx(1.2, rel=0.01)


def test_below_the_physical_floor_is_a_fault(gpu: device.Device, cu: Any) -> None:
    result = bench.bench(gpu, [candidate(cu, "a", 10.0, floor_us=11.0)], bench.Settings(**QUICK))
    assert not result.valid and "physical floor" in result.faults[0]


def test_a_fault_during_timing_surfaces(gpu: device.Device, cu: Any) -> None:
    cu.fail["cuEventSynchronize"] = cu.CUresult.CUDA_ERROR_LAUNCH_FAILED
    with pytest.raises(CakeError) as fault:
        bench.bench(gpu, [candidate(cu, "a", 10.0)], bench.Settings(**QUICK))
    assert rule(fault) == "lowering/device-fault"


def test_bench_arguments(gpu: device.Device, cu: Any) -> None:
    one = candidate(cu, "a", 1.0)
    with pytest.raises(ValueError, match="distinct"):
        bench.bench(gpu, [one, one])
    with pytest.raises(ValueError, match="launch"):
        bench.bench(gpu, [bench.Candidate("a", [])])
    with pytest.raises(CakeError, match="at least 5"):
        bench.bench(gpu, [one], bench.Settings(rounds=4))


def test_events(gpu: device.Device, cu: Any) -> None:
    assert bench.event_overhead_us(gpu, 0) == 0
    first, second = gpu.event(), gpu.event()
    first.record(0)
    cu.work(1000)
    second.record(0)
    assert second.ms_since(first) == pytest.approx(1, rel=0.02) and second.done()
    cu.fail["cuEventQuery"] = cu.CUresult.CUDA_ERROR_NOT_READY
    assert not second.done()


# ---- telemetry -----------------------------------------------------------------------------------------------------

ROW = "1980, 3201, 1980, 45, 612.30, 700.00, 0x0000000000000024, Enabled, Disabled, 580.159.04"


def test_telemetry_words(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(command: list[str]) -> list[str] | None:
        asked.append(command)
        if "compute-apps" in command[3]:
            return ["101", "202"]
        return None if "clocks_event_reasons" in command[3] else [ROW]

    monkeypatch.setattr(telemetry, "_run", run)
    sample = telemetry.read("GPU-1")
    assert sample is not None and "clocks_throttle_reasons.active" in asked[-1][3]
    assert sample.values["sm_mhz"] == 1980 and sample.values["power_w"] == 612.3
    assert sample.reasons == ("power cap", "thermal (software)")
    monitor = telemetry.Monitor("GPU-1")
    monitor.start()
    seen = monitor.stop()
    assert seen.sm_mhz_max == 1980 and seen.other_processes == 1
    assert seen.faults == (
        "the device was throttled: thermal (software)",
        "1 other process(es) used the device",
    )
    json.dumps(seen.to_json())


def test_telemetry_without_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert telemetry.read("0") is None
    monitor = telemetry.Monitor("0")
    monitor.start()
    seen = monitor.stop()
    assert (seen.before, seen.samples, seen.faults) == (None, 0, ())


def test_device_ids_are_spelled_as_nvidia_smi_does() -> None:
    assert bench._uuid("00112233445566778899aabbccddeeff") == "00112233-4455-6677-8899-aabbccddeeff"
