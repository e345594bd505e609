"""A device over host memory with the interface of lowering.runtime.device.Device that evaluation uses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cake_ir.diagnostics import CakeError, error
from corpus.gpu_buffers import Env
from lowering.runtime.device import DeviceInfo

GUARD_BYTE = 0x77


def at(pointer: int, nbytes: int) -> np.ndarray:
    """Bytes at an address."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer)) if nbytes else np.zeros(0, np.uint8)


class FakeBuffer:
    def __init__(self, nbytes: int, guard: int, offset: int = 0) -> None:
        self.raw = np.full(nbytes + 2 * guard + 512, GUARD_BYTE, np.uint8)
        start = self.raw.ctypes.data + guard
        self.pointer = start + -start % 256 + offset
        self.nbytes, self.guard = nbytes, self.pointer - self.raw.ctypes.data

    def write(self, data: np.ndarray) -> None:
        assert data.nbytes == self.nbytes
        at(self.pointer, self.nbytes)[:] = data

    def read_into(self, array: np.ndarray) -> None:
        array[:] = at(self.pointer, self.nbytes)

    def poison(self, pattern: int, width: int = 1) -> None:
        at(self.pointer, self.nbytes)[:] = pattern

    def damage(self) -> list[int]:
        hit = np.flatnonzero(self.raw != GUARD_BYTE) - self.guard
        return hit[(hit < 0) | (hit >= self.nbytes)].tolist()

    def free(self, *, ignore_errors: bool = False) -> None:
        self.freed = True


class FakeEvent:
    """No time goes by on this device."""

    def record(self, stream: int) -> None: ...

    def wait(self) -> None: ...

    def close(self) -> None: ...

    def ms_since(self, earlier: FakeEvent) -> float:
        return 0.0


class FakeDevice:
    """`fault` makes the next synchronize raise it, and every later one too."""

    def __init__(self) -> None:
        self.buffers: list[FakeBuffer] = []
        self.fault: CakeError | None = None

    def alloc(self, nbytes: int, *, guard: int = 4096, offset: int = 0) -> FakeBuffer:
        self.buffers.append(FakeBuffer(nbytes, guard, offset))
        return self.buffers[-1]

    def synchronize(self) -> None:
        if self.fault:
            raise self.fault

    def healthy(self) -> bool:
        return self.fault is None

    def copy_device(self, to: int, source: int, nbytes: int, stream: int = 0) -> None:
        at(to, nbytes)[:] = at(source, nbytes)

    def fill(self, pointer: int, nbytes: int, pattern: int, width: int = 1, stream: int = 0) -> None:
        at(pointer, nbytes)[:] = pattern

    def event(self) -> FakeEvent:
        return FakeEvent()

    def free_bytes(self) -> int:
        return 1 << 30

    def attribute(self, name: str) -> int:
        return {"GLOBAL_MEMORY_BUS_WIDTH": 6016}[name]

    def info(self) -> DeviceInfo:
        return DeviceInfo(0, "Fake H200", "00", (9, 0), 132, 1 << 37, 50 << 20, 1, 1, 1980, 3201, True, "13.0")

    def break_context(self) -> None:
        self.fault = CakeError(error("lowering/device-fault", "hardware", "CUDA_ERROR_ILLEGAL_ADDRESS"))


Body = Callable[[dict[str, Any], Mapping[str, int]], None]


def env_for(body: Callable[[FakeDevice, Mapping[str, int]], None]) -> Env:
    """A machine whose only kernel is `body(device, pointers)`."""
    device = FakeDevice()
    return Env(device, None, lambda cubin, plan, pointers: lambda stream: body(device, pointers))
