"""Arrays of other libraries: what they are, where they lie, whose stream is current, and how their library makes another.

`view(array, stream)` gives (key, pointer): the key holds all that a decision may depend on and is hashable; `facts(key)` reads it.
torch and CuPy have views that cost a few attribute reads and are never imported here: an array of theirs brings its module.
Anything else is read through `__dlpack__` or `__cuda_array_interface__`, and has no allocator: its caller passes `out=`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from operator import index
from typing import Any

from cake_ir.fault import CakeError, fault
from cake_mcp.dlpack import read_capsule

Key = tuple[Any, ...]
View = tuple[Key, int]
LEGACY_STREAM = 0
"""CUDA's default stream, where arrays are that say nothing of a current one."""


class Facts:
    """An array in Cake's words. strides in elements; `device` is a CUDA ordinal, -1 for host memory; grad: it requires a gradient."""

    __slots__ = ("device", "dtype", "grad", "shape", "strides", "writable")

    def __init__(
        self, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], device: int, writable: bool = True, grad: bool = False
    ) -> None:  # fmt: skip
        self.dtype, self.shape, self.strides = dtype, shape, strides
        self.device, self.writable, self.grad = device, writable, grad

    @property
    def contiguous(self) -> bool:
        """Row-major without gaps; strides of extents of 1 do not matter."""
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected:
                return False
            expected *= max(extent, 1)
        return True


class Adapter:
    """One library. Methods of the base class are those of an array that is only an address."""

    name = "an array library that Cake does not know"
    allocates = False

    def view(self, array: Any, stream: int) -> View:
        """(key, pointer). `stream` is where the array is about to be used."""
        raise NotImplementedError

    def facts(self, key: Key) -> Facts:
        """What a key of `view` says. Raises CakeError `dispatch/unknown-dtype`."""
        return Facts(*key)

    def current_stream(self, device: int) -> int:
        """The caller's current stream on the device."""
        return LEGACY_STREAM

    def device_of(self, array: Any) -> int:
        """The CUDA ordinal, -1 for host memory; without looking at anything else."""
        return -1

    def empty(self, shape: tuple[int, ...], dtype: Any, like: Any, device: int, stream: int | None) -> Any:
        """New memory on the device. dtype: of `native_dtype`. stream: where it is used first, if not the current stream."""
        raise NotImplementedError

    def native_dtype(self, dtype: str) -> Any:
        """The library's own name of a Cake dtype."""
        raise NotImplementedError

    def pointer(self, array: Any) -> int:
        """The address of an array that `empty` made."""
        raise NotImplementedError

    def hold(self, array: Any, stream: int, device: int) -> None:
        """Keep the memory of an array that `empty` made until the work that is now on a stream other than the current is done."""

    def on(self, stream: int, device: int) -> AbstractContextManager[Any]:
        """The library's own operations run on that stream."""
        return nullcontext()

    def copied(self, array: Any) -> Any:
        """A row-major copy in memory of its own."""
        raise NotImplementedError

    def padded(self, array: Any, shape: tuple[int, ...]) -> Any:
        """A copy in the first corner of zeros of that shape."""
        raise NotImplementedError

    def assign(self, out: Any, value: Any) -> None:
        """Copy the elements of `value` to `out`."""
        raise NotImplementedError


