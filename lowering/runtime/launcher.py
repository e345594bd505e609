"""The fast path from device pointers to launches: everything that a shape decides is laid out once, in C memory.

`Prepared` is one recipe at one shape on one device: its kernels loaded and configured. Its arguments lie in blocks. A call takes a
block that nobody uses, writes into it the pointers that changed (all kernels' argument lists point there), takes tensor maps by
pointer from a small cache, encoding only for a pointer that is new, and launches. Kernels are loaded as driver *libraries*, which
belong to no context: the same handle launches in whatever context of the device is current. Loading and configuring is allowed
while a stream captures. Pointers and streams are plain integers. Safe with threads: each call has its own block.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from cake_ir.fault import CakeError, fault
from lowering.plan import BASE_ALIGNMENT, LaunchPlan
from lowering.recipe import Concrete, Fill
from lowering.runtime import libcuda as L
from lowering.runtime.errors import no_gpu
from lowering.runtime.tensor_map import EncodedMap, MapTemplate

MAPS_KEPT = 128
"""Encoded maps kept per tensor of a Prepared: a training loop cycles through some tens of buffers."""
PORTABLE_CLUSTER = 8

MISALIGNED = -1
"""What `Prepared.launch` answers, besides 0, where a pointer is no multiple of 16 bytes."""

_SCALARS: dict[str, Any] = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float}
_LOW_BITS = BASE_ALIGNMENT - 1


class Gpu:
    """One device: what launching needs to know of it, and its kernels. Raises CakeError `lowering/no-gpu` without such a device."""

    def __init__(self, ordinal: int, cu: Any) -> None:
        self.cu, self.ordinal = cu, ordinal
        count = ctypes.c_int()
        self._check(cu.cuDeviceGetCount(ctypes.byref(count)), "count devices")
        if not 0 <= ordinal < count.value:
            raise no_gpu(f"device {ordinal} was asked for, {count.value} found")
        self.alone = count.value == 1
        """Whether no context of another device can be current."""
        handle = ctypes.c_int()
        self._check(cu.cuDeviceGet(ctypes.byref(handle), ordinal), "open the device")
        self.handle = handle.value
        self.sms = self._attribute(L.MULTIPROCESSOR_COUNT)
        self.capability = (self._attribute(L.CAPABILITY_MAJOR), self._attribute(L.CAPABILITY_MINOR))
        self.smem_limit = self._attribute(L.SMEM_OPTIN)
        name = ctypes.create_string_buffer(96)
        self._check(cu.cuDeviceGetName(name, len(name), self.handle), "read the device name")
        self.name = name.value.decode(errors="replace")
        context = ctypes.c_void_p()
        self._check(cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), self.handle), "retain the primary context")
        self.primary: int = context.value or 0
        """The primary context, retained for the life of the process, so that its handle stays its own."""
        self._libraries: dict[str, Library] = {}
        self._spaces: dict[int, list[tuple[int, int]]] = {}
        self._lock = Lock()

    @property
    def target(self) -> str:
        """The target that cubins for this device are built for: architecture-specific from sm_90 on."""
        major, minor = self.capability
        return f"sm_{major}{minor}" + ("a" if major >= 9 else "")

    def library(self, key: str, cubin: Callable[[], bytes]) -> Library:
        """The cubin `key`, loaded once; `cubin` gives its bytes."""
        found = self._libraries.get(key)
        if found is None:
            image = cubin()
            with self._lock, self.unrestricted():
                found = self._libraries.setdefault(key, Library(self, image))
        return found

    def workspace(self, stream: int, nbytes: int) -> int:
        """Device memory of at least `nbytes` for calls on `stream`, kept for the next one: for callers whose library cannot be
        asked for memory. A smaller one that it replaces is not freed: a captured graph may still name it."""
        with self._lock:
            kept = self._spaces.setdefault(stream, [])
            if kept and kept[-1][1] >= nbytes:
                return kept[-1][0]
            size = max(nbytes, 2 * kept[-1][1] if kept else 0)
            pointer = ctypes.c_uint64()
            with self.current(), self.unrestricted():
                self._check(self.cu.cuMemAlloc_v2(ctypes.byref(pointer), size), f"allocate {size} bytes of workspace")
            kept.append((pointer.value, size))
            return pointer.value

    @contextmanager
    def current(self) -> Iterator[None]:
        """A context of this device current in this thread: the caller's own if it is of this device, else the primary one."""
        cu = self.cu
        context, device = ctypes.c_void_p(), ctypes.c_int()
        cu.cuCtxGetCurrent(ctypes.byref(context))
        if context.value and cu.cuCtxGetDevice(ctypes.byref(device)) == 0 and device.value == self.handle:
            yield
            return
        self._check(cu.cuCtxPushCurrent_v2(self.primary), "enter the primary context")
        try:
            yield
        finally:
            cu.cuCtxPopCurrent_v2(ctypes.byref(context))

    @contextmanager
    def unrestricted(self) -> Iterator[None]:
        """Lets this thread load code and allocate while one of its streams captures: neither is part of the capture."""
        mode = ctypes.c_int(L.CAPTURE_RELAXED)
        self._check(self.cu.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)), "relax the capture mode")
        try:
            yield
        finally:
            self.cu.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))

    def _attribute(self, which: int) -> int:
        value = ctypes.c_int()
        self._check(self.cu.cuDeviceGetAttribute(ctypes.byref(value), which, self.handle), "read a device attribute")
        return value.value

    def _check(self, status: int, what: str) -> None:
        L.check(self.cu, status, what)


