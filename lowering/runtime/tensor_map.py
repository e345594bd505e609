"""Encode a plan's tensor maps with the driver.

`cuTensorMapEncodeTiled` is called through ctypes rather than the bindings' wrapper: the driver wants the 128-byte object on a
64-byte boundary, which Python's allocator does not promise for the wrapper's object. Numbers are those of cuda.h;
`tests/lowering/test_launcher.py` compares them with the bindings'.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from cake_ir.fault import fault
from lowering.plan import TensorMapPlan, check_tensor_map
from lowering.runtime.errors import check, cuda_error, driver

MAP_BYTES = 128
MAP_ALIGN = 64
ENTRY_VERSION = 12000
"""CUDA version of the entry point asked for: the first that has it."""

DATA_TYPE = {
    "u8": 0, "i8": 0, "bool": 0, "e4m3": 0, "e5m2": 0, "e8m0": 0, "u16": 1, "i16": 1, "u32": 2, "i32": 3, "u64": 4, "i64": 5,
    "f16": 6, "f32": 7, "f64": 8, "bf16": 9, "tf32": 11,
}  # fmt: skip
"""CUtensorMapDataType. Types without one of their own travel as unsigned integers of the same width; bytes are only moved."""

INTERLEAVE_NONE = 0
SWIZZLE = {0: 0, 32: 1, 64: 2, 128: 3}
FILL = {"zero": 0, "nan": 1}
L2_PROMOTION = 3
"""256 bytes: misses fetch so much into L2. Tiles are read whole, so the rest of the line is wanted."""

Encode = Callable[..., int]


class EncodedMap:
    """A 128-byte tensor map on a 64-byte boundary; `address` is where it lies in host memory."""

    def __init__(self) -> None:
        self._raw = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGN)
        start = ctypes.addressof(self._raw)
        self.address = start + (-start % MAP_ALIGN)


class MapTemplate:
    """All of a map but the address of its tensor, laid out for the driver. `encode` is `cuTensorMapEncodeTiled` through ctypes.

    Raises CakeError `lowering/bad-plan` for a map that the driver would refuse.
    """

    def __init__(self, plan: TensorMapPlan, encode: Encode) -> None:
        check_tensor_map(plan, f"tensor map of {plan.tensor}")
        rank = len(plan.dims)
        self.tensor = plan.tensor
        self._encode = encode
        self._head = (DATA_TYPE[plan.dtype], rank)
        self._arrays = (
            (ctypes.c_uint64 * rank)(*plan.dims),
            (ctypes.c_uint64 * max(rank - 1, 1))(*plan.strides),
            (ctypes.c_uint32 * rank)(*plan.box),
            (ctypes.c_uint32 * rank)(*([1] * rank)),
        )
        self._tail = (INTERLEAVE_NONE, SWIZZLE[plan.swizzle], L2_PROMOTION, FILL[plan.fill])

    def write(self, encoded: EncodedMap, pointer: int) -> int:
        """Encode the map of the tensor at a device address, a multiple of 16; the driver's result."""
        return self._encode(encoded.address, *self._head, pointer, *self._arrays, *self._tail)


def encode_tensor_map(plan: TensorMapPlan, pointer: int) -> EncodedMap:
    """The map of the tensor at device address `pointer`; raises CakeError `lowering/bad-plan` or a driver error."""
    template = MapTemplate(plan, _encode_entry())
    if pointer % 16:
        raise fault(
            "lowering/bad-plan", f"tensor {plan.tensor} starts at an address that is not a multiple of 16 bytes",
            contract="A tensor that is read or written by TMA starts on a 16-byte boundary.",
        )  # fmt: skip
    encoded = EncodedMap()
    status = template.write(encoded, pointer)
    if status != 0:
        raise cuda_error(status, f"encode the tensor map of {plan.tensor}")
    return encoded


@cache
def _encode_entry() -> Any:
    """The driver's function as a ctypes callable."""
    cu = driver()
    found = check(cu.cuGetProcAddress(b"cuTensorMapEncodeTiled", ENTRY_VERSION, 0), "find cuTensorMapEncodeTiled")
    address = int(found[0] if isinstance(found, tuple) else found)
    if not address:
        raise fault(
            "lowering/cuda-error", "the driver has no cuTensorMapEncodeTiled; tensor maps need a driver of CUDA 12 or later"
        )  # fmt: skip
    p, u32, enum = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int
    return ctypes.CFUNCTYPE(enum, p, enum, u32, p, p, p, p, p, enum, enum, enum, enum)(address)