class Torch(Adapter):
    """torch.Tensor and its subclasses."""

    name = "torch"
    allocates = True

    def __init__(self, torch: Any) -> None:
        self.module = torch
        names = {
            "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64", "u8": "uint8",
            "i8": "int8", "i16": "int16", "bool": "bool", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
        }  # fmt: skip
        self._native = {ours: getattr(torch, theirs) for ours, theirs in names.items() if hasattr(torch, theirs)}
        self._names = {theirs: ours for ours, theirs in self._native.items()}
        # What Triton and Inductor use; torch.cuda.current_stream builds an object at every call.
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self.current_stream = raw or (lambda device: torch.cuda.current_stream(device).cuda_stream)
        self.grad_enabled: Callable[[], bool] = torch.is_grad_enabled
        self._streams: dict[tuple[int, int], Any] = {}

    @cached_property
    def parts(self) -> Any:
        """See `cake_mcp.quick`."""
        from cake_mcp.quick import probe

        return probe(self.module)

    def view(self, array: Any, stream: int) -> View:
        a = array
        return (a.dtype, a.shape, a.is_contiguous() or a.stride(), a.get_device(), a.requires_grad), a.data_ptr()

    def facts(self, key: Key) -> Facts:
        dtype, shape, strides, device, grad = key
        own = row_major(tuple(shape)) if strides is True else tuple(strides)
        return Facts(_known(self._names, dtype), tuple(shape), own, device, True, grad)

    def device_of(self, array: Any) -> int:
        return array.get_device()

    def empty(self, shape: tuple[int, ...], dtype: Any, like: Any, device: int, stream: int | None) -> Any:
        return like.new_empty(shape, dtype=dtype)

    def native_dtype(self, dtype: str) -> Any:
        return self._native[dtype]

    def pointer(self, array: Any) -> int:
        return array.data_ptr()

    def hold(self, array: Any, stream: int, device: int) -> None:
        array.record_stream(self._stream(stream, device))

    def on(self, stream: int, device: int) -> AbstractContextManager[Any]:
        if stream == self.current_stream(device):
            return nullcontext()
        return self.module.cuda.stream(self._stream(stream, device))

    def _stream(self, stream: int, device: int) -> Any:
        """torch's object of a stream that is not torch's; only a name, so it outlives nothing."""
        found = self._streams.get((stream, device))
        if found is None:
            found = self._streams[stream, device] = self.module.cuda.ExternalStream(stream, device=device)
        return found

    def copied(self, array: Any) -> Any:
        return array.clone(memory_format=self.module.contiguous_format)

    def padded(self, array: Any, shape: tuple[int, ...]) -> Any:
        out = array.new_zeros(shape)
        out[tuple(slice(n) for n in array.shape)] = array
        return out

    def assign(self, out: Any, value: Any) -> None:
        out.copy_(value)


class CuPy(Adapter):
    """cupy.ndarray."""

    name = "CuPy"
    allocates = True

    def __init__(self, cupy: Any) -> None:
        self.module = cupy
        self._stream = cupy.cuda.get_current_stream

    def view(self, array: Any, stream: int) -> View:
        data = array.data
        return (array.dtype, array.shape, array.strides, data.device_id), data.ptr

    def facts(self, key: Key) -> Facts:
        dtype, shape, strides, device = key
        return Facts(_numpy_name(dtype), shape, _elements(strides, dtype.itemsize), device)

    def current_stream(self, device: int) -> int:
        return self._stream().ptr

    def device_of(self, array: Any) -> int:
        return array.data.device_id

    def empty(self, shape: tuple[int, ...], dtype: Any, like: Any, device: int, stream: int | None) -> Any:
        cuda = self.module.cuda
        if stream is None and cuda.runtime.getDevice() == device:
            return self.module.empty(shape, dtype)
        # The pool hands memory out in the order of the stream that is current when it is asked.
        with cuda.Device(device), self.on(self._stream().ptr if stream is None else stream, device):
            return self.module.empty(shape, dtype)

    def native_dtype(self, dtype: str) -> Any:
        return self.module.dtype(_TO_NUMPY[dtype]) if dtype != "bf16" else _bfloat16()

    def pointer(self, array: Any) -> int:
        return array.data.ptr

    def on(self, stream: int, device: int) -> AbstractContextManager[Any]:
        if stream == self._stream().ptr:
            return nullcontext()
        return self.module.cuda.ExternalStream(stream, device_id=device)

    def copied(self, array: Any) -> Any:
        return array.copy(order="C")

    def padded(self, array: Any, shape: tuple[int, ...]) -> Any:
        out = self.module.zeros(shape, array.dtype)
        out[tuple(slice(n) for n in array.shape)] = array
        return out

    def assign(self, out: Any, value: Any) -> None:
        out[...] = value


class Foreign(Adapter):
    """Anything with `__dlpack__` (preferred: it knows bf16, the device and the stream) or `__cuda_array_interface__`."""

    def __init__(self, device_of_pointer: Callable[[int], int]) -> None:
        self._device_of_pointer = device_of_pointer

    def view(self, array: Any, stream: int) -> View:
        try:
            key, pointer = self._read(array, stream)
            _, shape, strides, *_ = key
            if min(shape, default=0) < 0 or len(strides) != len(shape) or not 0 <= pointer < 1 << 64:
                raise ValueError(f"shape {shape}, strides {strides}, address {pointer}")
        except CakeError:
            raise
        except Exception as exc:  # the array's own code runs here
            raise fault(
                "dispatch/not-an-array",
                f"{type(array).__name__} does not say where its elements lie ({type(exc).__name__}: {str(exc)[:200]}); pass an array of "
                "torch or CuPy, or one whose __dlpack__ or __cuda_array_interface__ can be read",
                contract="Inputs are arrays in the memory of a CUDA device.",
            ) from exc  # fmt: skip
        return key, pointer

    def _read(self, array: Any, stream: int) -> View:
        if hasattr(array, "__dlpack__"):
            if self.device_of(array) < 0:  # numpy, for one, refuses a stream
                return (str(array.dtype), tuple(array.shape), row_major(tuple(array.shape)), -1, True, False), 0
            # 1 is the legacy default stream in the protocol, where 0 is forbidden
            dtype, shape, strides, device, pointer = read_capsule(array.__dlpack__(stream=stream or 1))
            return (dtype, shape, strides, device, True, False), pointer
        face = array.__cuda_array_interface__
        dtype, size = _typestr(face["typestr"])
        shape = tuple(map(index, face["shape"]))
        given = face.get("strides")
        strides = _elements(tuple(map(index, given)), size) if given is not None else row_major(shape)
        pointer, read_only = face["data"]
        if face.get("mask") is not None:
            raise _no_array("a masked array")
        return (dtype, shape, strides, self._device_of_pointer(index(pointer)), not read_only, False), index(pointer)

    def device_of(self, array: Any) -> int:
        if hasattr(array, "__dlpack_device__"):
            kind, index = array.__dlpack_device__()
            return index if kind in (2, 13) else -1  # kDLCUDA, kDLCUDAManaged
        return self._device_of_pointer(array.__cuda_array_interface__["data"][0])


