"""The 32-bit instruction descriptor of tcgen05.mma (kinds f16, tf32, f8f6f4, i8; dense, not block scaled).

Source: PTX ISA, "Instruction descriptor" and the "Matrix shape" table of tcgen05.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["f16", "tf32", "f8f6f4", "i8"]

_D = {"f16": {0: "f16", 1: "f32"}, "tf32": {1: "f32"}, "f8f6f4": {0: "f16", 1: "f32"}, "i8": {2: "i32"}}
_AB = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"},
    "i8": {0: "u8", 1: "i8"},
}
K_OF = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32}


class InstructionError(ValueError):
    """A descriptor that names no legal instruction."""


@dataclass(frozen=True)
class Instruction:
    """What the descriptor makes the tensor core do; `*_major` is K or MN."""

    kind: Kind
    m: int
    n: int
    k: int
    a: str
    b: str
    d: str
    a_major: str
    b_major: str
    negate_a: bool
    negate_b: bool
    saturate: bool


def decode(descriptor: int, kind: Kind, cta_group: int = 1) -> Instruction:
    """Decode and check types and shape; raises InstructionError."""
    if not 0 <= descriptor < 1 << 32:
        raise InstructionError("an instruction descriptor has 32 bits")

    def bits(low: int, high: int) -> int:
        return (descriptor >> low) & ((1 << (high - low + 1)) - 1)

    if bits(0, 2):
        raise InstructionError("sparse instructions are not modelled")
    if bits(6, 6) or bits(23, 23) or bits(29, 29):
        raise InstructionError("a reserved bit (6, 23 or 29) is set")
    if bits(30, 31):
        raise InstructionError("a shift is set, which only weight-stationary instructions have")
    if bits(3, 3) and kind != "i8":
        raise InstructionError("saturation exists for integers only")
    if (bits(13, 13) or bits(14, 14)) and kind == "i8":
        raise InstructionError("integers cannot be negated")
    try:
        d, a, b = _D[kind][bits(4, 5)], _AB[kind][bits(7, 9)], _AB[kind][bits(10, 12)]
    except KeyError as exc:
        raise InstructionError(f"type code {exc.args[0]} does not exist for kind {kind}") from None
    if kind == "f16" and "bf16" in (a, b) and d != "f32":
        raise InstructionError("bf16 accumulates in f32 only")
    if kind == "f16" and a != b:
        raise InstructionError("f16 and bf16 cannot be mixed")
    m, n = bits(24, 28) * 16, bits(17, 22) * 8
    check_shape(kind, m, n, cta_group)
    return Instruction(
        kind, m, n, K_OF[kind], a, b, d,
        "MN" if bits(15, 15) else "K", "MN" if bits(16, 16) else "K",
        bool(bits(13, 13)), bool(bits(14, 14)), bool(bits(3, 3)),
    )  # fmt: skip


def check_shape(kind: Kind, m: int, n: int, cta_group: int) -> None:
    """Raise unless m x n is in the shape table."""
    if cta_group == 1:
        ok = m in (64, 128) and 8 <= n <= 256 and n % 8 == 0
        if kind == "i8":
            ok = m in (64, 128) and (n in (8, 24) or (16 <= n <= 256 and n % 16 == 0))
    else:
        step = 32 if kind == "i8" else 16
        ok = m in (128, 256) and step <= n <= 256 and n % step == 0
    if not ok:
        raise InstructionError(f"no {kind} instruction of M={m}, N={n} exists for cta_group::{cta_group}")
