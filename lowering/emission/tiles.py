"""Register tiles in C: storage, and elementwise expressions over register slots.

A tile is a C array with one entry per 32-bit value; 16-bit elements sit two, 8-bit elements four to a `u32`, in slot
order, which is the register order of the tensor-core instructions. Elementwise code is a fully unrolled loop over slots
`r` where every operand's slot is a simple function of `r`, otherwise one line per slot.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING

from cake_ir.bound import SX, VX, Fragment, SConst, VCoord, VExpand, VFrag, VOp, VSplat
from cake_ir.dtypes import DType
from cake_ir.layouts import TileType, placement
from lowering.emission.scalars import f32_text

if TYPE_CHECKING:
    from lowering.emission.context import Context

CTYPES = {
    "f32": "float",
    "tf32": "float",
    "i32": "int",
    "u32": "cake::u32",
    "bool": "bool",
    "i64": "long long",
    "u64": "cake::u64",
}
_FLOAT_CALLS = {"exp2", "rcp", "rsqrt", "log2", "sqrt", "tanh"}


class NoFit(Exception):
    """Slots that are no simple function of the loop variable."""


def per_register(dtype: DType) -> int:
    """Elements per array entry."""
    return 32 // dtype.bits if dtype.bits in (8, 16) else 1


def ctype(dtype: DType) -> str:
    """The C type of an array entry."""
    return "cake::u32" if per_register(dtype) > 1 else CTYPES[dtype.name]


def entries(tile: TileType) -> int:
    """Array entries of a tile."""
    per = per_register(tile.dtype)
    return -(-placement(tile).slots // per)


@lru_cache(maxsize=4096)
def slot_table(tile: TileType) -> dict[tuple[int, int], int]:
    """(row offset, column offset) -> slot."""
    return {at: slot for slot, at in enumerate(placement(tile).offsets)}


def fit(values: list[int]) -> str:
    """A formula over `r` that gives values[r]; raises NoFit. Digits of r (bit fields, the top one unbounded) times weights."""
    n, first = len(values), values[0]
    if n == 1 or all(v == first for v in values):
        return str(first)
    bits = (n - 1).bit_length()
    weights = [values[1 << k] - first for k in range(bits)]
    for r, value in enumerate(values):
        if first + sum(w for k, w in enumerate(weights) if r >> k & 1) != value:
            raise NoFit
    terms, k = [], 0
    while k < bits:
        if weights[k] == 0:
            k += 1
            continue
        end = k + 1
        while end < bits and weights[end] == 2 * weights[end - 1]:
            end += 1
        field = f"(r >> {k})" if k else "r"
        if end < bits:
            field = f"({field} & {(1 << (end - k)) - 1})" if k == 0 else f"(r >> {k} & {(1 << (end - k)) - 1})"
        terms.append(
            field if weights[k] == 1 else f"{weights[k]} * {field}" if weights[k] > 0 else f"({weights[k]}) * {field}"
        )
        k = end
    if first:
        terms.append(str(first))
    return " + ".join(terms)


class Tiles:
    """Elementwise code of one kernel."""

    def __init__(self, ctx: Context) -> None:
        self._c = ctx

    # ---- storage ----

    def name(self, frag: Fragment) -> str:
        """The array of a fragment."""
        return self._c.names.of(frag, frag.name)

    def declaration(self, frag: Fragment) -> str:
        """Its declaration; without a value, as a fresh fragment is unwritten."""
        return f"{ctype(frag.type.dtype)} {self.name(frag)}[{entries(frag.type)}];"

    def slots_of(self, x: VFrag) -> list[int]:
        """The slots of the whole fragment that a (slice of a) fragment names, in the slice's slot order."""
        table = slot_table(x.frag.type)
        return [table[(r + x.row0, c + x.col0)] for r, c in placement(x.type).offsets]

    def registers_of(self, x: VX) -> tuple[str, list[int]]:
        """(array, entry of each register of x): for operands of instructions. Expressions are computed into a temporary."""
        if isinstance(x, VFrag):
            per = per_register(x.type.dtype)
            slots = self.slots_of(x)
            if all(s // per == slots[i - i % per] // per and s % per == i % per for i, s in enumerate(slots)):
                return self.name(x.frag), [slots[i] // per for i in range(0, len(slots), per)]
        name = self.temporary(x)
        return name, list(range(entries(x.type)))

    def temporary(self, x: VX) -> str:
        """A new array that holds x."""
        name = self._c.names.fresh("t")
        self._c.out.line(f"{ctype(x.type.dtype)} {name}[{entries(x.type)}];")
        self.assign(name, x)
        return name

    # ---- statements ----

    def assign(self, name: str, x: VX) -> None:
        """name[...] = x for every slot."""
        count, per = placement(x.type).slots, per_register(x.type.dtype)
        groups = [[min(i * per + j, count - 1) for j in range(per)] for i in range(-(-count // per))]
        out = self._c.out
        if len(groups) > 2:
            try:
                text = self._entry(x, [list(column) for column in zip(*groups, strict=True)])
            except NoFit:
                text = ""
            if text:
                out.line("#pragma unroll")
                out.line(f"for (int r = 0; r < {len(groups)}; ++r) {name}[r] = {text};")
                return
        for i, group in enumerate(groups):
            out.line(f"{name}[{i}] = {self._entry(x, [[s] for s in group])};")

    def _entry(self, x: VX, parts: list[list[int]]) -> str:
        """The value of one array entry; parts[j] lists the slots of its j-th element over the loop."""
        use = self._c.helpers.use
        dtype = x.type.dtype
        if len(parts) == 1:
            return self.text(x, parts[0])
        if (
            isinstance(x, VOp)
            and x.op == "cast"
            and x.args[0].type.dtype.name == "f32"
            and dtype.name in ("bf16", "f16", "e4m3", "e5m2")
        ):
            values = [self.text(x.args[0], p) for p in parts]
            pack = use(f"pack_{dtype.name}")
            pairs = [f"{pack}({values[i]}, {values[i + 1]})" for i in range(0, len(values), 2)]
            return pairs[0] if len(pairs) == 1 else f"{pairs[0]} | static_cast<cake::u32>({pairs[1]}) << 16"
        if isinstance(x, VFrag):
            table = self.slots_of(x)
            per = len(parts)
            mapped = [[table[s] for s in p] for p in parts]
            if all(
                mapped[j][i] == mapped[0][i] + j and mapped[0][i] % per == 0
                for j in range(per)
                for i in range(len(mapped[0]))
            ):
                return f"{self.name(x.frag)}[{fit([s // per for s in mapped[0]])}]"
        values = [self.text(x, p) for p in parts]
        shift = 32 // len(parts)
        return " | ".join(f"({v}) << {shift * j}" if j else f"({v})" for j, v in enumerate(values))

    # ---- expressions ----

    def text(self, x: VX, slots: list[int]) -> str:
        """C text of x at slots[r]: 32-bit values as themselves, narrow ones as bits."""
        if isinstance(x, VFrag):
            table = self.slots_of(x)
            at = fit([table[s] for s in slots])
            bits = x.type.dtype.bits
            if bits == 16:
                return f"{self._c.helpers.use('half_at')}({self.name(x.frag)}, {at})"
            if bits == 8:
                return f"{self._c.helpers.use('byte_at')}({self.name(x.frag)}, {at})"
            return f"{self.name(x.frag)}[{at}]"
        if isinstance(x, VSplat):
            return self._splat(x.x, x.type.dtype)
        if isinstance(x, VExpand):
            table = slot_table(x.x.type)
            rows = x.x.type.axis == "rows"
            offsets = placement(x.type).offsets
            return self.text(x.x, [table[(offsets[s][0], 0) if rows else (0, offsets[s][1])] for s in slots])
        if isinstance(x, VCoord):
            row = x.axis.startswith("row")
            base = self._c.base(x.type)[0 if row else 1]
            offsets = placement(x.type).offsets
            return f"({self._c.sx(base)} + {fit([offsets[s][0 if row else 1] for s in slots])})"
        return self._op(x, slots)

    def _splat(self, x: SX, dtype: DType) -> str:
        if isinstance(x, SConst) and dtype.name in ("f32", "tf32"):
            return f32_text(float(x.value))
        if isinstance(x, SConst) and dtype.bits in (8, 16):
            return f"{bits_of(float(x.value), dtype):#x}u"
        return self._c.sx(x)

    def _op(self, x: VOp, slots: list[int]) -> str:
        op = x.op
        if op == "cast":
            return self._cast(x, slots)
        if op == "bitcast":
            return self._bitcast(x, slots)
        a = [self.text(arg, slots) for arg in x.args]
        floating = x.args[-1].type.dtype.kind == "f"
        if op in _FLOAT_CALLS:
            return f"{self._c.helpers.use(op)}({a[0]})"
        if op == "fma":
            return f"__fmaf_rn({a[0]}, {a[1]}, {a[2]})" if floating else f"({a[0]} * {a[1]} + {a[2]})"
        if op == "fnma":
            return f"__fmaf_rn(-{a[0]}, {a[1]}, {a[2]})" if floating else f"({a[2]} - {a[0]} * {a[1]})"
        if op == "fms":
            return f"__fmaf_rn({a[0]}, {a[1]}, -{a[2]})" if floating else f"({a[0]} * {a[1]} - {a[2]})"
        if op == "*":
            return f"__fmul_rn({a[0]}, {a[1]})" if floating else f"({a[0]} * {a[1]})"
        if op in ("min", "max", "min3", "max3"):
            return self._extreme(op[:3], a, floating)
        if op == "select":
            return f"({a[0]} ? {a[1]} : {a[2]})"
        if op == "abs":
            return f"{'fabsf' if floating else 'abs'}({a[0]})"
        if op == "neg":
            return f"(-{a[0]})"
        if op == "~":
            return f"(!{a[0]})" if x.type.dtype.name == "bool" else f"(~{a[0]})"
        return f"({a[0]} {op} {a[1]})"

    @staticmethod
    def _extreme(op: str, a: list[str], floating: bool) -> str:
        f = f"f{op}f" if floating else op
        inner = f"{f}({a[0]}, {a[1]})"
        return inner if len(a) == 2 else f"{f}({inner}, {a[2]})"

    def _cast(self, x: VOp, slots: list[int]) -> str:
        source, target = x.args[0].type.dtype.name, x.type.dtype.name
        use = self._c.helpers.use
        arg = x.args[0]
        if source == target:
            return self.text(arg, slots)
        if source in ("bf16", "f16", "e4m3", "e5m2") and isinstance(arg, VFrag):
            table = self.slots_of(arg)
            wide = f"{use(source + '_at')}({self.name(arg.frag)}, {fit([table[s] for s in slots])})"
        elif source in ("bf16", "f16", "e4m3", "e5m2"):
            wide = f"{use(source + '_bits')}({self.text(arg, slots)})"
        elif source == "i8":  # bytes are kept without their sign
            wide = f"static_cast<int>(static_cast<signed char>({self.text(arg, slots)}))"
        else:
            wide = self.text(arg, slots)
        if target in ("f32", "tf32"):
            return (
                f"__int2float_rn({wide})"
                if source in ("i32", "i8", "bool")
                else f"__uint2float_rn({wide})"
                if source == "u32"
                else wide
            )
        if target in ("i32", "u32"):
            if source in ("f32", "bf16", "f16"):
                return f"__float2int_rz({wide})" if target == "i32" else f"__float2uint_rz({wide})"
            return f"static_cast<{CTYPES[target]}>({wide})"
        if target in ("bf16", "f16", "e4m3", "e5m2"):
            # One element: the upper half of the pair is not used.
            return f"static_cast<cake::u32>({use('pack_' + target)}({wide}, 0.0f)) & {0xFFFF if x.type.dtype.bits == 16 else 0xFF:#x}u"
        if target == "bool":
            return f"({wide} != 0)"
        raise self._c.unsupported(f"cast from {source} to {target}")

    def _bitcast(self, x: VOp, slots: list[int]) -> str:
        source, target = x.args[0].type.dtype.name, x.type.dtype.name
        text = self.text(x.args[0], slots)
        if source == target:
            return text
        calls = {
            ("f32", "i32"): "__float_as_int",
            ("f32", "u32"): "__float_as_uint",
            ("i32", "f32"): "__int_as_float",
            ("u32", "f32"): "__uint_as_float",
        }
        if (source, target) in calls:
            return f"{calls[(source, target)]}({text})"
        if x.type.dtype.bits == x.args[0].type.dtype.bits:
            return f"static_cast<{ctype(x.type.dtype)}>({text})"
        raise self._c.unsupported(f"bitcast from {source} to {target}")


def bits_of(value: float, dtype: DType) -> int:
    """The bits of a constant in a narrow format, rounded to nearest even."""
    if dtype.name == "f16":
        try:
            return struct.unpack("<H", struct.pack("<e", value))[0]
        except OverflowError:
            return 0x7C00 if value > 0 else 0xFC00
    if dtype.name == "bf16":
        raw = struct.unpack("<I", struct.pack("<f", value))[0]
        if (raw & 0x7FFFFFFF) > 0x7F800000:
            return 0x7FFF
        return (raw + 0x7FFF + (raw >> 16 & 1)) >> 16
    if value == 0:
        return 0
    if dtype.kind in "iu":
        return int(value) & 0xFF
    import ml_dtypes
    import numpy as np

    return int(np.array(value, dtype=getattr(ml_dtypes, dtype.numpy)).view(np.uint8))
