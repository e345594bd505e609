"""What a launch needs: the manifest with symbolic sizes, and the concrete plan for one shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from cake_ir.arithmetic import compile_sx
from cake_ir.bound import (
    SX,
    BoundKernel,
    For,
    Op,
    Region,
    ScalarVar,
    SConst,
    SetScalar,
    SOp,
    SVar,
    sx_vars,
    walk,
)
from cake_ir.derive import Derived, TensorMap
from cake_ir.derive.maps import stride
from cake_ir.diagnostics import CakeError, Span, error
from cake_ir.facts import EXTENT_MAX, INT_MAX
from lowering.emission.context import Context, Record
from lowering.emission.kernel import parameters
from lowering.emission.scalars import sx_text
from lowering.plan import (
    MAX_BYTES,
    TIMELINE_ARGS,
    Arg,
    ArgSpec,
    LaunchPlan,
    Manifest,
    MapSpec,
    Promise,
    TensorMapPlan,
    validate,
)


@dataclass(frozen=True, eq=False)
class Emitted:
    """One emitted kernel.

    cuda: the text. promised: instructions the machine code must hold. records: derived hardware values for a decoder;
    `thread_slots` gives the environment slots of lane, warp and so on that their expressions read. parameters: (kind,
    tensor | tensor map | scalar) in signature order.
    """

    cuda: str
    symbol: str
    arch: str
    manifest: Manifest
    promised: tuple[Promise, ...]
    records: tuple[Record, ...]
    thread_slots: dict[str, int]
    parameters: tuple[tuple[str, Any], ...]
    bound: BoundKernel
    derived: Derived


def _size(x: SX) -> int | str:
    return int(x.value) if isinstance(x, SConst) else sx_text(x)


def finish(text: str, c: Context) -> Emitted:
    """Package an emitted kernel."""
    kernel, d = c.kernel, c.derived
    found = parameters(c)
    symbol = c.names.symbol(kernel, kernel.name)
    args = []
    for kind, thing, _ in found:
        if kind in ("tensor", "tensor_map", *TIMELINE_ARGS):
            args.append(ArgSpec(kind, getattr(thing, "name", "")))  # type: ignore[arg-type]
        else:
            args.append(ArgSpec(kind, thing.name, thing.name))  # type: ignore[arg-type]
    maps = {m.name: _map_spec(m) for kind, m, _ in found if kind == "tensor_map"}
    manifest = Manifest(
        symbol=symbol, arch=kernel.target.name, threads=d.launch.threads, cluster=d.launch.cluster, smem_bytes=d.smem_bytes,
        grid=_size(kernel.launch.ctas), args=tuple(args), tensor_maps=maps, pdl=d.launch.pdl, cooperative=d.launch.cooperative,
        timeline=c.marks.table(c.out.file) if c.marks is not None else None,
    )  # fmt: skip
    slots = {name: x.var.slot for name, x in c.threads.items() if isinstance(x, SVar)}
    return Emitted(
        cuda=text, symbol=symbol, arch=kernel.target.name, manifest=manifest, promised=c.promised(), records=tuple(c.records),
        thread_slots=slots, parameters=tuple((kind, thing) for kind, thing, _ in found), bound=kernel, derived=d,
    )  # fmt: skip


def _map_spec(m: TensorMap) -> MapSpec:
    t = m.tensor
    rank = len(t.extents)
    strides = tuple(_bytes(stride(t, dim), m.dtype.bytes) for dim in range(rank - 2, -1, -1))
    return MapSpec(
        t.name,
        m.dtype.name,
        tuple(_size(e) for e in reversed(t.extents)),
        strides,
        m.box,
        m.swizzle,
        "nan" if m.fill == "nan" else "zero",
    )  # type: ignore[arg-type]


def _bytes(x: SX, size: int) -> int | str:
    return int(x.value) * size if isinstance(x, SConst) else f"{size} * {sx_text(x)}"


def environment(bound: BoundKernel, dims: dict[str, int], scalars: dict[str, float | int], sms: int) -> list[Any]:
    """Scalar values by slot: extents, arguments, the number of SMs, and what the host can compute from them."""
    env: list[Any] = [None] * len(bound.scalars)
    for name, v in bound.dims.items():
        if name not in dims:
            raise _bad(f"extent {name} is not given", bound.span)
        if not 0 < dims[name] <= EXTENT_MAX:
            raise _bad(f"extent {name} = {dims[name]} is outside 1 .. {EXTENT_MAX}", bound.span)
        env[v.slot] = int(dims[name])
    for v in bound.args:
        if v.name not in scalars:
            raise _bad(f"scalar {v.name} is not given", bound.span)
        env[v.slot] = scalars[v.name]
    for name, v in bound.builtins.items():
        if v.kind == "sms" or name == "sms":
            env[v.slot] = sms
    for stmt in bound.body:
        if (
            isinstance(stmt, SetScalar)
            and env[stmt.var.slot] is None
            and all(env[v.slot] is not None for v in sx_vars(stmt.value))
        ):
            try:
                env[stmt.var.slot] = compile_sx(stmt.value)(env)
            except ZeroDivisionError:
                shape = ", ".join(f"{n}={dims[n]}" for n in bound.dims)
                raise _bad(f"'{stmt.var.name}' divides by zero at {shape} with {sms} multiprocessors", stmt.span) from None
    return env


def plan(
    emitted: Emitted,
    dims: dict[str, int],
    scalars: dict[str, float | int] | None = None,
    sms: int = 132,
    *,
    cubin_sha256: str = "0" * 64,
) -> LaunchPlan:
    """Every number of one launch. Raises CakeError `lowering/shape-not-admitted` when `where` or an alignment guard fails.

    A grid of 0 CTAs means that there is nothing to launch.
    """
    bound, d = emitted.bound, emitted.derived
    env = environment(bound, dims, scalars or {}, sms)
    for where in bound.where:
        if not compile_sx(where.cond)(env):
            raise _bad(f"where({sx_text(where.cond)}) does not hold for {_shape(dims)}", where.span)
    _fits_32_bits(bound, env, dims)
    for guard in d.guards:
        if guard.kind == "base" or guard.value is None:
            continue  # base addresses are checked where they are known, by the runtime
        value = compile_sx(guard.value)(env)
        if guard.kind == "stride" and value * guard.tensor.dtype.bytes % guard.modulus:
            raise _bad(
                f"{guard.tensor.name}: rows of {value} elements are not a multiple of {guard.modulus} B ({guard.reason})",
                guard.span,
            )
        if guard.kind == "extent" and compile_sx(guard.tensor.extents[guard.dim])(env) != value:
            raise _bad(f"{guard.tensor.name}: extent {guard.dim} must be {value} ({guard.reason})", guard.span)
    grid = int(compile_sx(bound.launch.ctas)(env))
    args: list[Arg] = []
    maps: dict[str, TensorMapPlan] = {}
    for kind, thing in emitted.parameters:
        if kind == "tensor":
            args.append(Arg("tensor", thing.name))
        elif kind == "tensor_map":
            args.append(Arg("tensor_map", thing.name))
            maps[thing.name] = _map_plan(thing, env)
        elif kind in TIMELINE_ARGS:
            args.append(Arg(kind, value=TIMELINE_ARGS[kind]))  # type: ignore[arg-type]
        else:
            args.append(_scalar_arg(kind, thing, env))
    m = emitted.manifest
    out = LaunchPlan(
        m.symbol, cubin_sha256, grid, m.cluster, m.threads, m.smem_bytes, m.pdl, m.cooperative, tuple(args), maps
    )
    if grid > 0:
        validate(out)
    return out


def _fits_32_bits(bound: BoundKernel, env: list[Any], dims: dict[str, int]) -> None:
    """Index expressions that the launch alone decides (tile counts, loop bounds) fit the kernel's 32 bits; the verifier proves the
    others from that (`analyses.bounds`)."""

    def visit(x: SX, span: Span) -> None:
        if not isinstance(x, SOp):
            return
        for y in x.args:
            visit(y, span)
        if x.dtype == "i32" and x.op in ("+", "-", "*", "<<") and all(env[v.slot] is not None for v in sx_vars(x)):
            try:
                value = int(compile_sx(x)(env))
            except ZeroDivisionError:
                return
            if not -INT_MAX - 1 <= value <= INT_MAX:
                raise _bad(f"{sx_text(x)} = {value} does not fit 32 bits for {_shape(dims)}", span)

    for t in bound.tensors:
        for e in t.extents:
            if compile_sx(e)(env) > EXTENT_MAX:
                raise _bad(f"an extent of {t.name} is above {EXTENT_MAX} for {_shape(dims)}", t.span)
        if math.prod(compile_sx(e)(env) for e in t.extents) * t.dtype.bytes > MAX_BYTES:
            raise _bad(f"{t.name} has more bytes than a device can address for {_shape(dims)}", t.span)
    visit(bound.launch.ctas, bound.launch.span)
    for stmt in walk(bound.body):
        if isinstance(stmt, SetScalar):
            visit(stmt.value, stmt.span)
        elif isinstance(stmt, For):
            visit(stmt.start, stmt.span)
            visit(stmt.stop, stmt.span)
        elif isinstance(stmt, Op):
            for r in stmt.operands.values():
                for d in r.dims if isinstance(r, Region) else ():
                    visit(d.start, stmt.span)


def _scalar_arg(kind: str, v: ScalarVar, env: list[Any]) -> Arg:
    value = env[v.slot]
    return Arg("f32", value=float(value)) if kind == "f32" else Arg("i32", value=int(value))


def _map_plan(m: TensorMap, env: list[Any]) -> TensorMapPlan:
    t = m.tensor
    dims = tuple(int(compile_sx(e)(env)) for e in reversed(t.extents))
    strides = tuple(int(compile_sx(stride(t, dim))(env)) * m.dtype.bytes for dim in range(len(t.extents) - 2, -1, -1))
    return TensorMapPlan(t.name, m.dtype.name, dims, strides, m.box, m.swizzle, "nan" if m.fill == "nan" else "zero")  # type: ignore[arg-type]


def _shape(dims: dict[str, int]) -> str:
    return ", ".join(f"{k}={v}" for k, v in dims.items())


def _bad(message: str, span: Span) -> CakeError:
    return CakeError(
        error(
            "lowering/shape-not-admitted",
            "hardware",
            message,
            span,
            contract="A launch satisfies the kernel's `where` and the guards of its instructions.",
        )
    )
