"""A driver that keeps "device memory" in the process and time on a counter, for runtime tests without a GPU.

Enums and structures are the real bindings'; only the calls are replaced. Kernels take the time the test gives them.
"""

from __future__ import annotations

import ctypes
import itertools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from cuda.bindings import driver as real

OK = real.CUresult.CUDA_SUCCESS
ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": 132,
    "L2_CACHE_SIZE": 1 << 16, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472, "CLOCK_RATE": 1980000, "MEMORY_CLOCK_RATE": 3201000,
    "ECC_ENABLED": 1, "GLOBAL_MEMORY_BUS_WIDTH": 6016,
}  # fmt: skip


class FakeDriver:
    """Looks like `cuda.bindings.driver`."""

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.launches: list[Any] = []
        self.function_attributes: dict[str, int] = {}
        self.set_attributes: dict[str, int] = {}
        self.fail: dict[str, Any] = {}  # call name -> CUresult it answers with
        self.resident = 1
        self.now_us = 0.0
        self.launch_us = 10.0
        self.noise = random.Random(1)
        self.capturing: list[tuple[float, Callable[[], None]]] | None = None
        self.maps: list[dict[str, Any]] = []
        self._ids = itertools.count(16)
        self._encode = _encoder(self.maps)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("CU"):
            return getattr(real, name)
        raise AttributeError(name)

    def _status(self, call: str) -> Any:
        return self.fail.get(call, OK)

    # devices and context
    def cuDeviceGetCount(self) -> Any:
        return OK, 1

    def cuDeviceGet(self, index: int) -> Any:
        return OK, index

    def cuDevicePrimaryCtxRetain(self, device: Any) -> Any:
        return OK, "context"

    def cuDevicePrimaryCtxRelease(self, device: Any) -> Any:
        return (OK,)

    def cuCtxSetCurrent(self, context: Any) -> Any:
        return (OK,)

    def cuCtxSynchronize(self) -> Any:
        return (self._status("cuCtxSynchronize"),)

    def cuDeviceGetAttribute(self, which: Any, device: Any) -> Any:
        return OK, ATTRIBUTES[which.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def cuDeviceGetName(self, length: int, device: Any) -> Any:
        return OK, b"Fake H200\0\0"

    def cuDeviceGetUuid(self, device: Any) -> Any:
        return OK, SimpleNamespace(bytes=bytes(range(16)))

    def cuDriverGetVersion(self) -> Any:
        return OK, 13000

    def cuMemGetInfo(self) -> Any:
        return OK, 1 << 30, 1 << 30

    def cuDeviceTotalMem(self, device: Any) -> Any:
        return OK, 1 << 30

    # memory
    def cuMemAlloc(self, size: int) -> Any:
        if self._status("cuMemAlloc") != OK:
            return self._status("cuMemAlloc"), None
        raw = ctypes.create_string_buffer(size + 512)
        address = ctypes.addressof(raw) + -ctypes.addressof(raw) % 512
        self.memory[address] = raw
        return OK, real.CUdeviceptr(address)

    def cuMemFree(self, pointer: Any) -> Any:
        del self.memory[int(pointer)]
        return (OK,)

    def cuMemHostAlloc(self, size: int, flags: int) -> Any:
        assert flags == real.CU_MEMHOSTALLOC_DEVICEMAP
        raw = ctypes.create_string_buffer(b"\xa5" * size, size)
        self.memory[ctypes.addressof(raw)] = raw
        return OK, ctypes.addressof(raw)

    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> Any:
        return OK, real.CUdeviceptr(address)

    def cuMemFreeHost(self, address: int) -> Any:
        del self.memory[address]
        return (OK,)

    def cuMemcpyHtoD(self, to: Any, source: int, size: int) -> Any:
        ctypes.memmove(int(to), source, size)
        return (OK,)

    def cuMemcpyDtoH(self, to: int, source: Any, size: int) -> Any:
        ctypes.memmove(to, int(source), size)
        return (self._status("cuMemcpyDtoH"),)

    def cuMemcpyDtoDAsync(self, to: Any, source: Any, size: int, stream: Any) -> Any:
        ctypes.memmove(int(to), int(source), size)
        return (OK,)

    def _fill(self, pointer: Any, pattern: int, count: int, width: int) -> Any:
        ctypes.memmove(int(pointer), pattern.to_bytes(width, "little") * count, count * width)
        return (OK,)

    def cuMemsetD8Async(self, pointer: Any, pattern: int, count: int, stream: Any) -> Any:
        return self._fill(pointer, pattern, count, 1)

    def cuMemsetD16Async(self, pointer: Any, pattern: int, count: int, stream: Any) -> Any:
        return self._fill(pointer, pattern, count, 2)

    def cuMemsetD32Async(self, pointer: Any, pattern: int, count: int, stream: Any) -> Any:
        return self._fill(pointer, pattern, count, 4)

    # code
    def cuModuleLoadData(self, image: bytes) -> Any:
        return self._status("cuModuleLoadData"), ("module", image)

    def cuModuleUnload(self, module: Any) -> Any:
        return (OK,)

    def cuModuleGetFunction(self, module: Any, name: bytes) -> Any:
        return OK, ("function", name)

    def cuFuncGetAttribute(self, which: Any, function: Any) -> Any:
        name = which.name.removeprefix("CU_FUNC_ATTRIBUTE_")
        return OK, self.function_attributes.get(name, {"MAX_THREADS_PER_BLOCK": 1024}.get(name, 0))

    def cuFuncSetAttribute(self, function: Any, which: Any, value: int) -> Any:
        self.set_attributes[which.name.removeprefix("CU_FUNC_ATTRIBUTE_")] = value
        return (OK,)

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function: Any, threads: int, smem: int) -> Any:
        return OK, self.resident

    def cuOccupancyMaxActiveClusters(self, function: Any, config: Any) -> Any:
        return OK, self.resident

    def cuLaunchKernelEx(self, config: Any, function: Any, params: int, extra: int) -> Any:
        self.launches.append((config, function, params))
        self.work(self.launch_us)
        return (self._status("cuLaunchKernelEx"),)

    def work(self, us: float, body: Callable[[], None] = lambda: None) -> None:
        """The body runs and device time goes by, or both are recorded while capturing."""
        if self.capturing is not None:
            self.capturing.append((us, body))
        else:
            body()
            self.now_us += us * (1 + self.noise.gauss(0, 0.002))

    # order
    def cuStreamCreate(self, flags: int) -> Any:
        return OK, real.CUstream(next(self._ids))

    def cuStreamDestroy(self, stream: Any) -> Any:
        return (OK,)

    def cuStreamSynchronize(self, stream: Any) -> Any:
        return (self._status("cuStreamSynchronize"),)

    def cuEventCreate(self, flags: int) -> Any:
        return OK, SimpleNamespace(at=0.0)

    def cuEventRecord(self, event: Any, stream: Any) -> Any:
        event.at = self.now_us
        return (OK,)

    def cuEventSynchronize(self, event: Any) -> Any:
        return (self._status("cuEventSynchronize"),)

    def cuEventQuery(self, event: Any) -> Any:
        return (self._status("cuEventQuery"),)

    def cuEventElapsedTime(self, first: Any, second: Any) -> Any:
        return OK, (second.at - first.at) / 1000

    def cuEventDestroy(self, event: Any) -> Any:
        return (OK,)

    def cuStreamBeginCapture(self, stream: Any, mode: Any) -> Any:
        self.capturing = []
        return (OK,)

    def cuStreamEndCapture(self, stream: Any) -> Any:
        recorded, self.capturing = self.capturing, None
        if self._status("cuStreamEndCapture") != OK:
            return self._status("cuStreamEndCapture"), 0
        return OK, _Graph(recorded or [])

    def cuGraphInstantiate(self, graph: Any, flags: int) -> Any:
        return OK, graph

    def cuGraphGetNodes(self, graph: Any, count: int = 0) -> Any:
        return OK, [real.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL for _ in graph.steps[:count]], len(graph.steps)

    def cuGraphNodeGetType(self, node: Any) -> Any:
        return OK, node

    def cuGraphLaunch(self, graph: Any, stream: Any) -> Any:
        for us, body in graph.steps:
            self.work(us, body)
        return (OK,)

    def cuGraphExecDestroy(self, graph: Any) -> Any:
        return (OK,)

    def cuGraphDestroy(self, graph: Any) -> Any:
        return (OK,)

    def cuGetProcAddress(self, name: bytes, version: int, flags: int) -> Any:
        assert name == b"cuTensorMapEncodeTiled"
        return OK, ctypes.cast(self._encode, ctypes.c_void_p).value, 0


