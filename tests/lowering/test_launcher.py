"""The launcher against the CUDA headers' numbers and a played driver: what a kernel would be given, call after call."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest

from cake_ir.fault import CakeError
from lowering.plan import Arg, LaunchPlan, TensorMapPlan
from lowering.recipe import Concrete, Fill, Launch
from lowering.runtime import launcher, tensor_map
from lowering.runtime import libcuda as L
from lowering.runtime.launcher import Gpu, Prepared
from tests.cake_mcp.fake_cuda import PRIMARY, FakeCuda, Launched

KEY, OTHER = "a" * 64, "b" * 64


def test_numbers_are_those_of_the_cuda_headers() -> None:
    from cuda.bindings import driver as cu

    launch, device, function = cu.CUlaunchAttributeID, cu.CUdevice_attribute, cu.CUfunction_attribute
    assert launch.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION == L.CLUSTER_DIMENSION
    assert launch.CU_LAUNCH_ATTRIBUTE_COOPERATIVE == L.COOPERATIVE
    assert launch.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION == L.PROGRAMMATIC_STREAM_SERIALIZATION
    assert device.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT == L.MULTIPROCESSOR_COUNT
    assert device.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == L.CAPABILITY_MAJOR
    assert device.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == L.CAPABILITY_MINOR
    assert device.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN == L.SMEM_OPTIN
    assert function.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK == L.MAX_THREADS_PER_BLOCK
    assert function.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES == L.SHARED_SIZE_BYTES
    assert function.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == L.MAX_DYNAMIC_SHARED
    assert function.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED == L.NON_PORTABLE_CLUSTER
    assert cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL == L.DEVICE_ORDINAL
    assert cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED == L.CAPTURE_RELAXED
    assert cu.CUresult.CUDA_ERROR_INVALID_CONTEXT == L.INVALID_CONTEXT
    kinds = {"bf16": "BFLOAT16", "tf32": "TFLOAT32"} | {f"f{n}": f"FLOAT{n}" for n in (16, 32, 64)}
    kinds |= {f"u{n}": f"UINT{n}" for n in (8, 16, 32, 64)} | {f"i{n}": f"INT{n}" for n in (32, 64)}
    for ours, theirs in kinds.items():
        assert tensor_map.DATA_TYPE[ours] == getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{theirs}")
    for ours, theirs in {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}.items():
        assert tensor_map.SWIZZLE[ours] == getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{theirs}")
    assert cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B == tensor_map.L2_PROMOTION
    assert tensor_map.FILL == {"zero": 0, "nan": 1} and tensor_map.INTERLEAVE_NONE == 0


def test_structures_have_the_layout_of_the_cuda_headers() -> None:
    """From cuda.h of CUDA 12: a union of 64 bytes after an id padded to 8, and a stream at the first 8-byte boundary."""
    assert ctypes.sizeof(L.Attribute) == 72 and L.Attribute.value.offset == 8
    assert ctypes.sizeof(L.Config) == 56
    assert [getattr(L.Config, f).offset for f in ("grid", "block", "smem", "stream", "attributes", "count")] == [
        0,
        12,
        24,
        32,
        40,
        48,
    ]


def plan(symbol: str = "k", **more: Any) -> LaunchPlan:
    fields: dict[str, Any] = {
        "symbol": symbol, "cubin_sha256": "0" * 64, "grid": 7, "cluster": 1, "threads": 128, "smem_bytes": 5000, "pdl": False,
        "cooperative": False,
        "args": (Arg("tensor", "y"), Arg("tensor_map", "x_map"), Arg("i32", value=-3), Arg("tensor", "w")),
        "tensor_maps": {"x_map": TensorMapPlan("x", "bf16", (64, 10), (128,), (64, 8), 128)},
    }  # fmt: skip
    return LaunchPlan(**fields | more)


@pytest.fixture
def cu() -> FakeCuda:
    cu = FakeCuda()
    cu.parameters = {"k": 4, "plain": 1}
    cu.stack.append(PRIMARY)
    return cu


def prepared(cu: FakeCuda, *steps: Fill | Launch, device: int = 0) -> Prepared:
    made = Concrete({"x": (10, 64), "y": (10,)}, {"w": 0, "v": 512}, 768, steps or (Launch(plan(), KEY),))
    return Prepared(Gpu(device, cu), made, ["x", "y"], {KEY: lambda: b"image", OTHER: lambda: b"other"})


def kernel(cu: FakeCuda, i: int = -1) -> Launched:
    found = cu.launches[i]
    assert isinstance(found, Launched)
    return found


def test_a_launch_passes_pointers_maps_and_numbers(cu: FakeCuda) -> None:
    prepared(cu).launch((0x1000, 0x2000), 0x9000, 5)
    got = kernel(cu)
    assert (got.kernel, got.grid, got.threads, got.smem, got.stream, got.attributes) == ("k", 7, 128, 5000, 5, {})
    assert got.u64(0) == 0x2000 and got.i32(2) == -3 and got.u64(3) == 0x9000
    made = cu.maps[got.u64(1)]
    assert (
        made["pointer"] == 0x1000 and made["dims"] == [64, 10] and made["strides"] == [128] and made["box"] == [64, 8]
    )
    assert (
        cu.kernels[0x60000].attributes == {L.MAX_DYNAMIC_SHARED: 5000} and cu.loaded == [b"image"] and cu.relaxed == 0
    )


def test_only_what_changed_is_done_again(cu: FakeCuda) -> None:
    p = prepared(cu)
    for x, y, stream in [
        (0x1000, 0x2000, 1),
        (0x1000, 0x2000, 1),
        (0x1000, 0x3000, 2),
        (0x4000, 0x3000, 2),
        (0x1000, 0x3000, 1),
    ]:
        p.launch((x, y), 0x9000, stream)
        got = kernel(cu)
        assert (cu.maps[got.u64(1)]["pointer"], got.u64(0), got.stream) == (x, y, stream)
    assert len(cu.maps) == 2 and len(cu.loaded) == 1  # a map per pointer of x


def test_maps_are_forgotten_in_the_end(cu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "MAPS_KEPT", 4)
    p = prepared(cu)
    for i in [*range(1, 10), 9, 8, 1]:
        p.launch((0x1000 * i, 0x2000), 0x9000, 0)
        assert cu.maps[kernel(cu).u64(1)]["pointer"] == 0x1000 * i
    assert len(cu.maps) == 10 and len(p._free[0].maps[0].known) == 4


def test_steps_run_in_order_on_one_stream_with_their_attributes(cu: FakeCuda) -> None:
    plain = plan("plain", args=(Arg("tensor", "v"),), tensor_maps={}, smem_bytes=0, pdl=True, cluster=16, grid=16)
    together = plan("plain", args=(Arg("tensor", "v"),), tensor_maps={}, smem_bytes=0, cooperative=True)
    p = prepared(cu, Fill("v", 0x3F80, 2, 12), Launch(plain, OTHER), Launch(plan(), KEY), Launch(together, OTHER))
    p.launch((0x1000, 0x2000), 0x9000, 3)
    assert cu.launches[0] == ("fill", 2, 0x9200, 0x3F80, 12, 3)
    assert [x.kernel for x in cu.launches[1:]] == ["plain", "k", "plain"] and cu.loaded == [b"other", b"image"]
    first, second, third = (kernel(cu, i) for i in (1, 2, 3))
    assert (
        first.attributes == {L.CLUSTER_DIMENSION: 16, L.PROGRAMMATIC_STREAM_SERIALIZATION: 1}
        and second.attributes == {}
    )
    assert third.attributes == {L.COOPERATIVE: 1} and first.u64(0) == 0x9200 and third.stream == 3
    assert {a for k in cu.kernels.values() for a in k.attributes} == {L.NON_PORTABLE_CLUSTER, L.MAX_DYNAMIC_SHARED}


def test_the_callers_context_is_kept_where_it_is_of_the_device(cu: FakeCuda) -> None:
    p = prepared(cu)
    own = PRIMARY + 0x100  # another context of device 0
    for stack, context in [([PRIMARY], PRIMARY), ([own], own), ([PRIMARY + 1], PRIMARY), ([], PRIMARY)]:
        cu.stack[:] = stack
        p.launch((0x1000, 0x2000), 0x9000, 0)
        assert kernel(cu).context == context and cu.stack == stack
    cu.stack[:] = []
    prepared(cu, device=1).launch((0x1000, 0x2000), 0x9000, 0)
    assert kernel(cu).context == PRIMARY + 1 and cu.stack == []


@pytest.mark.parametrize(
    ("fail", "rule", "words"),
    [
        ({"cuLaunchKernelEx": 1}, "lowering/launch-refused", "launch k: CUDA_ERROR_INVALID_VALUE"),
        ({"cuLaunchKernelEx": 700}, "lowering/device-fault", "cannot use the GPU any more"),
        ({"cuTensorMapEncodeTiled": 1}, "lowering/launch-refused", "launch k: CUDA_ERROR_INVALID_VALUE"),
        ({"cuLaunchKernelEx": 4242}, "lowering/cuda-error", "CUDA error 4242"),
    ],
)
def test_a_refusal_of_the_driver_is_a_diagnostic(cu: FakeCuda, fail: dict[str, int], rule: str, words: str) -> None:
    p = prepared(cu)
    cu.fail = fail
    with pytest.raises(CakeError, match=words) as caught:
        p.launch((0x1000, 0x2000), 0x9000, 0)
    assert caught.value.diagnostic.rule == rule
    cu.fail = {}
    p.launch((0x1000, 0x2000), 0x9000, 0)  # and nothing stays half done
    assert cu.maps[kernel(cu).u64(1)]["pointer"] == 0x1000


def test_a_misaligned_tensor_is_not_launched(cu: FakeCuda) -> None:
    p = prepared(cu)
    assert p.launch((0x1000, 0x2000), 0x9000, 0) == 0
    assert p.launch((0x1000, 0x2002), 0x9000, 0) == launcher.MISALIGNED and len(cu.launches) == 1
    assert p.launch((0x1000, 0x2000), 0x9000, 0) == 0 and kernel(cu).u64(0) == 0x2000


def test_a_device_that_is_alone_is_asked_for_its_context_only_where_there_is_none() -> None:
    """The driver itself says that a thread has no context."""
    cu = FakeCuda(devices=1)
    cu.parameters = {"k": 4}
    cu.stack.append(PRIMARY)
    p = prepared(cu)
    asked: list[int] = []
    cu.current_context = lambda where: asked.append(1) or 0  # type: ignore[method-assign]
    own = PRIMARY + 0x100
    for stack, context in [([PRIMARY], PRIMARY), ([own], own), ([], PRIMARY)]:
        cu.stack[:] = stack
        p.launch((0x1000 * len(cu.launches) + 0x1000, 0x2000), 0x9000, 0)
        assert kernel(cu).context == context and cu.stack == stack
    assert not asked and len(cu.launches) == 3


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"smem_bytes": 300000}, "asks for 300000 bytes of shared memory, Fake H200 allows 232448"),
        ({"cooperative": True, "grid": 4 * 132 + 1}, "cooperative grid of 529 blocks, 528 fit"),
        ({"cooperative": True, "cluster": 2, "grid": 10}, "cooperative grid of 10 blocks, 8 fit"),
    ],
)
def test_what_cannot_run_is_refused_before_it_is_tried(cu: FakeCuda, more: dict[str, Any], words: str) -> None:
    with pytest.raises(CakeError, match=words) as caught:
        prepared(cu, Launch(plan(**more), KEY))
    assert caught.value.diagnostic.rule == "lowering/launch-refused"


def test_a_device_that_is_not_there(cu: FakeCuda) -> None:
    with pytest.raises(CakeError, match="device 2 was asked for, 2 found") as caught:
        Gpu(2, cu)
    assert caught.value.diagnostic.rule == "lowering/no-gpu"


def test_workspaces_are_kept_by_stream_and_never_taken_back(cu: FakeCuda) -> None:
    gpu = Gpu(0, cu)
    first = gpu.workspace(1, 1000)
    assert gpu.workspace(1, 500) == first and gpu.workspace(2, 500) != first
    cu.stack[:] = [PRIMARY + 1]  # the caller's context is of another device
    assert gpu.workspace(1, 1001) != first and cu.allocated == [1000, 500, 2000]
    assert cu.allocated_in == [PRIMARY] * 3 and cu.stack == [PRIMARY + 1]


def test_threads_do_not_mix_their_arguments(cu: FakeCuda) -> None:
    p = prepared(cu)

    def work(i: int) -> None:
        for _ in range(300):
            p.launch((0x1000 * i, 0x100000 * i), 0x9000, i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(cu.launches) == 1200
    for got in cu.launches:
        i = got.stream
        assert got.u64(0) == 0x100000 * i and cu.maps[got.u64(1)]["pointer"] == 0x1000 * i


def test_without_a_driver_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(L, "LIBRARY", "libcuda-that-is-not-there.so.1")
    with pytest.raises(CakeError, match="no NVIDIA driver is installed") as caught:
        L.LibCuda()
    assert caught.value.diagnostic.rule == "lowering/no-gpu"
