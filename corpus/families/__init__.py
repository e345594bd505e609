"""Families: sets of corpus kernels that serve the same contracts, and what `cake tune` may vary, tries and promises.

A family is data: `corpus/families/NAME.py` defines `FAMILY`. What tuning found is beside it, `NAME.TARGET.json`, in the form of
`corpus/routes.py`. Nothing here imports numpy or a compiler; docs/tuning.md is the page for users.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from cake_ir.diagnostics import CakeError, error

DIRECTORY = Path(__file__).parent
Literal = int | float | bool | str
Shape = dict[str, int]

HELD_OUT = "heldout"
"""The shape set that no choice is made on; every other set of a family is tuned on."""
_MODULES = ("gemm", "gemm_nn", "kmeans_assign", "kmeans_inertia", "kmeans_update")


@dataclass(frozen=True)
class Member:
    """One kernel or `@program` of a family, by its name in `corpus/kernels/index.json`. The same kernel may be a member several
    times, with other domains.

    domains: values to try per tunable (of a kernel in a program: `KERNEL.TUNABLE`); a tunable that is not named keeps the
    value of the index, else its default. serves: element types of the family that it has a signature for (empty: all).
    fallback: it may serve shapes that no guard names.
    """

    kernel: str
    domains: Mapping[str, tuple[Literal, ...]] = field(default_factory=dict)
    serves: tuple[str, ...] = ()
    fallback: bool = False


@dataclass(frozen=True)
class Derived:
    """A count that guards may read: the product over `factors` (dim, by) of ceil(dim / by).

    With every `by` 1 a product of dims, else a number of tiles. per_sm: divided by the multiprocessors of the device, rounded up
    (waves of tiles).
    """

    factors: tuple[tuple[str, int], ...]
    meaning: str = ""
    per_sm: bool = False

    def value(self, dims: Mapping[str, int], sms: int) -> int:
        """The count at a shape. KeyError for a dim that is not given."""
        product = math.prod(-(-dims[name] // by) for name, by in self.factors)
        return -(-product // sms) if self.per_sm else product

    @property
    def text(self) -> str:
        """The expression of a route table (`lowering.sizes`)."""
        parts = [name if by == 1 else f"ceil_div({name}, {by})" for name, by in self.factors]
        return f"ceil_div({' * '.join(parts)}, sms)" if self.per_sm else " * ".join(parts)


@dataclass(frozen=True)
class Family:
    """See the module.

    contracts: element type -> contract; the first is measured, a type in `alike` takes the routes of the one it names (its
    kernels differ in the element type alone, which the tunable `dtype_tunable` chooses), and its variants are judged.
    dims: the extents; guards: which of dims and derived counts guards may read (empty: all; the fewer, the less is read into a few
    shapes); ranges: least and greatest extent that the family serves, steps: what an extent is a
    multiple of (default 1). shapes: sets of shapes; all but `heldout` are tuned on, those of a set in `large` with fewer
    candidates. repeat: on large shapes inputs are drawn for at most so much of a dim and repeated along it, since drawing
    costs more than running; no multiple of a tile, so that a misplaced tile shows. most_variants: how many kernels the
    table may name.
    """

    name: str
    contracts: Mapping[str, str]
    kernels: tuple[Member, ...]
    dims: tuple[str, ...]
    ranges: Mapping[str, tuple[int, int]]
    shapes: Mapping[str, tuple[Shape, ...]]
    steps: Mapping[str, int] = field(default_factory=dict)
    derived: Mapping[str, Derived] = field(default_factory=dict)
    guards: tuple[str, ...] = ()
    alike: Mapping[str, str] = field(default_factory=dict)
    dtype_tunable: str = "DT"
    large: tuple[str, ...] = ("large",)
    repeat: Mapping[str, int] = field(default_factory=dict)
    most_variants: int = 12
    summary: str = ""

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ValueError(f"family {self.name!r}: " + "; ".join(problems))

    def _problems(self) -> Iterator[str]:
        if not self.name.isidentifier():
            yield "the name must be an identifier"
        if not self.kernels or not any(m.fallback for m in self.kernels):
            yield "there must be a member that is a fallback"
        if set(self.ranges) != set(self.dims):
            yield "ranges must give exactly the dims"
        for name, (low, high) in self.ranges.items():
            step = self.steps.get(name, 1)
            if not 0 < low <= high or low % step or high % step:
                yield f"the range of {name} must be positive, in order, of multiples of {step}"
        for name, derived in self.derived.items():
            if any(dim not in self.dims or by < 1 for dim, by in derived.factors):
                yield f"{name} uses a dim that the family does not have"
        for name in self.guards:
            if name not in self.dims and name not in self.derived:
                yield f"guards cannot read {name!r}: it is neither a dim nor derived"
        for dtype, source in self.alike.items():
            if dtype not in self.contracts or source not in self.contracts or source in self.alike:
                yield f"{dtype} is alike {source}: both need a contract, and the second routes of its own"
        for name, shapes in self.shapes.items():
            for shape in shapes:
                if not self.admits(shape):
                    yield f"{name}: {shape} is outside the ranges"
        if not self.tuning_shapes():
            yield "there must be a shape to tune on"

    @property
    def tuned_dtypes(self) -> tuple[str, ...]:
        """Element types with routes of their own."""
        return tuple(d for d in self.contracts if d not in self.alike)

    def admits(self, dims: Mapping[str, int]) -> bool:
        """Whether a shape gives exactly the family's dims, each within its range and a multiple of its step."""
        return set(dims) == set(self.dims) and all(
            low <= dims[name] <= high and dims[name] % self.steps.get(name, 1) == 0
            for name, (low, high) in self.ranges.items()
        )

    def tuning_shapes(self) -> dict[str, tuple[Shape, ...]]:
        """The sets that choices are made on."""
        return {name: shapes for name, shapes in self.shapes.items() if name != HELD_OUT}

    def features(self, dims: Mapping[str, int], sms: int) -> dict[str, int]:
        """What guards compare, by name: dims, then derived counts, on a device of `sms` multiprocessors."""
        found = {**{d: dims[d] for d in self.dims}, **{n: d.value(dims, sms) for n, d in self.derived.items()}}
        return {n: found[n] for n in self.guards or found}


@functools.cache
def families() -> dict[str, Family]:
    """All families by name."""
    found = [importlib.import_module(f"corpus.families.{m}").FAMILY for m in _MODULES]
    return {f.name: f for f in found}


def family(name: str) -> Family:
    """One family; raises CakeError `tuning/unknown-family` with the known names."""
    known = families()
    if name not in known:
        _unknown(f"no family {name!r}; known: {', '.join(known)}")
    return known[name]


def table_path(name: str, target: str) -> Path:
    """Where the route table of a family for a target lies."""
    return DIRECTORY / f"{name}.{target}.json"


def _unknown(message: str) -> NoReturn:
    law = "Families are the modules of corpus/families/."
    raise CakeError(error("tuning/unknown-family", "language", message, contract=law))
