"""From a recipe and a shape to launches with every number filled in. Pure, and without the compiler: the host path's side of
`lowering.emission.recipe`, where the form is described.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from cake_ir.fault import CakeError, fault
from lowering.plan import DTYPE_BYTES, MAX_BYTES, Arg, LaunchPlan, Manifest, MapSpec, TensorMapPlan, validate
from lowering.sizes import expression

WORKSPACE_ALIGN = 256
"""Bytes to which each workspace of a call starts: what CUDA's own allocations are aligned to."""

_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class Fill:
    """A memset node: `count` times the `width`-byte (1, 2 or 4) pattern from the start of `tensor`."""

    tensor: str
    pattern: int
    width: int
    count: int


@dataclass(frozen=True)
class Launch:
    """One kernel launch and the key of its cubin."""

    plan: LaunchPlan
    cubin_key: str


@dataclass(frozen=True)
class Concrete:
    """A recipe at one shape. shapes: extents of every tensor that the caller passes. offsets: first byte of every workspace in
    one allocation of `workspace_bytes`. Steps run in order; one that would launch no CTA is left out."""

    shapes: dict[str, tuple[int, ...]]
    offsets: dict[str, int]
    workspace_bytes: int
    steps: tuple[Fill | Launch, ...]


def concrete(
    recipe: Mapping[str, Any], dims: Mapping[str, int], scalars: Mapping[str, float], sms: int, *, admitted: bool = False
) -> Concrete:  # fmt: skip
    """Every number of a recipe's launches.

    Args:
        recipe: see `lowering.emission.recipe`; untrusted.
        dims: extents by name.
        scalars: the recipe's scalars by name.
        sms: multiprocessors of the device.
        admitted: the recipe's conditions are known to hold (`corpus.routes.choose` asked them).

    Raises:
        CakeError: `lowering/bad-recipe` (malformed), `lowering/bad-expression`, `lowering/bad-plan`,
            `lowering/shape-not-admitted` (a condition does not hold; the message says which).
    """
    try:
        wanted = [s for s in recipe["scalars"] if s not in scalars]
        if wanted:
            _bad(f"the scalar {wanted[0]} is not given")
        env: dict[str, Any] = {**dims, **scalars, "sms": sms}

        def size(text: int | str) -> Any:
            return text if isinstance(text, int) else expression(text, env)(env)

        for condition, why in () if admitted else recipe["admits"]:
            if not size(condition):
                shape = ", ".join(f"{k}={v}" for k, v in dims.items())
                raise fault("lowering/shape-not-admitted", f"{why}; it does not hold for {shape}",
                            contract="A launch satisfies the kernel's `where` and the guards of its instructions.")  # fmt: skip
        spaces = {t["name"]: t for t in recipe["workspaces"]}
        named = {t["name"]: t for t in recipe["tensors"]} | spaces
        shapes = {name: tuple(int(size(e)) for e in t["extents"]) for name, t in named.items()}
        for name, shape in shapes.items():
            if min(shape, default=0) < 0:
                _bad(f"{name} has the extents {shape}")
            if math.prod(shape) * DTYPE_BYTES[named[name]["dtype"]] > MAX_BYTES:
                raise fault("lowering/shape-not-admitted", f"{name} has the extents {shape}: more bytes than a device can address",
                            contract=f"A tensor has at most {MAX_BYTES} bytes.")  # fmt: skip
        offsets, end = {}, 0
        for name, t in spaces.items():
            offsets[name] = end
            used = math.prod(shapes[name]) * DTYPE_BYTES[t["dtype"]]
            end += -(-used // WORKSPACE_ALIGN) * WORKSPACE_ALIGN
        steps = [_step(s, size, named, shapes) for s in recipe["launches"]]
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as exc:
        _bad(f"{type(exc).__name__}: {exc}")
    kept = tuple(s for s in steps if isinstance(s, Fill) or s.plan.grid > 0)
    return Concrete({n: s for n, s in shapes.items() if n not in spaces}, offsets, end, kept)


def chained(first: Concrete, then: Concrete, names: Mapping[str, str], scratch: Mapping[str, int]) -> Concrete:
    """`first`, whose tensors are called `names[theirs]` here, then `then`. Tensors of `then` that `first` makes and nobody passes are
    `scratch`, with their bytes: they become workspaces, beside those that both have. Raises CakeError `lowering/bad-recipe` for a tensor
    of `first` that has no name here."""
    own = {name: f"first.{name}" for name in first.offsets}
    unknown = [name for name in first.shapes if name not in names]
    if unknown:
        _bad(f"a recipe that makes another's input has the tensor {unknown[0]!r}; known: {', '.join(names)}")
    renamed = tuple(_renamed(s, {**names, **own}) for s in first.steps)
    offsets = dict(then.offsets)
    end = then.workspace_bytes
    for name, offset in first.offsets.items():
        offsets[own[name]] = end + offset
    end += first.workspace_bytes
    for name, size in scratch.items():
        offsets[name] = end
        end += -(-size // WORKSPACE_ALIGN) * WORKSPACE_ALIGN
    shapes = {name: s for name, s in then.shapes.items() if name not in scratch}
    return Concrete(shapes, offsets, end, (*renamed, *then.steps))


def _renamed(step: Fill | Launch, names: Mapping[str, str]) -> Fill | Launch:
    if isinstance(step, Fill):
        return replace(step, tensor=names[step.tensor])
    plan = step.plan
    args = tuple(replace(a, name=names[a.name]) if a.kind == "tensor" else a for a in plan.args)
    maps = {k: replace(m, tensor=names[m.tensor]) for k, m in plan.tensor_maps.items()}
    return Launch(replace(plan, args=args, tensor_maps=maps), step.cubin_key)


def _step(
    step: Mapping[str, Any],
    size: Callable[[int | str], Any],
    tensors: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
) -> Fill | Launch:
    if "fill" in step:
        name = step["fill"]
        dtype, count = tensors[name]["dtype"], math.prod(shapes[name])
        pattern, width, times = fill_pattern(dtype, step["value"])
        return Fill(name, pattern, width, count * times)
    key = step["cubin_key"]
    if not isinstance(key, str) or len(key) != 64 or not _HEX.issuperset(key):
        _bad("a cubin key is 64 hex digits")
    m = Manifest.from_json(step["manifest"])
    args = []
    for a in m.args:
        if a.kind in ("tensor", "tensor_map"):
            if a.kind == "tensor" and a.name not in tensors:
                _bad(f"no tensor {a.name!r}")
            args.append(Arg(a.kind, a.name))
        else:
            value = size(a.expr)
            args.append(Arg(a.kind, value=float(value) if a.kind == "f32" else int(value)))
    maps = {name: _map(spec, size, tensors) for name, spec in m.tensor_maps.items()}
    plan = LaunchPlan(
        m.symbol, "0" * 64, int(size(m.grid)), m.cluster, m.threads, m.smem_bytes, m.pdl, m.cooperative, tuple(args), maps
    )  # fmt: skip
    if plan.grid > 0:
        validate(plan)
    return Launch(plan, key)


def _map(m: MapSpec, size: Callable[[int | str], Any], tensors: Mapping[str, Any]) -> TensorMapPlan:
    if m.tensor not in tensors:
        _bad(f"no tensor {m.tensor!r}")
    dims, strides = (tuple(int(size(x)) for x in xs) for xs in (m.dims, m.strides))
    return TensorMapPlan(m.tensor, m.dtype, dims, strides, m.box, m.swizzle, m.fill)


def fill_pattern(dtype: str, value: float) -> tuple[int, int, int]:
    """(pattern, width in bytes, patterns per element) that memset takes to make every element `value`.

    Raises CakeError `lowering/bad-recipe` for a value that the type has not, or that no pattern of 1, 2 or 4 bytes repeats to.
    """
    try:
        if dtype in ("f64", "f32", "f16"):
            raw = struct.pack({"f64": "<d", "f32": "<f", "f16": "<e"}[dtype], value)
        elif dtype == "bf16":
            raw = struct.pack("<f", value)[2:]
            if struct.unpack("<f", b"\0\0" + raw)[0] != value and value == value:
                raise OverflowError("not a bf16")
        elif dtype in ("e4m3", "e5m2", "e8m0"):
            if value:
                raise OverflowError("only 0 is the same in every 8-bit type")
            raw = b"\0"
        else:
            raw = int(value).to_bytes(DTYPE_BYTES[dtype], "little", signed=dtype[0] == "i")
    except (OverflowError, struct.error) as exc:
        _bad(f"fill({value}) of {dtype}: {exc}")
    width = min(len(raw), 4)
    if raw[:width] * (len(raw) // width) != raw:
        _bad(f"fill({value}) of {dtype} is no repeated pattern of 4 bytes")
    return int.from_bytes(raw[:width], "little"), width, len(raw) // width


def _bad(message: str) -> NoReturn:
    error: CakeError = fault(
        "lowering/bad-recipe", message, contract="A recipe names tensors, extents and expressions that exist."
    )
    raise error from None