class Library:
    """A loaded cubin."""

    def __init__(self, gpu: Gpu, image: bytes) -> None:
        self._gpu, self._image = gpu, image
        handle = ctypes.c_void_p()
        status = gpu.cu.cuLibraryLoadData(ctypes.byref(handle), image, None, None, 0, None, None, 0)
        L.check(gpu.cu, status, "load a cubin")
        self._handle = handle
        self._kernels: dict[tuple[str, int, int, bool], tuple[int, int]] = {}

    def kernel(self, plan: LaunchPlan) -> int:
        """The kernel of a plan, loaded on the device and allowed what the plan asks for; raises CakeError `lowering/launch-refused`.

        A context of the device is current.
        """
        asked = (plan.symbol, plan.smem_bytes, plan.threads, plan.cluster > PORTABLE_CLUSTER)
        handle, function = self._kernels.get(asked) or self._kernels.setdefault(asked, self._load(plan))
        if plan.cooperative:
            self._require_residency(plan, ctypes.c_void_p(function))
        return handle

    def _load(self, plan: LaunchPlan) -> tuple[int, int]:
        """(kernel, its function in the current context)."""
        gpu, cu = self._gpu, self._gpu.cu
        kernel, function, value = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        L.check(
            cu, cu.cuLibraryGetKernel(ctypes.byref(kernel), self._handle, plan.symbol.encode()), f"find {plan.symbol}"
        )
        handle = kernel.value or 0

        def fact(which: int) -> int:
            L.check(
                cu, cu.cuKernelGetAttribute(ctypes.byref(value), which, handle, gpu.handle), f"inspect {plan.symbol}"
            )
            return value.value

        total = fact(L.SHARED_SIZE_BYTES) + plan.smem_bytes
        if total > gpu.smem_limit:
            raise _refused(
                plan, f"asks for {total} bytes of shared memory, {gpu.name} allows {gpu.smem_limit} per block"
            )
        if plan.threads > fact(L.MAX_THREADS_PER_BLOCK):
            raise _refused(plan, f"is launched with {plan.threads} threads; its registers allow {value.value}")
        wanted = [(L.MAX_DYNAMIC_SHARED, plan.smem_bytes)] if plan.smem_bytes else []
        wanted += [(L.NON_PORTABLE_CLUSTER, 1)] if plan.cluster > PORTABLE_CLUSTER else []
        for which, setting in wanted:
            L.check(cu, cu.cuKernelSetAttribute(which, setting, handle, gpu.handle), f"configure {plan.symbol}")
        L.check(cu, cu.cuKernelGetFunction(ctypes.byref(function), handle), f"load {plan.symbol} on the device")
        return handle, function.value or 0

    def _require_residency(self, plan: LaunchPlan, function: ctypes.c_void_p) -> None:
        """All CTAs of a cooperative grid are on the device at once, or it waits for ever."""
        gpu, value = self._gpu, ctypes.c_int()
        if plan.cluster > 1:
            config, _keep = _config(plan)
            status = gpu.cu.cuOccupancyMaxActiveClusters(ctypes.byref(value), function, ctypes.addressof(config))
            resident = value.value * plan.cluster
        else:
            ask = gpu.cu.cuOccupancyMaxActiveBlocksPerMultiprocessor
            status = ask(ctypes.byref(value), function, plan.threads, plan.smem_bytes)
            resident = value.value * gpu.sms
        L.check(gpu.cu, status, f"launch {plan.symbol}: count resident blocks")
        if plan.grid > resident:
            raise _refused(plan, f"is a cooperative grid of {plan.grid} blocks, {resident} fit {gpu.name} at once")


