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
from lowering.runtime import bench, device, errors, host, telemetry, tensor_map
from lowering.timeline import POINTER

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


POINTERS = {"x": 0x7F0000000400, "y": 0x7F0000001230}


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


def test_the_timeline_reaches_an_instrumented_kernel(gpu: device.Device, cu: Any) -> None:
    args = (Arg("tensor", "y"), Arg("timeline"), Arg("timeline_capacity", value=64), Arg("timeline_stride", value=4))
    marked = a_plan(args=args, tensor_maps={})
    with pytest.raises(CakeError, match="no device pointer for %timeline"):
        host.prepare(gpu, CUBIN, marked, POINTERS)
    memory = gpu.alloc_host(4096)
    assert memory.read() == bytes(4096), "zeroed"
    prepared = host.prepare(gpu, CUBIN, marked, {**POINTERS, POINTER: memory.pointer})
    prepared.launch(16)
    at = (ctypes.c_void_p * 4).from_address(cu.launches[0][2])
    assert ctypes.c_uint64.from_address(at[1]).value == memory.pointer
    assert ctypes.c_uint32.from_address(at[2]).value == 64 * 8 // 2, "the ring is half a block"
    assert ctypes.c_uint32.from_address(at[3]).value == 3, "CTAs with none of these bits record"
    ctypes.memset(memory.address + 8, 7, 1)
    assert memory.read()[8] == 7
    memory.free()
    assert memory.address not in cu.memory


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


def test_base_pointers_are_aligned_to_what_emitted_code_assumes(gpu: device.Device) -> None:
    with pytest.raises(CakeError, match="the base pointer of y is not aligned to 16 bytes"):
        host.prepare(gpu, CUBIN, a_plan(), {**POINTERS, "y": 0x7F0000001238})


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
    assert (result.mode, result.method, result.valid) == ("warm", "graph", True)
    assert result.notes == ("conditions not recorded: the monitor is off",)
    assert result.timings[0].summary.median == pytest.approx(10, rel=0.01)
    assert result.timings[1].summary.median == pytest.approx(12, rel=0.01)
    assert result.timings[0].batch == 20 and len(result.timings[0].samples_us) == 9
    (comparison,) = result.comparisons
    assert (comparison.baseline, comparison.verdict) == ("theirs", "faster")
    assert [t.nodes for t in result.timings] == [{"kernel": 1.0}] * 2 and result.timings[0].sm_mhz is None
    assert comparison.ratio == pytest.approx(1.2, rel=0.01)
    json.dumps(result.to_json(), allow_nan=False)


def test_rounds_alternate_direction(gpu: device.Device, cu: Any) -> None:
    order: list[str] = []
    pair = [
        candidate(cu, name, 10.0, before_round=lambda n, name=name: order.append(f"{name}{n}")) for name in ("a", "b")
    ]
    bench.bench(gpu, pair, bench.Settings(**{**QUICK, "rounds": 5}))
    assert order == ["a0", "b0", "b1", "a1", "a2", "b2", "b3", "a3", "a4", "b4"]


