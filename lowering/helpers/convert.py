"""Number formats and approximate functions (PTX ISA: cvt, ex2, rcp, rsqrt, lg2, tanh). 16-bit values travel as bits."""

from __future__ import annotations

_D = "__device__ __forceinline__ "


def _unary(name: str, instruction: str) -> str:
    return (
        _D
        + f"""float {name}(float x) {{
  float y;
  asm("{instruction} %0, %1;" : "=f"(y) : "f"(x));
  return y;
}}
"""
    )


def _pack(name: str, instruction: str, kind: str = "u32", constraint: str = "r") -> str:
    # The first source of a packed cvt becomes the upper half.
    return (
        _D
        + f"""{kind} {name}(float low, float high) {{
  {kind} packed;
  asm("{instruction} %0, %1, %2;" : "={constraint}"(packed) : "f"(high), "f"(low));
  return packed;
}}
"""
    )


TEXT: dict[str, str] = {
    "exp2": _unary("exp2", "ex2.approx.ftz.f32"),
    "rcp": _unary("rcp", "rcp.approx.ftz.f32"),
    "rsqrt": _unary("rsqrt", "rsqrt.approx.ftz.f32"),
    "log2": _unary("log2", "lg2.approx.ftz.f32"),
    "sqrt": _unary("sqrt", "sqrt.approx.ftz.f32"),
    "tanh": _unary("tanh", "tanh.approx.f32"),
    "pack_bf16": _pack("pack_bf16", "cvt.rn.bf16x2.f32"),
    "pack_f16": _pack("pack_f16", "cvt.rn.f16x2.f32"),
    "pack_e4m3": _pack("pack_e4m3", "cvt.rn.satfinite.e4m3x2.f32", "u16", "h"),
    "pack_e5m2": _pack("pack_e5m2", "cvt.rn.satfinite.e5m2x2.f32", "u16", "h"),
    "bf16_at": _D
    + """float bf16_at(const u32* x, int i) {
  return __uint_as_float((i & 1) ? (x[i >> 1] & 0xffff0000u) : (x[i >> 1] << 16));
}
""",
    "f16_bits": _D
    + """float f16_bits(u16 bits) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
  return y;
}
""",
    "f16_at": _D
    + """float f16_at(const u32* x, int i) {
  return f16_bits(static_cast<u16>((i & 1) ? (x[i >> 1] >> 16) : (x[i >> 1] & 0xffffu)));
}
""",
    "bf16_bits": _D
    + """float bf16_bits(u16 bits) { return __uint_as_float(static_cast<u32>(bits) << 16); }
""",
    "half_at": _D
    + """u32 half_at(const u32* x, int i) { return (i & 1) ? (x[i >> 1] >> 16) : (x[i >> 1] & 0xffffu); }
""",
    "byte_at": _D
    + """u32 byte_at(const u32* x, int i) { return (x[i >> 2] >> (8 * (i & 3))) & 0xffu; }
""",
    "e4m3_bits": _D
    + """float e4m3_bits(u32 bits) {
  u32 pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<u16>(bits)));
  return f16_bits(static_cast<u16>(pair & 0xffffu));
}
""",
    "e5m2_bits": _D
    + """float e5m2_bits(u32 bits) { return f16_bits(static_cast<u16>(bits << 8)); }
""",
    "e4m3_at": _D
    + """float e4m3_at(const u32* x, int i) {
  u32 pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<u16>(x[i >> 2] >> (16 * ((i >> 1) & 1)))));
  return f16_bits(static_cast<u16>((i & 1) ? (pair >> 16) : (pair & 0xffffu)));
}
""",
    "e5m2_at": _D
    + """float e5m2_at(const u32* x, int i) { return f16_bits(static_cast<u16>(byte_at(x, i) << 8)); }
""",
    # For operands that are not negative: cheaper than the signed forms.
    "udiv": _D
    + """int udiv(int a, int b) { return static_cast<int>(static_cast<u32>(a) / static_cast<u32>(b)); }
""",
    "umod": _D
    + """int umod(int a, int b) { return static_cast<int>(static_cast<u32>(a) % static_cast<u32>(b)); }
""",
    "floor_div": _D
    + """int floor_div(int a, int b) {
  int q = a / b;
  return q - ((a % b != 0) & ((a < 0) != (b < 0)));
}
""",
    "floor_mod": _D
    + """int floor_mod(int a, int b) {
  int m = a % b;
  return m + (((m != 0) & ((m < 0) != (b < 0))) ? b : 0);
}
""",
}

NEEDS: dict[str, tuple[str, ...]] = {
    "f16_at": ("f16_bits",), "e4m3_at": ("f16_bits",), "e5m2_at": ("f16_bits", "byte_at"),
    "e4m3_bits": ("f16_bits",), "e5m2_bits": ("f16_bits",),
}  # fmt: skip
