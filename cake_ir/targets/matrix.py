"""Legal matrix-instruction forms as data: wgmma, mma.sync and tcgen05.mma.

Types use the language's names (`i8` for PTX s8, `i32` for s32). Sizes are elements unless a name says bytes.
Sources: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions", "Warp Level Matrix
Multiply-Accumulate Instructions", "tcgen05: Matrix Shape" and "Data types"; the wgmma and mma.sync tables are also
re-assembled by the tests.
"""

from __future__ import annotations

from dataclasses import dataclass

# The k of an instruction always covers 32 bytes of input per row.


@dataclass(frozen=True)
class WgmmaForm:
    """One wgmma.mma_async type combination; the shape is m64 n{n} k{k}."""

    a: str
    b: str
    d: str
    k: int
    mn_major: bool  # transposed (MN-major) shared-memory operands exist for 16-bit types only
    n_values: tuple[int, ...]
    d_regs_per_n: float  # 32-bit accumulator registers per thread, per column of n
    source: str
    m: int = 64
    a_regs: int = 4  # 32-bit registers per thread when A comes from registers

    def allows_n(self, n: int) -> bool:
        """Whether m64 n k is an instruction of this form."""
        return n in self.n_values

    def d_regs(self, n: int) -> int:
        """32-bit accumulator registers per thread for one m64 x n tile."""
        return int(n * self.d_regs_per_n)


@dataclass(frozen=True)
class MmaSyncForm:
    """One mma.sync instruction: A m x k row-major, B k x n column-major, D m x n. Registers are 32-bit, per lane."""

    m: int
    n: int
    k: int
    a: str
    b: str
    d: str
    a_regs: int
    b_regs: int
    d_regs: int
    source: str
    kind: str = ""  # "", "f8f6f4", "mxf8f6f4", "mxf4", "mxf4nvf4"
    scale: str | None = None  # scale factor type of block-scaled kinds
    scale_vec: int = 0  # scale factors per row of A (per column of B) in one instruction


@dataclass(frozen=True)
class NRule:
    """Which N a tcgen05 instruction takes: listed first, then every step up to 256."""

    m: tuple[int, ...]
    start: int
    step: int
    extra: tuple[int, ...] = ()
    stop: int = 256

    def allows(self, m: int, n: int) -> bool:
        return m in self.m and (n in self.extra or (self.start <= n <= self.stop and (n - self.start) % self.step == 0))


@dataclass(frozen=True)
class Tcgen05Form:
    """One tcgen05.mma kind, dense. `ab` lists the types either operand may have; `mixed` whether they may differ."""

    kind: str
    ab: tuple[str, ...]
    d: tuple[str, ...]
    mixed: bool
    k: int
    cg1: NRule
    cg2: NRule
    mn_major: bool
    source: str
    scale: tuple[str, ...] = ()
    block: int = 0  # elements of K that share one scale factor
    note: str = ""

    def pairs(self, a: str, b: str) -> bool:
        """Whether a and b may be multiplied with each other."""
        return a in self.ab and b in self.ab and (self.mixed or a == b)

    def has_scale(self, scale: str | None) -> bool:
        """Whether the kind takes scale factors of that type (None: it takes none)."""
        return not self.scale if scale is None else scale in self.scale

    def allows(self, m: int, n: int, cta_group: int) -> bool:
        """Whether m x n is an instruction shape; with cta_group 2, m counts the rows of both CTAs."""
        rule = {1: self.cg1, 2: self.cg2}.get(cta_group)
        return rule is not None and rule.allows(m, n)


FP8 = ("e4m3", "e5m2")
F8F6F4 = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
INT8 = ("i8", "u8")

# ---- wgmma (sm_90a) ------------------------------------------------------------------------------------------------

_N_ALL = tuple(range(8, 257, 8))
# Integer accumulators skip the odd multiples of 8 above 24.
_N_INT = (8, 16, 24, *range(32, 257, 16))
_WGMMA = "PTX ISA, 'wgmma.mma_async': Matrix Shape and Data types"


def _wgmma() -> tuple[WgmmaForm, ...]:
    forms = [
        WgmmaForm("f16", "f16", "f16", 16, True, _N_ALL, 0.25, _WGMMA),
        WgmmaForm("f16", "f16", "f32", 16, True, _N_ALL, 0.5, _WGMMA),
        WgmmaForm("bf16", "bf16", "f32", 16, True, _N_ALL, 0.5, _WGMMA),
        WgmmaForm("tf32", "tf32", "f32", 8, False, _N_ALL, 0.5, _WGMMA),
    ]
    for a in FP8:
        for b in FP8:
            forms.append(WgmmaForm(a, b, "f16", 32, False, _N_ALL, 0.25, _WGMMA))
            forms.append(WgmmaForm(a, b, "f32", 32, False, _N_ALL, 0.5, _WGMMA))
    forms += [WgmmaForm(a, b, "i32", 32, False, _N_INT, 0.5, _WGMMA) for a in INT8 for b in INT8]
    return tuple(forms)


WGMMA_SM90A = _wgmma()

# ---- mma.sync ------------------------------------------------------------------------------------------------------

_MMA = "PTX ISA, 'mma': Matrix Fragments for mma.m16n8k*"
_MMA_SCALED = "PTX ISA, 'mma': Block Scaling"