class _Graph:
    def __init__(self, steps: list[tuple[float, Callable[[], None]]]) -> None:
        self.steps = steps

    def __int__(self) -> int:
        return id(self)


def _encoder(seen: list[dict[str, Any]]) -> Any:
    """A C function with the driver's signature that writes down its arguments."""
    p, u32, enum = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int

    def encode(out: int, dtype: int, rank: int, pointer: int, dims: int, strides: int, box: int, steps: int,
               interleave: int, swizzle: int, promotion: int, fill: int) -> int:  # fmt: skip
        if out % 64:
            return int(real.CUresult.CUDA_ERROR_INVALID_VALUE)
        u64s = ctypes.POINTER(ctypes.c_uint64)
        u32s = ctypes.POINTER(ctypes.c_uint32)
        seen.append(
            {
                "dtype": real.CUtensorMapDataType(dtype).name.removeprefix("CU_TENSOR_MAP_DATA_TYPE_"),
                "pointer": pointer,
                "dims": ctypes.cast(dims, u64s)[:rank],
                "strides": ctypes.cast(strides, u64s)[: rank - 1],
                "box": ctypes.cast(box, u32s)[:rank],
                "steps": ctypes.cast(steps, u32s)[:rank],
                "swizzle": real.CUtensorMapSwizzle(swizzle).name.removeprefix("CU_TENSOR_MAP_SWIZZLE_"),
                "fill": real.CUtensorMapFloatOOBfill(fill).name.removeprefix("CU_TENSOR_MAP_FLOAT_OOB_FILL_"),
            }
        )
        ctypes.memset(out, 0xAB, 128)
        return 0

    return ctypes.CFUNCTYPE(enum, p, enum, u32, p, p, p, p, p, enum, enum, enum, enum)(encode)