def test_cold_flushes_before_each_launch_on_each_buffer_set(
    gpu: device.Device, cu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    launches = [lambda _, i=i: (seen.append(f"launch{i}"), cu.work(100.0 + 20 * i)) for i in range(2)]
    flushed: list[int] = []
    fill, replay = gpu.fill, device.Graph.launch

    def filled(pointer: int, nbytes: int, pattern: int, width: int = 1, stream: int = 0) -> None:
        flushed.append(nbytes)
        fill(pointer, nbytes, pattern, width, stream)

    def replayed(graph: device.Graph, stream: int) -> None:
        seen.append("flush")
        replay(graph, stream)

    monkeypatch.setattr(gpu, "fill", filled)
    monkeypatch.setattr(gpu, "copy_device", lambda to, source, nbytes, stream=0: flushed.append(nbytes))
    monkeypatch.setattr(device.Graph, "launch", replayed)
    monkeypatch.setattr(bench, "FLUSH_CHUNK", 4096)
    result = bench.bench(gpu, [candidate(cu, "a", 0, launches=launches)], bench.Settings(**QUICK, mode="cold"))
    (timing,) = result.timings
    assert (result.method, timing.batch, len(timing.samples_us)) == ("events", 4, 9)
    assert seen[seen.index("flush") :] == ["flush", "launch0", "flush", "launch1"] * 9 * 3, (
        "one pass of three is untimed"
    )
    written, *read = [n for n in flushed if n]
    assert written > 2 * (1 << 16) and sum(read) > 2 * (1 << 16) - 8192, "the flushed bytes are read again"
    assert timing.summary.median == pytest.approx(110, rel=0.01), "a sample is the mean over the buffer sets"
    seen.clear()
    monkeypatch.setattr(bench, "LEAD_LIMIT_MS", 0.1)
    (timing,) = bench.bench(
        gpu, [candidate(cu, "a", 0, launches=launches)], bench.Settings(**QUICK, mode="cold")
    ).timings
    assert timing.batch == 2 and seen[seen.index("flush") :] == ["flush", "launch0", "flush", "launch1"] * 9


def test_the_same_batch_runs_untimed_before_each_warm_sample(
    gpu: device.Device, cu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays: list[int] = []
    replay = device.Graph.launch

    def replayed(graph: device.Graph, stream: int) -> None:
        replays.append(id(graph))
        replay(graph, stream)

    monkeypatch.setattr(device.Graph, "launch", replayed)
    pair = [candidate(cu, "a", 10.0), candidate(cu, "b", 10.0)]
    bench.bench(gpu, pair, bench.Settings(**{**QUICK, "rounds": 8}))
    a, b = replays[:2]
    assert replays[2:] == [a, a, b, b, b, b, a, a] * 4
    replays.clear()
    monkeypatch.setattr(bench, "LEAD_LIMIT_MS", 0.01)
    bench.bench(gpu, pair[:1], bench.Settings(**{**QUICK, "rounds": 8}))
    assert len(replays) == 1 + 8, "a long batch runs alone"


def test_a_launch_of_other_kernels_than_declared_is_invalid(gpu: device.Device, cu: Any) -> None:
    def twice(stream: int) -> None:
        cu.work(5.0)
        cu.work(5.0)

    honest = bench.bench(gpu, [candidate(cu, "a", 0, launches=[twice], kernels=2)], bench.Settings(**QUICK))
    assert honest.valid and honest.timings[0].nodes == {"kernel": 2.0}
    result = bench.bench(gpu, [candidate(cu, "a", 0, launches=[twice], kernels=1)], bench.Settings(**QUICK))
    assert not result.valid
    assert result.faults == ("a enqueued 40 kernel nodes in 20 launches; 1 kernels each are declared",)


def test_a_batch_too_short_for_the_event_clock_grows_or_is_invalid(gpu: device.Device, cu: Any) -> None:
    short = {**QUICK, "batch_ms": 0.001, "max_batch": 4}
    grown = bench.bench(gpu, [candidate(cu, "a", 1.0)], bench.Settings(**short))
    assert grown.valid and grown.step_us == bench.DOCUMENTED_STEP_US and grown.timings[0].batch >= 100
    cold = bench.bench(gpu, [candidate(cu, "a", 10.0)], bench.Settings(**QUICK, mode="cold"))
    assert "less than 100 steps of 0.5 µs" in cold.faults[0]


def test_too_few_rounds_beside_a_baseline_are_invalid(gpu: device.Device, cu: Any) -> None:
    few = bench.Settings(**{**QUICK, "rounds": 7})
    pair = [candidate(cu, "a", 10.0), candidate(cu, "b", 10.0)]
    assert "7 rounds are too few" in bench.bench(gpu, pair, few).faults[0]
    assert bench.bench(gpu, pair[:1], few).valid


class Watch:
    """A monitor that says what the test wants."""

    def __init__(self, seen: telemetry.Telemetry, clocks: list[float]) -> None:
        self.seen, self.clocks = seen, clocks

    def start(self) -> None:
        return None

    def sm_mhz(self) -> float:
        self.clocks.append(self.clocks.pop(0))
        return self.clocks[-1]

    def stop(self) -> telemetry.Telemetry:
        return self.seen


@pytest.mark.parametrize(
    ("clocks", "verdict"), [([1980.0, 1980.0], "faster"), ([1980.0, 1800.0, 1800.0, 1980.0], "inconclusive")]
)
def test_clocks_are_read_with_every_sample(
    gpu: device.Device, cu: Any, monkeypatch: pytest.MonkeyPatch, clocks: list[float], verdict: str
) -> None:
    watch = Watch(telemetry.Telemetry(readings=1), list(clocks))
    monkeypatch.setattr(telemetry, "Monitor", lambda uuid: watch)
    settings = bench.Settings(**{**QUICK, "monitor": True, "rounds": 8})
    result = bench.bench(gpu, [candidate(cu, "a", 10.0), candidate(cu, "b", 10.9)], settings)
    assert [t.sm_mhz for t in result.timings] == [1980.0, clocks[1]]
    assert result.comparisons[0].verdict == verdict and result.notes == ()


def test_what_the_monitor_saw_invalidates(gpu: device.Device, cu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(telemetry.Telemetry(reasons={"power brake": 0.1}, readings=9), [1980.0])
    monkeypatch.setattr(telemetry, "Monitor", lambda uuid: watch)
    result = bench.bench(gpu, [candidate(cu, "a", 10.0)], bench.Settings(**{**QUICK, "monitor": True}))
    assert result.faults == ("the device was throttled: power brake",) and not result.valid
    assert result.telemetry is not None and result.telemetry["reasons"] == ["power brake"]


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
    assert bench.event_timer(gpu, 0) == (0, bench.DOCUMENTED_STEP_US)
    first, second = gpu.event(), gpu.event()
    first.record(0)
    cu.work(1000)
    second.record(0)
    assert second.ms_since(first) == pytest.approx(1, rel=0.02) and second.done()
    cu.fail["cuEventQuery"] = cu.CUresult.CUDA_ERROR_NOT_READY
    assert not second.done()