def adapter_for(array: Any, device_of_pointer: Callable[[int], int]) -> Adapter:
    """The adapter of arrays of this class; raises CakeError `dispatch/not-an-array`."""
    kind = type(array)
    for base in kind.__mro__:
        root, _, _ = base.__module__.partition(".")
        if root == "torch" and base.__name__ == "Tensor":
            return Torch(sys.modules["torch"])
        if root == "cupy" and base.__name__ == "ndarray":
            return CuPy(sys.modules["cupy"])
    if hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__"):
        return Foreign(device_of_pointer)
    raise _no_array(f"{kind.__module__}.{kind.__qualname__}")


def stream_number(stream: Any) -> int:
    """The handle of a stream given as an integer, a torch or CuPy stream, or any object with `__cuda_stream__`."""
    handle = stream
    for name in ("cuda_stream", "ptr"):
        handle = getattr(stream, name, handle)
    protocol = getattr(stream, "__cuda_stream__", None)
    if handle is stream and protocol is not None:
        handle = protocol()[1]
    if isinstance(handle, int) and not isinstance(handle, bool) and 0 <= handle < 1 << 64:
        return handle
    given = stream if isinstance(stream, int) else type(stream).__name__
    raise fault(
        "dispatch/not-a-stream",
        f"stream is {given}; pass an integer handle, a torch or CuPy stream, or an object with __cuda_stream__",
        contract="Work is enqueued on a CUDA stream.",
    )  # fmt: skip


def _no_array(what: str) -> CakeError:
    return fault(
        "dispatch/not-an-array", f"{what} is not an array on a GPU; pass one with __dlpack__ or __cuda_array_interface__",
        contract="Inputs are arrays in the memory of a CUDA device.",
    )  # fmt: skip


def _known(names: Mapping[Any, str], dtype: Any) -> str:
    return str(names.get(dtype, str(dtype).removeprefix("torch.")))


_TO_NUMPY = {
    "f16": "float16", "f32": "float32", "f64": "float64", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8",
    "u16": "uint16", "u32": "uint32", "u64": "uint64", "bool": "bool",
}  # fmt: skip
_FROM_NUMPY = {theirs: ours for ours, theirs in _TO_NUMPY.items()} | {
    "bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
}  # fmt: skip


def _numpy_name(dtype: Any) -> str:
    name: str = dtype.name
    return _FROM_NUMPY.get(name, name)


def _bfloat16() -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16


def _typestr(text: str) -> tuple[str, int]:
    """(Cake dtype, bytes) of an array interface's type; bf16 has none there."""
    size = int(text[2:] or 0)
    if text[1:2] in ("f", "i", "u"):
        return f"{text[1]}{8 * size}", size
    return ("bool" if text[1:] == "b1" else text), size


def _elements(strides: tuple[int, ...], size: int) -> tuple[int, ...]:
    return tuple(s // size if s % size == 0 else -1 for s in strides) if size else (-1,) * len(strides)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of an array without gaps, last extent innermost."""
    out, step = [], 1
    for extent in reversed(shape):
        out.append(step)
        step *= max(extent, 1)
    return tuple(reversed(out))


def pointer_device(cu: Any, pointer: int) -> int:
    """The device whose memory an address is in, -1 for host memory or nothing at all."""
    from lowering.runtime.libcuda import DEVICE_ORDINAL

    ordinal = ctypes.c_int(-1)
    return (
        ordinal.value
        if pointer and cu.cuPointerGetAttribute(ctypes.byref(ordinal), DEVICE_ORDINAL, pointer) == 0
        else -1
    )
