"""What emission hands on: the symbolic `Manifest`, the concrete `LaunchPlan`, and promised instructions.

A `Manifest` goes with the CUDA text and holds sizes as integers or as expression text over launch dimensions. A
`LaunchPlan` is the same with every number filled in; it is plain JSON, so that it can cross to a GPU worker process,
and it is validated here against the tensor-map and launch limits that the driver would answer with a bare
`CUDA_ERROR_INVALID_VALUE`. Turning the one into the other is emission's work.

Checked: field types, ranges, alignment of strides and boxes, that names resolve. Not checked: device pointers (see
`lowering.runtime.device`) and limits that depend on the device (shared memory, cluster size).
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

from cake_ir.fault import fault

if TYPE_CHECKING:
    from cake_ir.diagnostics import Span

Size = int | str
"""A number, or the text of an expression over launch dimensions (only in a manifest)."""

ArgKind = Literal["tensor", "tensor_map", "i32", "i64", "f32", "timeline", "timeline_capacity", "timeline_stride"]
TIMELINE_ARGS: dict[Any, int] = {"timeline": 0, "timeline_capacity": 1024, "timeline_stride": 1}
"""Arguments of the instrumented form with the value a fresh plan gives them (see `lowering.timeline`)."""
Fill = Literal["zero", "nan"]
SWIZZLES = (0, 32, 64, 128)

DTYPE_BYTES: dict[str, int] = {
    "f64": 8, "i64": 8, "u64": 8,
    "f32": 4, "tf32": 4, "i32": 4, "u32": 4,
    "bf16": 2, "f16": 2, "i16": 2, "u16": 2,
    "e4m3": 1, "e5m2": 1, "e8m0": 1, "i8": 1, "u8": 1, "bool": 1,
}  # fmt: skip
"""Bytes of one element in global memory."""

MAX_BYTES = 1 << 48
"""No tensor is larger: more than any device can address."""
MAX_RANK = 5
MAX_BOX = 256
MAX_DIM = 1 << 32
MAX_STRIDE = 1 << 40
MAX_THREADS = 1024
BASE_ALIGNMENT = 16
"""Bytes to which every tensor's base pointer is aligned: what emitted code may assume, and no more. It is the widest
access (PTX ISA: vector and bulk accesses are aligned to their size, global addresses of tensor maps to 16 bytes)."""
MAX_GRID_X = (1 << 31) - 1

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_PLAN_KEYS = (
    "symbol", "cubin_sha256", "grid", "cluster", "threads", "smem_bytes", "pdl", "cooperative", "args", "tensor_maps",
)  # fmt: skip
_MAP_KEYS = ("tensor", "dtype", "dims", "strides", "box", "swizzle", "fill")


@dataclass(frozen=True)
class Promise:
    """An instruction the IR promised: at least `min_count` SASS instructions must match the regex `mnemonic`.

    `op` is the op as the author wrote it (`wgmma`); `span` its place in the `.cake` text.
    """

    op: str
    mnemonic: str
    min_count: int = 1
    span: Span = field(default_factory=lambda: _nowhere())


@dataclass(frozen=True)
class ArgSpec:
    """One kernel parameter. `name` is the tensor or map; scalars carry their value as `expr`."""

    kind: ArgKind
    name: str = ""
    expr: Size = 0


@dataclass(frozen=True)
class MapSpec:
    """A tensor map with symbolic dims and strides; the box is always static."""

    tensor: str
    dtype: str
    dims: tuple[Size, ...]
    strides: tuple[Size, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    fill: Fill = "zero"


@dataclass(frozen=True)
class Manifest:
    """How to launch the emitted kernel, with sizes still symbolic.

    `grid` counts CTAs (a flat grid), `cluster` CTAs per cluster, `smem_bytes` is dynamic shared memory per CTA. `timeline`
    is the mark table of an instrumented kernel (see `lowering.timeline`).
    """

    symbol: str
    arch: str
    threads: int
    cluster: int
    smem_bytes: int
    grid: Size
    args: tuple[ArgSpec, ...]
    tensor_maps: dict[str, MapSpec] = field(default_factory=dict)
    pdl: bool = False
    cooperative: bool = False
    timeline: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values only."""
        out = _plain(asdict(self))
        if self.timeline is None:
            del out["timeline"]
        return out

    @staticmethod
    def from_json(obj: dict[str, Any]) -> Manifest:
        """The inverse of `to_json`; raises CakeError `lowering/bad-plan`."""
        try:
            args = tuple(ArgSpec(**a) for a in obj["args"])
            maps = {name: _map_spec(m) for name, m in obj["tensor_maps"].items()}
            return Manifest(**{**obj, "args": args, "tensor_maps": maps})
        except (KeyError, TypeError, AttributeError) as exc:
            _bad(f"the manifest is malformed: {exc}")