class _Map:
    """A tensor-map argument: where its address goes (`params[index]`), and the encoded maps by pointer."""

    __slots__ = ("index", "known", "params", "slot", "template")

    def __init__(self, template: MapTemplate, slot: int, params: Any, index: int) -> None:
        self.template, self.slot, self.params, self.index = template, slot, params, index
        self.known: dict[int, EncodedMap] = {}

    def encode(self, pointer: int) -> int:
        """The map of a pointer that is new; the driver's result."""
        encoded = EncodedMap()
        status = self.template.write(encoded, pointer)
        if status == 0:
            if len(self.known) >= MAPS_KEPT:
                del self.known[next(iter(self.known))]  # the oldest; the one in `params` is replaced now
            self.known[pointer] = encoded
        return status


class _Block:
    """Arguments of one call at a time: cells for pointers, and each kernel's configuration and argument list."""

    __slots__ = (
        "_keep",
        "cells",
        "configs",
        "context",
        "maps",
        "nowhere",
        "pointers",
        "steps",
        "stream",
        "values",
        "where",
    )

    def __init__(self, prepared: Prepared) -> None:
        slots = prepared.slots
        self.cells = (ctypes.c_uint64 * max(len(slots), 1))()
        self.values = memoryview(self.cells).cast("B").cast("Q")
        self.nowhere = (-1,) * len(slots)
        self.pointers: Any = self.nowhere
        self.stream = -1
        self.context = ctypes.c_void_p()
        self.where = ctypes.c_void_p(ctypes.addressof(self.context))
        self.maps: list[_Map] = []
        self.configs: list[L.Config] = []
        self._keep: list[Any] = []
        self.steps = [
            self._fill(prepared, s) if isinstance(s, Fill) else self._kernel(prepared, s.plan, handle)
            for s, handle in zip(prepared.made.steps, prepared.handles, strict=True)
        ]

    def point(self, pointers: tuple[int, ...]) -> int:
        """Bring cells and maps up to date where a pointer changed: 0, MISALIGNED, or the driver's result."""
        old, self.pointers = self.pointers, self.nowhere  # until all is in place
        values = self.values
        for i, pointer in enumerate(pointers):
            if pointer != old[i]:
                if pointer & _LOW_BITS:
                    return MISALIGNED
                values[i] = pointer
        for m in self.maps:
            pointer = pointers[m.slot]
            if pointer != old[m.slot]:
                found = m.known.get(pointer)
                if found is None:
                    status = m.encode(pointer)
                    if status:
                        return status
                    found = m.known[pointer]
                m.params[m.index] = found.address
        self.pointers = pointers
        return 0

    def use(self, stream: int) -> None:
        """Later launches go to that stream."""
        for config in self.configs:
            config.stream = stream
        self.stream = stream

    def _fill(self, prepared: Prepared, fill: Fill) -> Callable[[], int]:
        cu, cells, slot = prepared.gpu.cu, self.cells, prepared.slots[fill.tensor]
        memset = {1: cu.cuMemsetD8Async, 2: cu.cuMemsetD16Async, 4: cu.cuMemsetD32Async}[fill.width]
        return lambda: memset(cells[slot], fill.pattern, fill.count, self.stream)

    def _kernel(self, prepared: Prepared, plan: LaunchPlan, handle: int) -> Callable[[], int]:
        cu = prepared.gpu.cu
        params = (ctypes.c_void_p * max(len(plan.args), 1))()
        cells = ctypes.addressof(self.cells)
        for i, arg in enumerate(plan.args):
            if arg.kind == "tensor":
                params[i] = cells + 8 * prepared.slots[arg.name]
            elif arg.kind == "tensor_map":
                spec = plan.tensor_maps[arg.name]
                template = MapTemplate(spec, cu.cuTensorMapEncodeTiled)
                self.maps.append(_Map(template, prepared.slots[spec.tensor], params, i))
            else:
                cell = _SCALARS[arg.kind](arg.value)
                self._keep.append(cell)
                params[i] = ctypes.addressof(cell)
        config, attributes = _config(plan)
        self.configs.append(config)
        self._keep += [params, attributes]
        launch, kernel = cu.cuLaunchKernelEx, ctypes.c_void_p(handle)
        where, arguments = ctypes.c_void_p(ctypes.addressof(config)), ctypes.c_void_p(ctypes.addressof(params))
        return lambda: launch(where, kernel, arguments, None)


