"""One GPU through the CUDA driver API: memory with guard bands, modules, streams, events, graphs, a health probe.

The device's primary context is used, so that other libraries in the process (torch baselines) share it. Device pointers
and stream handles are plain integers; sizes are bytes. Fills and copies without a stream are complete when they return,
since kernels run on streams that do not wait for the default one; reads want a `synchronize` first. Every failure is a
`CakeError` (see `lowering.runtime.errors`). Not thread safe: one worker thread owns a Device.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from cake_ir.diagnostics import CakeError, error
from lowering.runtime.errors import check, driver, no_gpu
from lowering.runtime.patience import Patience

GUARD_BYTES = 4096
"""Bytes of known pattern before and after every buffer; a multiple of the allocator's alignment."""

GUARD_WORD = 0x5CA1AB1E
DEFAULT_STREAM = 0


@dataclass(frozen=True)
class DeviceInfo:
    """What the device says of itself. Sizes in bytes, clocks in MHz (maximum), `driver` as major.minor."""

    index: int
    name: str
    uuid: str
    compute_capability: tuple[int, int]
    sms: int
    total_bytes: int
    l2_bytes: int
    smem_per_block: int
    smem_per_sm: int
    sm_clock_mhz: int
    memory_clock_mhz: int
    ecc: bool
    driver: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self) | {"compute_capability": list(self.compute_capability)}


