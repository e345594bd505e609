"""Does a kernel's signature fit a contract, and which shapes of the contract does the kernel admit?

Tensors and scalars are matched by name; rank, direction and element type must agree. Dimension names may differ: the
kernel's are solved from the concrete extents. A kernel scalar that the contract does not name may be a dimension of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from cake_ir.arithmetic import compile_sx
from cake_ir.bound import BoundKernel, SConst, SVar
from cake_ir.diagnostics import CakeError, Diagnostic, Related, Span, Subject, error
from corpus.contract import Contract, Shape

if TYPE_CHECKING:
    from cake_ir.bound import Tensor

_DIRECTIONS = {"in": ("In", "Const"), "out": ("Out",), "inout": ("InOut",)}
RULE = "contract/signature-mismatch"
LAW = "A kernel takes the contract's tensors and scalars by name, with its directions, ranks and element types."


@dataclass(frozen=True)
class Match:
    """How a kernel fits a contract: the dtype parameters its signature chose. Truthy when there are no diagnostics."""

    dtypes: Mapping[str, str]
    diagnostics: tuple[Diagnostic, ...]

    def __bool__(self) -> bool:
        return not self.diagnostics


def match(bound: BoundKernel, contract: Contract) -> Match:
    """Compare signatures; every difference is one diagnostic at the kernel's parameter (or its head line)."""
    found: list[Diagnostic] = []

    def say(message: str, span: Span, related: tuple[Related, ...] = ()) -> None:
        found.append(
            error(RULE, "data", message, span, contract=LAW, subject=Subject(kernel=bound.name), related=related)
        )

    have = {t.name: t for t in bound.tensors}
    dtypes: dict[str, str] = {}
    chosen_at: dict[str, Tensor] = {}
    for spec in contract.tensors:
        t = have.pop(spec.name, None)
        wanted = contract.dtypes.get(spec.dtype, (spec.dtype,))
        form = f"{spec.name}: {spec.direction}[{'|'.join(wanted)}, {', '.join(map(str, spec.extents))}]"
        if t is None:
            others = ", ".join(sorted(set(have) - {s.name for s in contract.tensors})) or "none unmatched"
            say(f"contract {contract.name} needs the tensor {form}; the kernel's other tensors: {others}", bound.span)
            continue
        if t.direction not in _DIRECTIONS[spec.direction]:
            allowed = " or ".join(_DIRECTIONS[spec.direction])
            say(f"{t.name} is {t.direction}, the contract says {allowed} ({form})", t.span)
        if len(t.extents) != len(spec.extents):
            say(f"{t.name} has {len(t.extents)} dimensions, the contract says {len(spec.extents)} ({form})", t.span)
        if t.dtype.name not in wanted:
            say(f"{t.name} has elements {t.dtype.name}, the contract says {' or '.join(wanted)} ({form})", t.span)
        elif spec.dtype in contract.dtypes:
            first = dtypes.setdefault(spec.dtype, t.dtype.name)
            chosen_at.setdefault(spec.dtype, t)
            if first != t.dtype.name:
                other = chosen_at[spec.dtype]
                say(
                    f"{t.name} has elements {t.dtype.name} but {other.name} has {first}: both are {spec.dtype}", t.span,
                    (Related(span=other.span, message=f"{other.name} is {first} here"),),
                )  # fmt: skip
        for i, s in enumerate(t.strides):
            if s is not None:
                say(f"{t.name} declares a stride for dimension {i}; contract tensors are dense row-major", t.span)
    for t in have.values():
        say(f"contract {contract.name} has no tensor {t.name!r}", t.span)
    wanted_scalars = {s.name: s for s in contract.scalars}
    for a in bound.args:
        spec_s = wanted_scalars.pop(a.name, None)
        if spec_s is None and a.name not in contract.dims:
            say(f"contract {contract.name} has no scalar {a.name!r}", a.span)
        elif spec_s is not None and spec_s.dtype != a.dtype:
            say(f"{a.name} is {a.dtype}, the contract says {spec_s.dtype}", a.span)
    for s in wanted_scalars.values():
        say(f"contract {contract.name} needs the scalar {s.name}: {s.dtype}", bound.span)
    return Match(dtypes, tuple(found))


def scalar_values(bound: BoundKernel, contract: Contract, shape: Shape) -> dict[str, float | int]:
    """Values of the kernel's scalar arguments for a shape."""
    values = contract.scalar_values()
    return {a.name: values.get(a.name, shape.get(a.name, 0)) for a in bound.args}


def solve_dims(bound: BoundKernel, contract: Contract, shape: Shape) -> dict[str, int]:
    """The kernel's dimensions for a contract shape; raises CakeError when the extents contradict each other."""
    dims: dict[str, int] = {}
    source: dict[str, str] = {}
    derived = []
    for t in bound.tensors:
        sizes = contract.extents(contract.tensor(t.name), shape)
        for i, (extent, size) in enumerate(zip(t.extents, sizes, strict=True)):
            if isinstance(extent, SVar):
                name = extent.var.name
                if dims.setdefault(name, size) != size:
                    _mismatch(bound, t, f"dimension {name} is {dims[name]} in {source[name]} but {size} in {t.name}")
                source.setdefault(name, f"{t.name} (dimension {i})")
            elif isinstance(extent, SConst):
                if extent.value != size:
                    _mismatch(bound, t, f"dimension {i} of {t.name} is {extent.value}, this shape needs {size}")
            else:
                derived.append((t, i, extent, size))
    env = _environment(bound, dims, scalar_values(bound, contract, shape))
    for t, i, extent, size in derived:
        try:
            value = compile_sx(extent)(env)
        except TypeError:  # a dimension that no extent gives alone
            _mismatch(bound, t, f"dimension {i} of {t.name} cannot be solved: name each dimension once on its own")
        if value != size:
            _mismatch(bound, t, f"dimension {i} of {t.name} is {value}, this shape needs {size}")
    return dims


def refused(bound: BoundKernel, dims: Mapping[str, int], scalars: Mapping[str, float]) -> str | None:
    """Why the kernel's `where` does not admit these dimensions, or None. Names the line of the failing condition."""
    env = _environment(bound, dims, scalars)
    for w in bound.where:
        if not compile_sx(w.cond)(env):
            return f"`where` on line {w.span.line} does not hold"
    return None


def _environment(bound: BoundKernel, dims: Mapping[str, int], scalars: Mapping[str, float]) -> list[object]:
    env: list[object] = [None] * len(bound.scalars)
    for name, var in bound.dims.items():
        if name in dims:
            env[var.slot] = dims[name]
    for a in bound.args:
        env[a.slot] = scalars.get(a.name)
    return env


def _mismatch(bound: BoundKernel, t: Tensor, message: str) -> NoReturn:
    raise CakeError(error(RULE, "data", message, t.span, contract=LAW, subject=Subject(kernel=bound.name)))