class Prepared:
    """One recipe at one shape on one device; see the module.

    names: the tensors in the order in which `launch` takes their pointers. `workspace_bytes`: what the caller must give besides.
    """

    def __init__(
        self, gpu: Gpu, made: Concrete, names: Sequence[str], cubins: Mapping[str, Callable[[], bytes]]
    ) -> None:
        self.gpu, self.made, self.workspace_bytes = gpu, made, made.workspace_bytes
        self.slots = {name: i for i, name in enumerate([*names, *made.offsets])}
        self._offsets = tuple(made.offsets.values())
        with gpu.current(), gpu.unrestricted():
            self.handles = [
                0 if isinstance(s, Fill) else gpu.library(s.cubin_key, cubins[s.cubin_key]).kernel(s.plan)
                for s in made.steps
            ]
        self._free = [_Block(self)]
        self._elsewhere = not gpu.alone

    def launch(self, pointers: tuple[int, ...], workspace: int, stream: int, entered: bool = False) -> int:
        """Enqueue on `stream`. pointers: of the tensors, in the order of `names`. workspace: pointer of `workspace_bytes`.

        Returns 0, or MISALIGNED when a pointer is no multiple of 16 bytes: then nothing was enqueued. Raises CakeError: the driver's
        refusal. A kernel's own fault shows at the next synchronisation. entered: a context of the device is known to be current.
        """
        try:
            block = self._free.pop()
        except IndexError:  # all are in use by other threads
            block = _Block(self)
        if self._elsewhere and not entered:
            self.gpu.cu.current_context(block.where)
            if block.context.value != self.gpu.primary:
                return self._enter(block, pointers, workspace, stream)
        given = (*pointers, *[workspace + offset for offset in self._offsets]) if self._offsets else pointers
        status = 0 if given == block.pointers else block.point(given)
        if stream != block.stream:
            block.use(stream)
        if status == 0:
            for step in block.steps:
                status = step()
                if status:
                    break
        if status > 0:
            if status == L.INVALID_CONTEXT and not entered:  # a thread that has none yet
                return self._enter(block, pointers, workspace, stream)
            self._free.append(block)
            raise L.cuda_fault(self.gpu.cu, status, "launch " + " and ".join(self._symbols()))
        self._free.append(block)
        return status

    def _enter(self, block: _Block, pointers: tuple[int, ...], workspace: int, stream: int) -> int:
        self._free.append(block)
        with self.gpu.current():
            return self.launch(pointers, workspace, stream, entered=True)

    def _symbols(self) -> list[str]:
        return list(dict.fromkeys(s.plan.symbol for s in self.made.steps if not isinstance(s, Fill)))


def _config(plan: LaunchPlan) -> tuple[L.Config, Any]:
    """The launch configuration, and the attributes that it points to."""
    attributes = (L.Attribute * 3)()
    count = 0
    if plan.cluster > 1:
        attributes[count].id = L.CLUSTER_DIMENSION
        attributes[count].value.cluster = L.Dim3(plan.cluster, 1, 1)
        count += 1
    for wanted, which in ((plan.pdl, L.PROGRAMMATIC_STREAM_SERIALIZATION), (plan.cooperative, L.COOPERATIVE)):
        if wanted:
            attributes[count].id = which
            attributes[count].value.flag = 1
            count += 1
    pointer = ctypes.cast(attributes, ctypes.POINTER(L.Attribute))
    return L.Config(
        L.Dim3(plan.grid, 1, 1), L.Dim3(plan.threads, 1, 1), plan.smem_bytes, None, pointer, count
    ), attributes


def _refused(plan: LaunchPlan, why: str) -> CakeError:
    return fault("lowering/launch-refused", f"{plan.symbol} {why}", contract="A launch fits the device.")