class Device:
    """The GPU number `index`; raises CakeError `lowering/no-gpu` when there is none."""

    def __init__(self, index: int = 0) -> None:
        self.cu = driver()
        count = check(self.cu.cuDeviceGetCount(), "count devices")
        if not 0 <= index < count:
            raise no_gpu(f"device {index} was asked for, {count} found")
        self.index = index
        self._handle = check(self.cu.cuDeviceGet(index), "open the device")
        self._context = check(self.cu.cuDevicePrimaryCtxRetain(self._handle), "create the context")
        self.make_current()
        self._modules: dict[str, Module] = {}
        self._buffers: set[Buffer] = set()
        self.patience = Patience()

    def make_current(self) -> None:
        """Bind the primary context to the calling thread."""
        check(self.cu.cuCtxSetCurrent(self._context), "bind the context")

    def close(self) -> None:
        """Free buffers and modules and release the context. After a device fault only the release is tried."""
        for buffer in list(self._buffers):
            buffer.free(ignore_errors=True)
        for module in self._modules.values():
            self.cu.cuModuleUnload(module.handle)
        self._modules.clear()
        self.cu.cuDevicePrimaryCtxRelease(self._handle)

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- facts ---------------------------------------------------------------------------------------------------

    def attribute(self, name: str) -> int:
        """An integer device attribute by its CUDA name without the CU_DEVICE_ATTRIBUTE_ prefix."""
        which = getattr(self.cu.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_" + name)
        return int(check(self.cu.cuDeviceGetAttribute(which, self._handle), f"read {name}"))

    def info(self) -> DeviceInfo:
        """The device's identity and limits."""
        name = check(self.cu.cuDeviceGetName(96, self._handle), "read the device name")
        uuid = check(self.cu.cuDeviceGetUuid(self._handle), "read the device id")
        version = int(check(self.cu.cuDriverGetVersion(), "read the driver version"))
        return DeviceInfo(
            index=self.index,
            name=bytes(name).split(b"\0", 1)[0].decode(errors="replace"),
            uuid=bytes(uuid.bytes).hex(),
            compute_capability=(
                self.attribute("COMPUTE_CAPABILITY_MAJOR"),
                self.attribute("COMPUTE_CAPABILITY_MINOR"),
            ),
            sms=self.attribute("MULTIPROCESSOR_COUNT"),
            total_bytes=int(check(self.cu.cuDeviceTotalMem(self._handle), "read the memory size")),
            l2_bytes=self.attribute("L2_CACHE_SIZE"),
            smem_per_block=self.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            smem_per_sm=self.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            sm_clock_mhz=self.attribute("CLOCK_RATE") // 1000,
            memory_clock_mhz=self.attribute("MEMORY_CLOCK_RATE") // 1000,
            ecc=bool(self.attribute("ECC_ENABLED")),
            driver=f"{version // 1000}.{version % 1000 // 10}",
        )

    def free_bytes(self) -> int:
        """Device memory not in use by anyone."""
        return int(check(self.cu.cuMemGetInfo(), "read free memory")[0])

    # ---- memory --------------------------------------------------------------------------------------------------

    def alloc(self, nbytes: int, *, guard: int = GUARD_BYTES, offset: int = 0) -> Buffer:
        """Device memory of `nbytes`, its pointer 256-byte aligned plus `offset`, between two guard bands.

        `guard=0` makes a plain allocation (no check possible). Zero bytes are allowed and give a valid pointer.
        """
        if nbytes < 0 or guard < 0 or guard % 256 or offset < 0:
            raise ValueError("sizes must not be negative and the guard a multiple of 256 bytes")
        tail = -(nbytes + offset) % 4 + guard
        total = max(guard + offset + nbytes + tail, 4)
        base = int(check(self.cu.cuMemAlloc(total), f"allocate {total} bytes"))
        buffer = Buffer(self, base, base + guard + offset, nbytes, total)
        self._buffers.add(buffer)
        buffer.paint_guards()
        return buffer

    def alloc_host(self, nbytes: int) -> HostBuffer:
        """Zeroed host memory that kernels write to directly, at the same time readable here."""
        cu = self.cu
        address = int(
            check(cu.cuMemHostAlloc(nbytes, cu.CU_MEMHOSTALLOC_DEVICEMAP), f"allocate {nbytes} bytes of host memory")
        )
        ctypes.memset(address, 0, nbytes)
        pointer = int(check(cu.cuMemHostGetDevicePointer(address, 0), "map host memory"))
        return HostBuffer(self, address, pointer, nbytes)

    def forget(self, buffer: Buffer) -> None:
        """Called by a buffer that was freed."""
        self._buffers.discard(buffer)

    def copy_in(self, pointer: int, data: Any, nbytes: int | None = None) -> None:
        """Host to device, synchronous. `data` is a numpy array (C-contiguous) or a bytes-like object."""
        address, size, keep = host_memory(data)
        size = size if nbytes is None else nbytes
        if size:
            check(self.cu.cuMemcpyHtoD(self.cu.CUdeviceptr(pointer), address, size), "copy to the device")
            # A small copy may still be on its way to the device when the driver returns.
            self.wait_stream(DEFAULT_STREAM)
        del keep

    def copy_out(self, pointer: int, data: Any) -> None:
        """Device to host into a writable numpy array or bytearray, synchronous."""
        address, size, keep = host_memory(data, writable=True)
        if size:
            with self.patience.waiting(settles=False):
                check(self.cu.cuMemcpyDtoH(address, self.cu.CUdeviceptr(pointer), size), "copy from the device")
        del keep

    def read(self, pointer: int, nbytes: int) -> bytes:
        """`nbytes` of device memory."""
        out = bytearray(nbytes)
        self.copy_out(pointer, out)
        return bytes(out)

    def copy_device(self, to: int, source: int, nbytes: int, stream: int = DEFAULT_STREAM) -> None:
        """Device to device; in stream order if a stream is given, else complete on return."""
        ptr = self.cu.CUdeviceptr
        check(self.cu.cuMemcpyDtoDAsync(ptr(to), ptr(source), nbytes, self.cu.CUstream(stream)), "copy on the device")
        if stream == DEFAULT_STREAM:
            self.wait_stream(stream)

    def fill(self, pointer: int, nbytes: int, pattern: int, width: int = 1, stream: int = DEFAULT_STREAM) -> None:
        """Repeat `pattern`, `width` (1, 2 or 4) bytes wide, over `nbytes` (a multiple of the width).

        In stream order if a stream is given, else complete on return.
        """
        if nbytes % width:
            raise ValueError(f"{nbytes} bytes are no multiple of the {width}-byte pattern")
        if nbytes:
            fill = {1: self.cu.cuMemsetD8Async, 2: self.cu.cuMemsetD16Async, 4: self.cu.cuMemsetD32Async}[width]
            check(
                fill(self.cu.CUdeviceptr(pointer), pattern, nbytes // width, self.cu.CUstream(stream)),
                "fill device memory",
            )
            if stream == DEFAULT_STREAM:
                self.wait_stream(stream)

    # ---- code ----------------------------------------------------------------------------------------------------

    def load(self, cubin: bytes) -> Module:
        """Load a cubin (once per content); raises `lowering/wrong-architecture` when the device cannot run it."""
        import hashlib

        key = hashlib.sha256(cubin).hexdigest()
        if key not in self._modules:
            handle = check(self.cu.cuModuleLoadData(cubin), "load the kernel")
            self._modules[key] = Module(self, handle, key)
        return self._modules[key]

    # ---- order ---------------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait for everything; raises `lowering/device-fault` if a kernel broke the context."""
        with self.patience.waiting():
            check(self.cu.cuCtxSynchronize(), "run the kernel")

    def new_stream(self) -> int:
        """A stream that does not wait for the default stream."""
        flags = self.cu.CUstream_flags.CU_STREAM_NON_BLOCKING
        return int(check(self.cu.cuStreamCreate(int(flags)), "create a stream"))

    def close_stream(self, stream: int) -> None:
        """Destroy a stream from `new_stream`."""
        check(self.cu.cuStreamDestroy(self.cu.CUstream(stream)), "destroy a stream")

    def wait_stream(self, stream: int) -> None:
        """Block until the stream is idle; raises `lowering/device-fault` on a fault."""
        with self.patience.waiting(settles=stream != DEFAULT_STREAM):
            check(self.cu.cuStreamSynchronize(self.cu.CUstream(stream)), "run the kernel")

    def event(self) -> Event:
        """A timing event."""
        return Event(self)

    @contextmanager
    def capture(self, stream: int) -> Iterator[Graph]:
        """Record what the body launches on `stream` into a graph (empty until the block ends).

        Raises CakeError when something in the body cannot be captured; the stream is usable again afterwards.
        """
        cu, handle = self.cu, self.cu.CUstream(stream)
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(cu.cuStreamBeginCapture(handle, mode), "begin a graph capture")
        graph = Graph(self)
        try:
            with self.patience.recording() as graph.symbols:
                yield graph
        except BaseException:
            status, broken = cu.cuStreamEndCapture(handle)  # leaves capture mode even when it failed
            if status == 0 and int(broken):
                cu.cuGraphDestroy(broken)
            raise
        graph.adopt(check(cu.cuStreamEndCapture(handle), "end a graph capture"))

    def healthy(self) -> bool:
        """Whether the context still works: write, copy and read back a few bytes."""
        try:
            self.synchronize()
            probe = self.alloc(64, guard=256)
            try:
                self.fill(probe.pointer, 64, 0xA5)
                self.synchronize()
                return self.read(probe.pointer, 64) == b"\xa5" * 64 and not probe.damage()
            finally:
                probe.free(ignore_errors=True)
        except CakeError:
            return False


class Buffer:
    """`nbytes` of device memory at `pointer`, with guard bands around it (made by `Device.alloc`)."""

    def __init__(self, device: Device, base: int, pointer: int, nbytes: int, total: int) -> None:
        self.device, self.base, self.pointer, self.nbytes, self._total = device, base, pointer, nbytes, total
        self._live = True

    def write(self, data: Any) -> None:
        """Fill from host data of exactly `nbytes`."""
        size = host_memory(data)[1]
        if size != self.nbytes:
            raise ValueError(f"{size} bytes do not fill a buffer of {self.nbytes}")
        self.device.copy_in(self.pointer, data)

    def read(self) -> bytes:
        """The contents."""
        return self.device.read(self.pointer, self.nbytes)

    def read_into(self, array: Any) -> None:
        """The contents, into a writable array of exactly `nbytes`."""
        size = host_memory(array, writable=True)[1]
        if size != self.nbytes:
            raise ValueError(f"a buffer of {self.nbytes} bytes does not fit {size}")
        self.device.copy_out(self.pointer, array)

    def poison(self, pattern: int, width: int = 1) -> None:
        """Overwrite everything with a repeated pattern (a trailing partial pattern stays byte-filled)."""
        whole = self.nbytes - self.nbytes % width
        self.device.fill(self.pointer, whole, pattern, width)
        if whole < self.nbytes:
            self.device.fill(self.pointer + whole, self.nbytes - whole, pattern & 0xFF)

    def paint_guards(self) -> None:
        """Write the guard pattern; needed again only after damage."""
        for start, size in self._guards():
            # Guards start and end on whole words of the allocation; odd edges next to the data are byte wide.
            head = min(-start % 4, size)
            body = (size - head) // 4 * 4
            self.device.fill(start, head, GUARD_WORD & 0xFF)
            self.device.fill(start + head, body, GUARD_WORD, 4)
            self.device.fill(start + head + body, size - head - body, GUARD_WORD & 0xFF)

    def damage(self) -> list[int]:
        """Offsets in bytes from `pointer` of guard bytes that were overwritten (negative: before the buffer)."""
        found: list[int] = []
        for start, size in self._guards():
            head = min(-start % 4, size)
            body = (size - head) // 4 * 4
            edge = bytes([GUARD_WORD & 0xFF])
            expected = edge * head + struct.pack("<I", GUARD_WORD) * (body // 4) + edge * (size - head - body)
            actual = self.device.read(start, size)
            if actual != expected:
                found += [start + i - self.pointer for i in range(size) if actual[i] != expected[i]]
        return found

    def free(self, *, ignore_errors: bool = False) -> None:
        """Give the memory back; twice is harmless."""
        if not self._live:
            return
        self._live = False
        self.device.forget(self)
        result = self.device.cu.cuMemFree(self.device.cu.CUdeviceptr(self.base))
        if not ignore_errors:
            check(result, "free device memory")

    def _guards(self) -> tuple[tuple[int, int], ...]:
        end = self.pointer + self.nbytes
        return ((self.base, self.pointer - self.base), (end, self.base + self._total - end))


class HostBuffer:
    """`nbytes` of page-locked host memory at `address`, seen by kernels at `pointer` (made by `Device.alloc_host`)."""

    def __init__(self, device: Device, address: int, pointer: int, nbytes: int) -> None:
        self.device, self.address, self.pointer, self.nbytes = device, address, pointer, nbytes

    def read(self) -> bytes:
        """The contents as they are now; never waits for the device, so that a hung kernel can be looked at."""
        return ctypes.string_at(self.address, self.nbytes)

    def free(self) -> None:
        """Give it back; waits for kernels that may still write to it."""
        check(self.device.cu.cuMemFreeHost(self.address), "free host memory")


class Module:
    """A loaded cubin."""

    def __init__(self, device: Device, handle: Any, sha256: str) -> None:
        self.device, self.handle, self.sha256 = device, handle, sha256
        self._kernels: dict[str, Kernel] = {}

    def kernel(self, symbol: str) -> Kernel:
        """The entry point; raises CakeError when the cubin has none of that name."""
        if symbol not in self._kernels:
            function = check(
                self.device.cu.cuModuleGetFunction(self.handle, symbol.encode()), f"find the kernel {symbol}"
            )
            self._kernels[symbol] = Kernel(self, symbol, function)
        return self._kernels[symbol]


class Kernel:
    """A kernel's entry point and its function attributes."""

    def __init__(self, module: Module, symbol: str, function: Any) -> None:
        self.module, self.symbol, self.function = module, symbol, function
        self.device = module.device

    def attribute(self, name: str) -> int:
        """An integer function attribute by its CUDA name without the CU_FUNC_ATTRIBUTE_ prefix."""
        cu = self.device.cu
        which = getattr(cu.CUfunction_attribute, "CU_FUNC_ATTRIBUTE_" + name)
        return int(check(cu.cuFuncGetAttribute(which, self.function), f"read {name} of {self.symbol}"))

    def set_attribute(self, name: str, value: int) -> None:
        """Set a function attribute by the same kind of name."""
        cu = self.device.cu
        which = getattr(cu.CUfunction_attribute, "CU_FUNC_ATTRIBUTE_" + name)
        check(cu.cuFuncSetAttribute(self.function, which, value), f"launch {self.symbol}: set {name} to {value}")

    def blocks_per_sm(self, threads: int, smem_bytes: int) -> int:
        """The driver's own occupancy answer."""
        cu = self.device.cu
        result = cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, threads, smem_bytes)
        return int(check(result, f"compute the occupancy of {self.symbol}"))


class Event:
    """A CUDA event with timing."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.handle = check(device.cu.cuEventCreate(0), "create an event")

    def record(self, stream: int) -> None:
        """Mark this point of the stream."""
        check(self.device.cu.cuEventRecord(self.handle, self.device.cu.CUstream(stream)), "record an event")

    def wait(self) -> None:
        """Block the host until the mark is reached; raises `lowering/device-fault` on a fault."""
        with self.device.patience.waiting():
            check(self.device.cu.cuEventSynchronize(self.handle), "run the kernel")

    def done(self) -> bool:
        """Whether the mark was reached; never blocks."""
        status = self.device.cu.cuEventQuery(self.handle)[0]
        if status == self.device.cu.CUresult.CUDA_ERROR_NOT_READY:
            return False
        check((status,), "run the kernel")
        return True

    def ms_since(self, earlier: Event) -> float:
        """Milliseconds between two completed events; the resolution is about half a microsecond."""
        return float(check(self.device.cu.cuEventElapsedTime(earlier.handle, self.handle), "read a time"))

    def close(self) -> None:
        """Destroy the event."""
        self.device.cu.cuEventDestroy(self.handle)


class Graph:
    """A captured sequence of launches, replayed with one host call."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.symbols: list[str] = []
        self._graph: Any = None
        self._exec: Any = None

    def adopt(self, graph: Any) -> None:
        """Instantiate the captured graph."""
        self._graph = graph
        self._exec = check(self.device.cu.cuGraphInstantiate(graph, 0), "instantiate a graph")

    def launch(self, stream: int) -> None:
        """Replay on `stream`."""
        if self._exec is None:
            raise CakeError(error("lowering/cuda-error", "hardware", "the graph was launched before its capture ended"))
        check(self.device.cu.cuGraphLaunch(self._exec, self.device.cu.CUstream(stream)), "launch a graph")
        self.device.patience.pending += self.symbols

    def nodes(self) -> dict[str, int]:
        """How many nodes of each kind (kernel, memcpy, memset, ...) it holds."""
        cu, out = self.device.cu, dict[str, int]()
        count = int(check(cu.cuGraphGetNodes(self._graph), "count the nodes of a graph")[1])
        for node in check(cu.cuGraphGetNodes(self._graph, count), "list the nodes of a graph")[0] if count else []:
            name = check(cu.cuGraphNodeGetType(node), "read a graph node").name
            kind = name.removeprefix("CU_GRAPH_NODE_TYPE_").lower()
            out[kind] = out.get(kind, 0) + 1
        return out

    def close(self) -> None:
        """Destroy it."""
        if self._exec is not None:
            self.device.cu.cuGraphExecDestroy(self._exec)
            self._exec = None
        if self._graph is not None:
            self.device.cu.cuGraphDestroy(self._graph)
            self._graph = None


def host_memory(data: Any, *, writable: bool = False) -> tuple[int, int, Any]:
    """(address, bytes, keep-alive) of host data: a C-contiguous numpy array or a bytes-like object."""
    interface = getattr(data, "__array_interface__", None)
    if interface is not None:
        if not data.flags["C_CONTIGUOUS"]:
            raise ValueError("the array must be C-contiguous")
        address, read_only = interface["data"]
        if writable and read_only:
            raise ValueError("the array must be writable")
        return int(address), int(data.nbytes), data
    view = memoryview(data).cast("B")
    if view.nbytes == 0:
        return 0, 0, data
    if view.readonly:
        if writable:
            raise ValueError("the buffer must be writable")
        copy = ctypes.create_string_buffer(view.tobytes(), view.nbytes)
        return ctypes.addressof(copy), view.nbytes, copy
    raw = (ctypes.c_char * view.nbytes).from_buffer(view)
    return ctypes.addressof(raw), view.nbytes, raw