@dataclass(frozen=True)
class Arg:
    """One concrete kernel parameter, in signature order.

    `tensor` passes the base pointer of the tensor `name`, `tensor_map` the 128-byte map `name`, `timeline` the device pointer
    of the timeline's buffer, the rest a `value`: records per block and the distance of recorded CTAs, powers of two, for
    `timeline_capacity` and `timeline_stride`.
    """

    kind: ArgKind
    name: str = ""
    value: int | float = 0


@dataclass(frozen=True)
class TensorMapPlan:
    """A tiled tensor map: dim 0 is the innermost; `strides` are bytes of dims 1..rank-1."""

    tensor: str
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    fill: Fill = "zero"


@dataclass(frozen=True)
class LaunchPlan:
    """One launch with every number concrete. `grid` is the number of CTAs, `smem_bytes` dynamic bytes per CTA."""

    symbol: str
    cubin_sha256: str
    grid: int
    cluster: int
    threads: int
    smem_bytes: int
    pdl: bool
    cooperative: bool
    args: tuple[Arg, ...]
    tensor_maps: dict[str, TensorMapPlan] = field(default_factory=dict)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors whose device pointers the launch needs, each once, in order of first use."""
        named = [a.name for a in self.args if a.kind == "tensor"]
        named += [self.tensor_maps[a.name].tensor for a in self.args if a.kind == "tensor_map"]
        return tuple(dict.fromkeys(named))

    def to_json(self) -> dict[str, Any]:
        """The JSON object of docs/architecture.md. Non-finite f32 values travel as the strings inf, -inf, nan."""
        out: dict[str, Any] = {k: getattr(self, k) for k in _PLAN_KEYS}
        out["args"] = [_arg_json(a) for a in self.args]
        out["tensor_maps"] = {name: _plain(asdict(m)) for name, m in self.tensor_maps.items()}
        return out

    @staticmethod
    def from_json(obj: object) -> LaunchPlan:
        """Parse and validate; raises CakeError `lowering/bad-plan` that names the field."""
        top = _record(obj, "plan", _PLAN_KEYS)
        if not isinstance(top["args"], list):
            _bad("plan.args must be a list")
        if not isinstance(top["tensor_maps"], dict):
            _bad("plan.tensor_maps must be an object")
        args = tuple(_arg_from(a, f"args[{i}]") for i, a in enumerate(top["args"]))
        maps = {name: _map_from(m, f"tensor_maps.{name}") for name, m in top["tensor_maps"].items()}
        plan = LaunchPlan(**{**top, "args": args, "tensor_maps": maps})
        validate(plan)
        return plan


def validate(plan: LaunchPlan) -> None:
    """Raise CakeError `lowering/bad-plan` if the driver would refuse, or silently misread, this launch."""
    if not isinstance(plan.symbol, str) or not _SYMBOL.match(plan.symbol):
        _bad("symbol must be a C identifier")
    if not isinstance(plan.cubin_sha256, str) or not _SHA256.match(plan.cubin_sha256):
        _bad("cubin_sha256 must be 64 hex digits")
    _in_range("grid", plan.grid, 1, MAX_GRID_X)
    _in_range("cluster", plan.cluster, 1, 16)
    _in_range("threads", plan.threads, 32, MAX_THREADS)
    _in_range("smem_bytes", plan.smem_bytes, 0, 1 << 20)
    for name in ("pdl", "cooperative"):
        if not isinstance(getattr(plan, name), bool):
            _bad(f"{name} must be a boolean")
    if plan.threads % 32:
        _bad(f"threads = {plan.threads} is not a multiple of 32")
    if plan.grid % plan.cluster:
        _bad(f"grid = {plan.grid} is not a multiple of cluster = {plan.cluster}")
    for i, arg in enumerate(plan.args):
        _check_arg(arg, f"args[{i}]", plan.tensor_maps)
    for name, tensor_map in plan.tensor_maps.items():
        check_tensor_map(tensor_map, f"tensor_maps.{name}")


def check_tensor_map(m: TensorMapPlan, where: str = "tensor map") -> None:
    """Raise CakeError `lowering/bad-plan` unless cuTensorMapEncodeTiled would accept `m`.

    Source: CUDA driver API, Tensor Map Object Management (tiled mode, no interleave, unit element strides).
    """
    if m.dtype not in DTYPE_BYTES:
        _bad(f"{where}.dtype: unknown dtype {m.dtype!r}")
    if m.swizzle not in SWIZZLES:
        _bad(f"{where}.swizzle must be one of {SWIZZLES}, not {m.swizzle!r}")
    if m.fill not in get_args(Fill):
        _bad(f"{where}.fill must be zero or nan")
    if m.fill == "nan" and m.dtype not in ("f64", "f32", "tf32", "bf16", "f16"):
        _bad(f"{where}.fill = nan needs a floating-point element type, not {m.dtype}")
    rank = len(m.dims)
    if not 1 <= rank <= MAX_RANK:
        _bad(f"{where}: rank {rank} is outside 1..{MAX_RANK}")
    if len(m.box) != rank or len(m.strides) != rank - 1:
        _bad(f"{where}: rank {rank} needs {rank} box entries and {rank - 1} strides")
    for i, dim in enumerate(m.dims):
        _in_range(f"{where}.dims[{i}]", dim, 1, MAX_DIM)
    for i, box in enumerate(m.box):
        _in_range(f"{where}.box[{i}]", box, 1, MAX_BOX)
    for i, stride in enumerate(m.strides):
        _in_range(f"{where}.strides[{i}]", stride, 0, MAX_STRIDE - 1)
        if stride % 16:
            _bad(f"{where}.strides[{i}] = {stride} bytes is not a multiple of 16")
    inner = m.box[0] * DTYPE_BYTES[m.dtype]
    if inner % 16:
        _bad(f"{where}: the inner box is {inner} bytes, not a multiple of 16")
    if m.swizzle and inner > m.swizzle:
        _bad(f"{where}: the inner box is {inner} bytes, wider than its {m.swizzle}-byte swizzle")


def _check_arg(arg: Arg, where: str, maps: dict[str, TensorMapPlan]) -> None:
    if arg.kind not in get_args(ArgKind):
        _bad(f"{where}: unknown kind {arg.kind!r}")
    if arg.kind in ("tensor", "tensor_map"):
        if not isinstance(arg.name, str) or not arg.name:
            _bad(f"{where}: a {arg.kind} argument needs a name")
        if arg.kind == "tensor_map" and arg.name not in maps:
            _bad(f"{where}: no tensor map named {arg.name!r}")
    elif arg.kind in ("timeline_capacity", "timeline_stride"):
        _in_range(where, arg.value, 16 if arg.kind == "timeline_capacity" else 1, 1 << 20)
        if int(arg.value) & (int(arg.value) - 1):
            _bad(f"{where}: {arg.kind} is a power of two, not {arg.value}")
    elif arg.kind == "f32":
        if isinstance(arg.value, bool) or not isinstance(arg.value, (int, float)):
            _bad(f"{where}: f32 needs a number")
        if math.isfinite(arg.value) and abs(arg.value) > 3.4028235677973366e38:
            _bad(f"{where}: {arg.value} does not fit f32")
    else:
        bits = 32 if arg.kind == "i32" else 64
        _in_range(where, arg.value, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def _map_spec(obj: dict[str, Any]) -> MapSpec:
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in obj.items()}
    return MapSpec(**fields)


def _arg_json(arg: Arg) -> dict[str, Any]:
    if arg.kind in ("tensor", "tensor_map"):
        return {"kind": arg.kind, "name": arg.name}
    finite = math.isfinite(arg.value)
    return {"kind": arg.kind, "value": arg.value if finite else str(float(arg.value))}


def _arg_from(obj: object, where: str) -> Arg:
    if not isinstance(obj, dict) or obj.get("kind") not in get_args(ArgKind):
        _bad(f"{where} needs a kind out of {', '.join(get_args(ArgKind))}")
    if obj["kind"] in ("tensor", "tensor_map"):
        return Arg(**_record(obj, where, ("kind", "name")))
    record = _record(obj, where, ("kind", "value"))
    value = record["value"]
    if record["kind"] == "f32" and value in ("inf", "-inf", "nan"):
        record = {**record, "value": float(value)}
    return Arg(**record)


def _map_from(obj: object, where: str) -> TensorMapPlan:
    record = _record(obj, where, _MAP_KEYS)
    for key in ("dims", "strides", "box"):
        if not isinstance(record[key], list):
            _bad(f"{where}.{key} must be a list")
        record[key] = tuple(record[key])
    for key in ("tensor", "dtype", "fill"):
        if not isinstance(record[key], str):
            _bad(f"{where}.{key} must be a string")
    return TensorMapPlan(**record)


def _record(obj: object, where: str, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(obj, dict):
        _bad(f"{where} must be an object")
    missing = [k for k in keys if k not in obj]
    unknown = sorted(str(k) for k in obj if k not in keys)
    if missing or unknown:
        _bad(f"{where}: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}")
    return dict(obj)


def _in_range(where: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        _bad(f"{where} must be an integer")
    if not low <= value <= high:
        _bad(f"{where} = {value} is outside {low}..{high}")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def _nowhere() -> Span:
    from cake_ir.diagnostics import NOWHERE  # pydantic: the host path reads manifests without it

    return NOWHERE


def _bad(message: str) -> NoReturn:
    law = "A launch plan names only values the driver and the kernel accept."
    raise fault("lowering/bad-plan", message, contract=law)