def _mma_sm80() -> tuple[MmaSyncForm, ...]:
    forms = [MmaSyncForm(8, 8, 4, "f64", "f64", "f64", 2, 2, 4, _MMA)]
    for k, ar, br in ((8, 2, 1), (16, 4, 2)):
        forms += [
            MmaSyncForm(16, 8, k, "f16", "f16", "f16", ar, br, 2, _MMA),
            MmaSyncForm(16, 8, k, "f16", "f16", "f32", ar, br, 4, _MMA),
            MmaSyncForm(16, 8, k, "bf16", "bf16", "f32", ar, br, 4, _MMA),
        ]
    for k, ar, br in ((4, 2, 1), (8, 4, 2)):
        forms.append(MmaSyncForm(16, 8, k, "tf32", "tf32", "f32", ar, br, 4, _MMA))
    for k, ar, br in ((16, 2, 1), (32, 4, 2)):
        forms += [MmaSyncForm(16, 8, k, a, b, "i32", ar, br, 4, _MMA) for a in INT8 for b in INT8]
    return tuple(forms)


def _mma_fp8() -> tuple[MmaSyncForm, ...]:
    return tuple(
        MmaSyncForm(16, 8, k, a, b, d, ar, br, dr, _MMA)
        for k, ar, br in ((16, 2, 1), (32, 4, 2))
        for a in FP8
        for b in FP8
        for d, dr in (("f16", 2), ("f32", 4))
    )


def _mma_sm120() -> tuple[MmaSyncForm, ...]:
    plain = tuple(
        MmaSyncForm(16, 8, 32, a, b, "f32", 4, 2, 4, _MMA, kind="f8f6f4")
        for a in F8F6F4
        for b in F8F6F4
        if not (a in FP8 and b in FP8)
    )
    scaled = tuple(
        MmaSyncForm(16, 8, 32, a, b, "f32", 4, 2, 4, _MMA_SCALED, kind="mxf8f6f4", scale="e8m0", scale_vec=1)
        for a in F8F6F4
        for b in F8F6F4
    )
    fp4 = (
        MmaSyncForm(16, 8, 64, "e2m1", "e2m1", "f32", 4, 2, 4, _MMA_SCALED, kind="mxf4", scale="e8m0", scale_vec=2),
        MmaSyncForm(16, 8, 64, "e2m1", "e2m1", "f32", 4, 2, 4, _MMA_SCALED, kind="mxf4nvf4", scale="e8m0", scale_vec=2),
        MmaSyncForm(16, 8, 64, "e2m1", "e2m1", "f32", 4, 2, 4, _MMA_SCALED, kind="mxf4nvf4", scale="e4m3", scale_vec=4),
    )
    return plain + scaled + fp4


MMA_SM80 = _mma_sm80()
MMA_SM89 = MMA_SM80 + _mma_fp8()
MMA_SM120A = MMA_SM89 + _mma_sm120()

# ---- tcgen05 (sm_100a family) ----------------------------------------------------------------------------------------

_TC = "PTX ISA, 'tcgen05.mma': Matrix Shape"
_CG1 = NRule(m=(64, 128), start=8, step=8)
_CG2 = NRule(m=(128, 256), start=16, step=16)
_CG1_128 = NRule(m=(128,), start=8, step=8)


def _tcgen05(int8: bool, wide_fp4: bool) -> tuple[Tcgen05Form, ...]:
    fp4_note = "k 96 also exists with m 256, selected by the instruction descriptor" if wide_fp4 else ""
    n_note = "n multiple of 16 (cta_group 2: 32) when an 8-bit B is MN-major (CUTLASS)"
    forms = [
        Tcgen05Form("f16", ("f16",), ("f16", "f32"), False, 16, _CG1, _CG2, True, _TC),
        Tcgen05Form("f16", ("bf16",), ("f32",), False, 16, _CG1, _CG2, True, _TC),
        Tcgen05Form(
            "tf32",
            ("tf32",),
            ("f32",),
            False,
            8,
            _CG1,
            _CG2,
            True,
            _TC,
            note="MN-major needs the 128-byte swizzle with 32-byte atoms",
        ),
        Tcgen05Form("f8f6f4", F8F6F4, ("f16", "f32"), True, 32, _CG1, _CG2, True, _TC, note=n_note),
        Tcgen05Form("mxf8f6f4", F8F6F4, ("f32",), True, 32, _CG1_128, _CG2, True, _TC, ("e8m0",), 32, n_note),
        Tcgen05Form("mxf4", ("e2m1",), ("f32",), False, 64, _CG1_128, _CG2, False, _TC, ("e8m0",), 32, fp4_note),
        Tcgen05Form("mxf4nvf4", ("e2m1",), ("f32",), False, 64, _CG1_128, _CG2, False, _TC, ("e4m3",), 16, fp4_note),
        Tcgen05Form("mxf4nvf4", ("e2m1",), ("f32",), False, 64, _CG1_128, _CG2, False, _TC, ("e8m0",), 32, fp4_note),
    ]
    if int8:
        cg1 = NRule(m=(64, 128), start=32, step=16, extra=(8, 16, 24))
        cg2 = NRule(m=(128, 256), start=32, step=32)
        forms.append(Tcgen05Form("i8", INT8, ("i32",), True, 32, cg1, cg2, True, _TC))
    return tuple(forms)


TCGEN05_SM100A = _tcgen05(int8=True, wide_fp4=False)
TCGEN05_SM103A = _tcgen05(int8=False, wide_fp4=True)
