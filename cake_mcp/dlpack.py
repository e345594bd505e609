"""Read a DLPack capsule without taking its tensor over: the capsule stays its producer's, whose destructor frees it.

Layout of `DLManagedTensor` from dlpack.h (ABI of version 0.x, which every producer gives when no `max_version` is asked for).
"""

from __future__ import annotations

import ctypes
from typing import Any

from cake_ir.fault import CakeError, fault

CUDA, CUDA_MANAGED = 2, 13
_NAME = b"dltensor"
_CODES = {0: "i", 1: "u", 2: "f", 4: "bf"}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


_valid = ctypes.pythonapi.PyCapsule_IsValid
_valid.argtypes, _valid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


def read_capsule(capsule: Any) -> tuple[str, tuple[int, ...], tuple[int, ...], int, int]:
    """(dtype, shape, strides in elements, device, pointer). device is -1 for memory that is not CUDA's.

    Raises CakeError `dispatch/not-an-array` for an object that is no unused `dltensor` capsule.
    """
    if not _valid(capsule, _NAME):
        raise _bad("__dlpack__ gave no unused 'dltensor' capsule")
    t = _Tensor.from_address(_pointer(capsule, _NAME))
    if t.lanes != 1:
        raise _bad(f"a DLPack type of {t.lanes} lanes is not a Cake type")
    shape = tuple(t.shape[: t.ndim]) if t.ndim else ()
    if t.strides:
        strides = tuple(t.strides[: t.ndim])
    else:
        step, back = 1, []
        for extent in reversed(shape):
            back.append(step)
            step *= extent
        strides = tuple(reversed(back))
    device = t.device_id if t.device_type in (CUDA, CUDA_MANAGED) else -1
    dtype = "bool" if t.code == 6 else f"{_CODES.get(t.code, f'dlpack{t.code}:')}{t.bits}"
    return dtype, shape, strides, device, (t.data or 0) + t.byte_offset


def _bad(why: str) -> CakeError:
    return fault("dispatch/not-an-array", why, contract="DLPack producers give a fresh capsule at every call.")
