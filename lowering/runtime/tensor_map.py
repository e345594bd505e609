"""Encode a plan's tensor maps with the driver.

`cuTensorMapEncodeTiled` is reached through its entry point rather than the bindings' wrapper: the driver wants the
128-byte object on a 64-byte boundary, which Python's allocator does not promise for the wrapper's object.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from cake_ir.diagnostics import CakeError, error
from lowering.plan import TensorMapPlan, check_tensor_map
from lowering.runtime.errors import check, cuda_error, driver

MAP_BYTES = 128
MAP_ALIGN = 64
ENTRY_VERSION = 12000
"""CUDA version of the entry point asked for: the first that has it."""

_DATA_TYPE = {
    "u8": "UINT8", "i8": "UINT8", "bool": "UINT8", "e4m3": "UINT8", "e5m2": "UINT8", "e8m0": "UINT8",
    "u16": "UINT16", "i16": "UINT16", "f16": "FLOAT16", "bf16": "BFLOAT16",
    "u32": "UINT32", "i32": "INT32", "f32": "FLOAT32", "tf32": "TFLOAT32",
    "u64": "UINT64", "i64": "INT64", "f64": "FLOAT64",
}  # fmt: skip
# Types without a tensor-map type of their own travel as unsigned integers of the same width; bytes are only moved.

_SWIZZLE = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
_FILL = {"zero": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}
L2_PROMOTION = "L2_256B"
"""Misses fetch 256 bytes into L2: tiles are read whole, so the rest of the line is wanted."""


class EncodedMap:
    """A 128-byte tensor map on a 64-byte boundary; `address` is where it lies in host memory."""

    def __init__(self) -> None:
        self._raw = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGN)
        start = ctypes.addressof(self._raw)
        self.address = start + (-start % MAP_ALIGN)


def encode_tensor_map(plan: TensorMapPlan, pointer: int) -> EncodedMap:
    """The map of the tensor at device address `pointer`; raises CakeError `lowering/bad-plan` or a driver error."""
    check_tensor_map(plan, f"tensor map of {plan.tensor}")
    if pointer % 16:
        raise CakeError(
            error(
                "lowering/bad-plan",
                "hardware",
                f"tensor {plan.tensor} starts at an address that is not a multiple of 16 bytes",
                contract="A tensor that is read or written by TMA starts on a 16-byte boundary.",
            )
        )
    cu = driver()
    rank = len(plan.dims)
    encoded = EncodedMap()
    status = _encode_entry()(
        encoded.address,
        int(getattr(cu.CUtensorMapDataType, "CU_TENSOR_MAP_DATA_TYPE_" + _DATA_TYPE[plan.dtype])),
        rank,
        pointer,
        (ctypes.c_uint64 * rank)(*plan.dims),
        (ctypes.c_uint64 * max(rank - 1, 1))(*plan.strides),
        (ctypes.c_uint32 * rank)(*plan.box),
        (ctypes.c_uint32 * rank)(*([1] * rank)),
        int(cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        int(getattr(cu.CUtensorMapSwizzle, "CU_TENSOR_MAP_SWIZZLE_" + _SWIZZLE[plan.swizzle])),
        int(getattr(cu.CUtensorMapL2promotion, "CU_TENSOR_MAP_L2_PROMOTION_" + L2_PROMOTION)),
        int(getattr(cu.CUtensorMapFloatOOBfill, "CU_TENSOR_MAP_FLOAT_OOB_FILL_" + _FILL[plan.fill])),
    )
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
        raise CakeError(
            error(
                "lowering/cuda-error",
                "hardware",
                "the driver has no cuTensorMapEncodeTiled; tensor maps need a driver of CUDA 12 or later",
            )
        )
    p, u32, enum = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int
    return ctypes.CFUNCTYPE(enum, p, enum, u32, p, p, p, p, p, enum, enum, enum, enum)(address)
