"""A few floats of the device, read by the host some launches later: no wait for what was enqueued since.

A row is copied to page-locked memory in stream order, with an event behind it; `wait` blocks until that event, and the launches that
follow it keep the device busy meanwhile. Watches are kept for the next use: page-locked memory is slow to get.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from lowering.runtime import libcuda as L
from lowering.runtime.launcher import Gpu

PORTABLE = 1
"""CU_MEMHOSTALLOC_PORTABLE: page-locked for every context."""
NO_TIMING = 2
"""CU_EVENT_DISABLE_TIMING"""
LEAST_BYTES = 4096

_kept: dict[int, list[Watch]] = {}
_lock = Lock()


class Watch:
    """`slots` rows of up to `floats` f32 on their way. A context of the device is current wherever it is used."""

    def __init__(self, gpu: Gpu, floats: int, slots: int) -> None:
        self.gpu, self.floats, self.slots = gpu, max(floats, LEAST_BYTES // 4 // slots), slots
        memory = ctypes.c_void_p()
        status = gpu.cu.cuMemHostAlloc(ctypes.byref(memory), 4 * self.floats * slots, PORTABLE)
        L.check(gpu.cu, status, "allocate page-locked memory")
        self._memory: int = memory.value or 0
        self._events: list[ctypes.c_void_p] = []
        for _ in range(slots):
            event = ctypes.c_void_p()
            L.check(gpu.cu, gpu.cu.cuEventCreate(ctypes.byref(event), NO_TIMING), "create an event")
            self._events.append(event)
        self.posted = self.read = 0

    def post(self, pointer: int, count: int, stream: int) -> None:
        """Copy `count` floats at a device address when the stream gets there. At most `slots` rows may be unread."""
        if self.posted - self.read >= self.slots or count > self.floats:
            raise ValueError(f"{self.slots} rows of {self.floats} floats may be on their way")
        cu, slot = self.gpu.cu, self.posted % self.slots
        to = self._memory + 4 * self.floats * slot
        L.check(cu, cu.cuMemcpyDtoHAsync_v2(to, pointer, 4 * count, stream), "copy to the host")
        L.check(cu, cu.cuEventRecord(self._events[slot], stream), "record an event")
        self.posted += 1

    def wait(self, count: int) -> list[float]:
        """The oldest unread row. Raises CakeError when a kernel before it broke the context."""
        slot = self.read % self.slots
        L.check(self.gpu.cu, self.gpu.cu.cuEventSynchronize(self._events[slot]), "run the kernels of k-means")
        self.read += 1
        return list((ctypes.c_float * count).from_address(self._memory + 4 * self.floats * slot))

    def free(self) -> None:
        """Give the memory back once nothing is on its way to it; errors are those of the work that failed, and not raised again."""
        cu = self.gpu.cu
        for event in self._events:
            cu.cuEventSynchronize(event)
            cu.cuEventDestroy_v2(event)
        cu.cuMemFreeHost(self._memory)


@contextmanager
def watch(gpu: Gpu, floats: int, slots: int) -> Iterator[Watch]:
    """A watch of a device, kept for the next caller if all went well and every row was read."""
    with _lock:
        kept = _kept.setdefault(gpu.ordinal, [])
        found = next((w for w in kept if w.gpu is gpu and w.floats >= floats and w.slots == slots), None)
        if found is not None:
            kept.remove(found)
    own = found or Watch(gpu, floats, slots)
    try:
        yield own
    except BaseException:
        own.free()
        raise
    if own.posted == own.read:
        with _lock:
            kept.append(own)
    else:
        own.free()
