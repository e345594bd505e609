"""The few driver functions of the host path, straight from libcuda through ctypes.

Why not `cuda.bindings`: importing it costs more than all of the host path, and it builds Python objects at every launch. Here a
launch is one foreign call on memory that was laid out once. Structures and numbers are those of cuda.h (CUDA 12 and later);
`tests/lowering/test_launcher.py` compares them with the bindings'.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, Union, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

from cake_ir.fault import CakeError, fault
from lowering.runtime.errors import classified, no_gpu

LIBRARY = "libcuda.so.1"

# CUlaunchAttributeID
COOPERATIVE, CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION = 2, 4, 6
# CUdevice_attribute
MULTIPROCESSOR_COUNT, CAPABILITY_MAJOR, CAPABILITY_MINOR, SMEM_OPTIN = 16, 75, 76, 97
# CUfunction_attribute
MAX_THREADS_PER_BLOCK, SHARED_SIZE_BYTES, MAX_DYNAMIC_SHARED, NON_PORTABLE_CLUSTER = 0, 1, 8, 14
# CUpointer_attribute
DEVICE_ORDINAL = 9
CAPTURE_RELAXED = 2
INVALID_CONTEXT = 201


class Dim3(Structure):
    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]


class AttributeValue(Union):
    _fields_ = [("pad", c_char * 64), ("cluster", Dim3), ("flag", c_int)]


class Attribute(Structure):
    """CUlaunchAttribute"""

    _fields_ = [("id", c_int), ("pad", c_char * 4), ("value", AttributeValue)]


class Config(Structure):
    """CUlaunchConfig"""

    _fields_ = [
        ("grid", Dim3), ("block", Dim3), ("smem", c_uint), ("stream", c_void_p), ("attributes", POINTER(Attribute)), ("count", c_uint),
    ]  # fmt: skip


_P, _PP = c_void_p, POINTER(c_void_p)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_PP, c_int),
    "cuCtxGetCurrent": (_PP,),
    "cuCtxGetDevice": (POINTER(c_int),),
    "cuCtxPushCurrent_v2": (_P,),
    "cuCtxPopCurrent_v2": (_PP,),
    "cuThreadExchangeStreamCaptureMode": (POINTER(c_int),),
    "cuLibraryLoadData": (_PP, c_char_p, _P, _P, c_uint, _P, _P, c_uint),
    "cuLibraryGetKernel": (_PP, _P, c_char_p),
    "cuKernelGetFunction": (_PP, _P),
    "cuKernelGetAttribute": (POINTER(c_int), c_int, _P, c_int),
    "cuKernelSetAttribute": (c_int, c_int, _P, c_int),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (POINTER(c_int), _P, c_int, c_size_t),
    "cuOccupancyMaxActiveClusters": (POINTER(c_int), _P, _P),
    "cuPointerGetAttribute": (_P, c_int, c_uint64),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemHostAlloc": (_PP, c_size_t, c_uint),
    "cuMemFreeHost": (_P,),
    "cuMemcpyDtoHAsync_v2": (_P, c_uint64, c_size_t, _P),
    "cuEventCreate": (_PP, c_uint),
    "cuEventRecord": (_P, _P),
    "cuEventSynchronize": (_P,),
    "cuEventDestroy_v2": (_P,),
    "cuMemsetD8Async": (c_uint64, c_uint, c_size_t, _P),
    "cuMemsetD16Async": (c_uint64, c_uint, c_size_t, _P),
    "cuMemsetD32Async": (c_uint64, c_uint, c_size_t, _P),
    "cuTensorMapEncodeTiled": (_P, c_int, c_uint, _P, _P, _P, _P, _P, c_int, c_int, c_int, c_int),
}  # fmt: skip
_QUICK = frozenset({"cuCtxGetCurrent", "cuCtxGetDevice", "cuTensorMapEncodeTiled", "cuPointerGetAttribute"})
"""Calls that never wait: not worth giving the interpreter lock away and taking it again."""


class LibCuda:
    """The functions of `_SIGNATURES` as attributes, each returning a CUresult number. Two are on the path of every call and take the
    `c_void_p` that they are given without a conversion: `cuLaunchKernelEx`, and cuCtxGetCurrent as `current_context`."""

    def __init__(self) -> None:
        try:
            patient, quick = ctypes.CDLL(LIBRARY), ctypes.PyDLL(LIBRARY)
        except OSError as exc:
            raise no_gpu(f"no NVIDIA driver is installed ({exc})") from None
        for name, arguments in _SIGNATURES.items():
            try:
                function = getattr(quick if name in _QUICK else patient, name)
            except AttributeError:
                raise fault(
                    "lowering/cuda-error", f"the NVIDIA driver is too old: it has no {name}; CUDA 12 or later is needed",
                    contract="Tensor maps, clusters and libraries of kernels came with CUDA 12.",
                ) from None  # fmt: skip
            function.argtypes, function.restype = arguments, c_int
            setattr(self, name, function)
        self.cuLaunchKernelEx = patient.cuLaunchKernelEx
        self.current_context = quick["cuCtxGetCurrent"]
        self.cuLaunchKernelEx.restype = self.current_context.restype = c_int

    def __getattr__(self, name: str) -> Any:  # for type checkers: attributes are set by name above
        raise AttributeError(name)


@cache
def libcuda() -> Any:
    """The initialised driver; raises CakeError `lowering/no-gpu`."""
    cu = LibCuda()
    status = cu.cuInit(0)
    if status:
        raise no_gpu(f"the NVIDIA driver cannot be used ({error_name(cu, status)})")
    return cu


def error_name(cu: Any, status: int) -> str:
    """CUDA's own name of a result."""
    name = c_char_p()
    if cu.cuGetErrorName(status, byref(name)) or not name.value:
        return f"CUDA error {status}"
    return name.value.decode(errors="replace")


def cuda_fault(cu: Any, status: int, what: str) -> CakeError:
    """The CakeError of a failed call; `what` says in words what was attempted."""
    return classified(error_name(cu, status), what)


def check(cu: Any, status: int, what: str) -> None:
    """Raise the CakeError of a failed call."""
    if status:
        raise cuda_fault(cu, status, what)
