"""libcuda played in Python: it reads the structures that the host path lays out, as the driver would, and writes down launches.

`FakeCuda` stands for `lowering.runtime.libcuda.libcuda()`. Tensor maps are encoded as a number of the map; a launch records the values
that the kernel would get.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, field
from typing import Any

from lowering.runtime import libcuda as L

PRIMARY = 0x1000
"""The primary context of device i is PRIMARY + i."""


@dataclass
class Kernel:
    name: str
    attributes: dict[int, int] = field(default_factory=dict)


@dataclass
class Launched:
    """What a launch was given. params: one value per kernel parameter, as (kind, value): kinds are asked for by the test."""

    kernel: str
    grid: int
    threads: int
    smem: int
    stream: int
    attributes: dict[int, int]
    addresses: list[int]
    context: int

    def u64(self, i: int) -> int:
        return ctypes.c_uint64.from_address(self.addresses[i]).value

    def i32(self, i: int) -> int:
        return ctypes.c_int32.from_address(self.addresses[i]).value


class FakeCuda:
    """See the module. `parameters`: how many parameters each kernel symbol has, for reading its list."""

    def __init__(self, devices: int = 2) -> None:
        self.devices = devices
        self.local = threading.local()
        self.launches: list[Any] = []
        self.maps: dict[int, dict[str, Any]] = {}
        self.loaded: list[bytes] = []
        self.symbols: list[str] = []
        self.kernels: dict[int, Kernel] = {}
        self.parameters: dict[str, int] = {}
        self.fail: dict[str, int] = {}
        self.relaxed = 0
        self.pushed = 0
        self.resident = 4
        self.allocated: list[int] = []
        self.allocated_in: list[int] = []
        self.pointer_devices: dict[int, int] = {}
        self.capability = {
            L.MULTIPROCESSOR_COUNT: 132,
            L.CAPABILITY_MAJOR: 9,
            L.CAPABILITY_MINOR: 0,
            L.SMEM_OPTIN: 232448,
        }

    # context
    @property
    def stack(self) -> list[int]:
        if not hasattr(self.local, "stack"):
            self.local.stack = []
        return self.local.stack

    def cuCtxGetCurrent(self, out: Any) -> int:
        out._obj.value = self.stack[-1] if self.stack else None
        return self.fail.get("cuCtxGetCurrent", 0)

    def current_context(self, where: Any) -> int:
        ctypes.c_void_p.from_address(where.value).value = self.stack[-1] if self.stack else None
        return 0

    def cuCtxGetDevice(self, out: Any) -> int:
        if not self.stack:
            return 201
        out._obj.value = (self.stack[-1] - PRIMARY) % 0x100
        return 0

    def cuCtxPushCurrent_v2(self, context: int) -> int:
        self.stack.append(context)
        self.pushed += 1
        return 0

    def cuCtxPopCurrent_v2(self, out: Any) -> int:
        self.stack.pop()
        return 0

    def cuDevicePrimaryCtxRetain(self, out: Any, device: int) -> int:
        out._obj.value = PRIMARY + device
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        mode._obj.value, self.relaxed = self.relaxed, mode._obj.value
        return 0

    # device
    def cuDeviceGetCount(self, out: Any) -> int:
        out._obj.value = self.devices
        return self.fail.get("cuDeviceGetCount", 0)

    def cuDeviceGet(self, out: Any, ordinal: int) -> int:
        out._obj.value = ordinal
        return 0

    def cuDeviceGetAttribute(self, out: Any, which: int, device: int) -> int:
        out._obj.value = self.capability[which]
        return 0

    def cuDeviceGetName(self, out: Any, size: int, device: int) -> int:
        out.value = b"Fake H200"
        return 0

    def cuGetErrorName(self, status: int, out: Any) -> int:
        names = {1: b"CUDA_ERROR_INVALID_VALUE", 2: b"CUDA_ERROR_OUT_OF_MEMORY", 700: b"CUDA_ERROR_ILLEGAL_ADDRESS"}
        out._obj.value = names.get(status)
        return 0 if status in names else 1

    # memory
    def cuPointerGetAttribute(self, out: Any, which: int, pointer: int) -> int:
        if which != L.DEVICE_ORDINAL or pointer not in self.pointer_devices:
            return 1
        out._obj.value = self.pointer_devices[pointer]
        return 0

    def cuMemAlloc_v2(self, out: Any, size: int) -> int:
        assert self.relaxed == L.CAPTURE_RELAXED
        self.allocated_in.append(self.stack[-1])
        out._obj.value = 0x7000000 + 0x1000000 * len(self.allocated)
        self.allocated.append(size)
        return self.fail.get("cuMemAlloc_v2", 0)

    def _fill(self, width: int) -> Any:
        def run(pointer: int, pattern: int, count: int, stream: int) -> int:
            self.launches.append(("fill", width, pointer, pattern, count, stream))
            return self.fail.get("fill", 0)

        return run

    @property
    def cuMemsetD8Async(self) -> Any:
        return self._fill(1)

    @property
    def cuMemsetD16Async(self) -> Any:
        return self._fill(2)

    @property
    def cuMemsetD32Async(self) -> Any:
        return self._fill(4)

    # code
    def cuLibraryLoadData(self, out: Any, image: bytes, *rest: Any) -> int:
        assert rest == (None, None, 0, None, None, 0) and self.relaxed == L.CAPTURE_RELAXED
        self.loaded.append(image)
        out._obj.value = 0x50000 + len(self.loaded)
        return self.fail.get("cuLibraryLoadData", 0)

    def cuLibraryGetKernel(self, out: Any, library: Any, name: bytes) -> int:
        handle = 0x60000 + len(self.kernels)
        self.kernels[handle] = Kernel(name.decode())
        out._obj.value = handle
        return 0

    def cuKernelGetAttribute(self, out: Any, which: int, kernel: int, device: int) -> int:
        out._obj.value = {L.SHARED_SIZE_BYTES: 0, L.MAX_THREADS_PER_BLOCK: 1024}[which]
        return 0

    def cuKernelSetAttribute(self, which: int, value: int, kernel: int, device: int) -> int:
        self.kernels[kernel].attributes[which] = value
        return 0

    def cuKernelGetFunction(self, out: Any, kernel: int) -> int:
        assert self.stack, "needs a context"
        out._obj.value = kernel + 0x1000
        return 0

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, out: Any, function: Any, threads: int, smem: int) -> int:
        out._obj.value = self.resident
        return 0

    def cuOccupancyMaxActiveClusters(self, out: Any, function: Any, config: int) -> int:
        assert L.Config.from_address(config).count >= 1
        out._obj.value = self.resident
        return 0

    def cuTensorMapEncodeTiled(
        self, out: int, dtype: int, rank: int, pointer: int, dims: Any, strides: Any, box: Any, steps: Any, *tail: int
    ) -> int:
        assert out % 64 == 0 and len(tail) == 4
        if not self.stack:
            return L.INVALID_CONTEXT
        number = len(self.maps) + 1
        self.maps[number] = {
            "dtype": dtype, "pointer": pointer, "dims": list(dims), "strides": list(strides)[: rank - 1], "box": list(box), "tail": tail,
        }  # fmt: skip
        ctypes.c_uint64.from_address(out).value = number
        return self.fail.get("cuTensorMapEncodeTiled", 0)

    def cuLaunchKernelEx(self, config: Any, kernel: Any, params: Any, extra: Any) -> int:
        status = self.fail.get("cuLaunchKernelEx", 0)
        if status:
            return status
        assert extra is None
        if not self.stack:
            return L.INVALID_CONTEXT
        c = L.Config.from_address(config.value)
        name = self.kernels[kernel.value].name
        count = self.parameters.get(name, 0)
        found = {c.attributes[i].id: c.attributes[i].value.flag for i in range(c.count)}
        addresses = list((ctypes.c_void_p * count).from_address(params.value))
        # the driver copies arguments at the call: so does this, for what may change later
        self.launches.append(
            Launched(name, c.grid.x, c.block.x, c.smem, c.stream or 0, found, [self._copy(a) for a in addresses], self.stack[-1])
        )  # fmt: skip
        return 0

    def _copy(self, address: int | None) -> int:
        keep = ctypes.create_string_buffer(8)
        assert address
        ctypes.memmove(keep, address, 4)
        try:
            ctypes.memmove(keep, address, 8)
        finally:
            self._kept = [*getattr(self, "_kept", []), keep]
        return ctypes.addressof(keep)
