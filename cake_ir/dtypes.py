"""Element types. Widths in bits; `numpy` is the numpy / ml_dtypes name used by the value reading."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    """One element type. `kind` is f (float), i (signed), u (unsigned) or b (mask)."""

    name: str
    bits: int
    kind: str
    numpy: str
    cuda: str

    @property
    def bytes(self) -> int:
        """Bytes of one element in memory (sub-byte types are not stored alone)."""
        return max(1, self.bits // 8)

    def __str__(self) -> str:
        return self.name


_ALL = [
    DType("f32", 32, "f", "float32", "float"),
    DType("tf32", 32, "f", "float32", "float"),
    DType("bf16", 16, "f", "bfloat16", "__nv_bfloat16"),
    DType("f16", 16, "f", "float16", "__half"),
    DType("e4m3", 8, "f", "float8_e4m3fn", "unsigned char"),
    DType("e5m2", 8, "f", "float8_e5m2", "unsigned char"),
    DType("i32", 32, "i", "int32", "int"),
    DType("u32", 32, "u", "uint32", "unsigned int"),
    DType("i8", 8, "i", "int8", "signed char"),
    DType("u8", 8, "u", "uint8", "unsigned char"),
    DType("i64", 64, "i", "int64", "long long"),
    DType("u64", 64, "u", "uint64", "unsigned long long"),
    DType("bool", 1, "b", "bool", "bool"),
]
DTYPES: dict[str, DType] = {d.name: d for d in _ALL}
F32, BF16, F16, I32, BOOL = (DTYPES[n] for n in ("f32", "bf16", "f16", "i32", "bool"))
