"""Workload contracts: what a kernel must compute, on which inputs, how exactly, and against whom it is timed.

A contract is the authority over every program that claims it and is not the program's to change: operators load
their own with `--contracts DIR` (trusted Python files); no tool reaches this module's loader. `Contract.digest` goes
into every record, so that a result says which version of the contract it was judged by.

Precision is part of a contract. The tolerance of an output element is built from what the arithmetic may lose, not
fitted to what a program did lose:

    |got - expected| <= unit * |expected|                    one rounding to the output type
                      + gamma(L) * magnitude                 f32 accumulation of L terms, magnitude = sum |term|
                      + tiny                                 least number the type must keep
    and never more than  cap * max(magnitude)                however long the sum
    and  rms(got - expected) <= 1.25 * rms(round(expected) - expected)    over the whole output: little worse than
                                + rms(gamma(L) * magnitude) + tiny        rounding the exact result once

with gamma(L) = max(8, 2 sqrt(L), L / 8) * 2**-23: a tensor-core accumulator takes 8 or 16 products at a time and may
truncate one unit in the last place at each update. Every element must match: the matched ratio is 1.0.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NoReturn

import numpy as np

from cake_ir.diagnostics import NOWHERE, CakeError, Diagnostic, Span, error
from corpus import distributions as dist
from corpus.arrays import Array, Math, element

Direction = Literal["in", "out", "inout"]
Special = Literal["propagates", "ignored", "undefined"]
SPECIALS = ("nan", "inf", "-inf")
Extent = str | int
Shape = dict[str, int]
ShapeSet = Literal["tuning", "heldout", "boundary"]
SHAPE_SETS: tuple[ShapeSet, ...] = ("tuning", "heldout", "boundary")

DEFAULT_CAP = 2.0**-7


def gamma(length: int) -> float:
    """Relative loss of an f32 accumulation of `length` terms, in units of the sum of their magnitudes."""
    return max(8.0, 2.0 * math.sqrt(length), length / 8.0) * 2.0**-23


@dataclass(frozen=True)
class TensorSpec:
    """One tensor. `dtype` is an element type, or the name of a dtype parameter of the contract (`DT`).

    `extents` name dimensions (str) or fix them (int), outermost first; tensors are dense row-major.
    """

    name: str
    direction: Direction
    dtype: str
    extents: tuple[Extent, ...]
    meaning: str = ""


@dataclass(frozen=True)
class ScalarSpec:
    """One scalar argument (i32 or f32) with the value the judge passes."""

    name: str
    dtype: Literal["i32", "f32"]
    value: float
    meaning: str = ""


@dataclass(frozen=True)
class Expected:
    """What an oracle says about one output: exact values (float64), the magnitude that entered each (sum of |terms|,
    float64; None: |value|), the reduction length, and optionally an extra absolute error allowed per element."""

    value: Array
    magnitude: Array | None = None
    length: int = 1
    extra: Array | None = None


@dataclass(frozen=True)
class Case:
    """One concrete problem: the shape, a choice of dtype parameters, a distribution, seeds."""

    shape: Shape
    distribution: str
    seed: int = 0
    secret: int = 0
    dtypes: Mapping[str, str] = field(default_factory=dict)


class Gen:
    """Hands an input generator its random streams: `draw(tensor)` for one tensor, `rng(label)` for anything else."""

    def __init__(self, contract: Contract, case: Case) -> None:
        self.contract = contract
        self.case = case
        self.shape = case.shape
        self.distribution = case.distribution

    def rng(self, label: str) -> np.random.Generator:
        """An independent generator for `label`."""
        c = self.case
        return dist.rng(c.seed, c.secret, self.contract.name, c.distribution, sorted(c.shape.items()), label)

    def draw(self, tensor: str, distribution: str | None = None, extents: Sequence[int] | None = None) -> np.ndarray:
        """An array for `tensor`, by default from the case's distribution."""
        spec = self.contract.tensor(tensor)
        shape = tuple(extents) if extents is not None else self.contract.extents(spec, self.shape)
        dtype = self.contract.dtype(spec, self.case.dtypes)
        return dist.draw(distribution or self.distribution, shape, dtype, self.rng(tensor), self.contract.limit)

    def segments(self, label: str, count: int, total: int) -> np.ndarray:
        """Offsets of `count` consecutive segments of `total` elements, as the case's distribution has them."""
        return dist.segments(self.distribution, count, total, self.rng(label))


Oracle = Callable[[Math, dict[str, Array], dict[str, float]], Mapping[str, Expected]]
Generate = Callable[[Gen], dict[str, np.ndarray]]
Judge = Callable[..., Any]
"""(Math, inputs, outputs, scalars) -> corpus.compare.Verdict, for outputs that are not compared elementwise."""
Solution = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
PerShape = Callable[[Shape], float]


def default_generate(g: Gen) -> dict[str, np.ndarray]:
    """The first input gets the case's distribution, the others its partner (see `distributions.PARTNER`)."""
    names = [t.name for t in g.contract.tensors if t.direction != "out"]
    return {n: g.draw(n, g.distribution if i == 0 else dist.partner(g.distribution)) for i, n in enumerate(names)}


@dataclass(frozen=True)
class Contract:
    """See the module. `flops` counts multiply and add separately; `bytes` each input and output once.

    `flop_unit` says which peak bounds the arithmetic: a dense tensor-core rate by input type (`bf16`, `f16`, `e4m3`),
    or `f32` for the CUDA cores. `limit` bounds the magnitude of inputs (the contract's domain). A contract whose
    outputs are compared elementwise has an `oracle`; one with a `judge` gives a `solution` (one right result), on
    which the judge itself is tested.

    `nonfinite` says what NaN, inf and -inf in the inputs mean: `propagates` (the result is what IEEE arithmetic makes
    of the formula: the oracle's NaN and infinities are required where it has them, and nowhere else), `ignored` (such
    an entry counts as absent; the oracle says how), `undefined` (the default: outside the domain, never drawn).
    `least` bounds extents from below (default 0: an empty dimension is legal; then outputs without elements need
    nothing, and other outputs what the oracle says of an empty reduction). `accumulate`: with `f32` a kernel whose text
    keeps or rounds partial sums in a narrower type fails (`analyses.accumulation`), whatever its numbers are.
    """

    name: str
    summary: str
    tensors: tuple[TensorSpec, ...]
    dims: Mapping[str, str]
    oracle: Oracle | None
    shapes: Mapping[str, tuple[Shape, ...]]
    flops: PerShape
    precision: str
    scalars: tuple[ScalarSpec, ...] = ()
    dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    generate: Generate = default_generate
    judge: Judge | None = None
    solution: Solution | None = None
    bytes_moved: PerShape | None = None
    flop_unit: str = "bf16"
    distributions: tuple[str, ...] = dist.BATTERY
    limit: float | None = None
    nonfinite: Mapping[str, Special] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    accumulate: Literal["f32", "any"] = "f32"
    cap: float = DEFAULT_CAP
    baselines: tuple[str, ...] = ()
    bench_distribution: str = "normal"
    origin: str = "built in"

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ValueError(f"contract {self.name!r}: " + "; ".join(problems))

    def _problems(self) -> Any:
        if not self.name.isidentifier():
            yield "the name must be an identifier"
        names = [t.name for t in self.tensors] + [s.name for s in self.scalars]
        if len(set(names)) != len(names):
            yield "tensor and scalar names must be distinct"
        if not any(t.direction != "in" for t in self.tensors):
            yield "there must be an output"
        for t in self.tensors:
            for e in t.extents:
                if isinstance(e, str) and e not in self.dims:
                    yield f"tensor {t.name} uses the undeclared dimension {e!r}"
            for d in self.dtypes.get(t.dtype, (t.dtype,)):
                try:
                    element(d)
                except KeyError:
                    yield f"tensor {t.name} has the unknown element type {d!r}"
        for name in SHAPE_SETS:
            if not self.shapes.get(name):
                yield f"the shape set {name!r} is missing or empty"
            for shape in self.shapes.get(name, ()):
                if set(shape) != set(self.dims):
                    yield f"shape {shape} in {name!r} must give exactly the dimensions {', '.join(self.dims)}"
        for value, how in self.nonfinite.items():
            if value not in SPECIALS or how not in ("propagates", "ignored", "undefined"):
                yield f"nonfinite: {value!r}: {how!r} is not one of nan, inf, -inf: propagates, ignored, undefined"
        for name, values in dist.NONFINITE.items():
            drawn = [v for v in values if self.special(v) == "propagates"]
            if drawn and name not in self.distributions:
                yield f"{', '.join(drawn)} propagates, so the distributions must include {name!r}"
            if name in self.distributions and any(self.special(v) == "undefined" for v in values):
                yield f"the distribution {name!r} draws values that are undefined here"
        for name in self.least:
            if name not in self.dims:
                yield f"least: {name!r} is no dimension"
        if self.oracle is None and (self.judge is None or self.solution is None):
            yield "there must be an oracle, or a judge with a solution"

    # ---- lookups -----------------------------------------------------------------------------------------------------

    def tensor(self, name: str) -> TensorSpec:
        """The tensor called `name` (KeyError)."""
        for t in self.tensors:
            if t.name == name:
                return t
        raise KeyError(f"contract {self.name} has no tensor {name!r}")

    def special(self, value: str) -> Special:
        """What `nan`, `inf` or `-inf` in an input means."""
        return self.nonfinite.get(value, "undefined")

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Tensors the kernel writes."""
        return tuple(t for t in self.tensors if t.direction != "in")

    def extents(self, spec: TensorSpec, shape: Shape) -> tuple[int, ...]:
        """Concrete extents of a tensor."""
        return tuple(shape[e] if isinstance(e, str) else e for e in spec.extents)

    def empty(self, shape: Shape) -> bool:
        """Whether no output has an element: then there is nothing to compute, and nothing may be written."""
        return not any(math.prod(self.extents(t, shape)) for t in self.outputs)

    def dtype_choices(self) -> tuple[dict[str, str], ...]:
        """Every assignment of the dtype parameters; one empty dict when there are none."""
        out: list[dict[str, str]] = [{}]
        for name, choices in self.dtypes.items():
            out = [{**o, name: c} for o in out for c in choices]
        return tuple(out)

    def dtype(self, spec: TensorSpec, dtypes: Mapping[str, str]) -> str:
        """Concrete element type of a tensor; an absent dtype parameter takes its first choice."""
        if spec.dtype in self.dtypes:
            return dtypes.get(spec.dtype, self.dtypes[spec.dtype][0])
        return spec.dtype

    def scalar_values(self) -> dict[str, float | int]:
        """The scalar arguments the judge passes."""
        return {s.name: int(s.value) if s.dtype == "i32" else float(s.value) for s in self.scalars}

    def bytes(self, shape: Shape, dtypes: Mapping[str, str] | None = None) -> float:
        """Compulsory global-memory traffic: every input read once, every output written once (inout: both)."""
        if self.bytes_moved is not None:
            return self.bytes_moved(shape)
        total = 0
        for t in self.tensors:
            size = math.prod(self.extents(t, shape)) * element(self.dtype(t, dtypes or {})).bytes
            total += size * (2 if t.direction == "inout" else 1)
        return float(total)

    def inputs(self, case: Case) -> dict[str, np.ndarray]:
        """Fresh input arrays of a case (also the initial value of inout tensors)."""
        made = self.generate(Gen(self, case))
        for name, a in made.items():
            for value in () if a.dtype.kind in "iub" else _specials(a):
                if self.special(value) == "undefined":
                    text = f"generate gives {value} in {name} ({case.distribution}), which is declared undefined"
                    raise bad_oracle(self.name, text, self.origin)
        return made

    def outputs_poisoned(self, case: Case, run: int) -> dict[str, np.ndarray]:
        """Arrays for the pure outputs, filled with poison pattern `run`."""
        from corpus.arrays import poison

        return {
            t.name: poison(self.extents(t, case.shape), self.dtype(t, case.dtypes), run)
            for t in self.tensors
            if t.direction == "out"
        }

    @functools.cached_property
    def digest(self) -> str:
        """`ct_` + 32 hex of the declaration and of the source of its functions, as it was when first asked for."""
        h = hashlib.sha256()
        plain = (self.name, self.tensors, self.scalars, sorted(self.dtypes.items()), sorted(self.shapes.items()),
                 self.precision, self.distributions, self.limit, self.cap)  # fmt: skip
        if self.nonfinite or self.least or self.accumulate != "f32":
            plain = (*plain, sorted(self.nonfinite.items()), sorted(self.least.items()), self.accumulate)
        h.update(repr(plain).encode())
        for f in (self.generate, self.oracle, self.judge, self.solution):
            if f is not None:
                try:
                    h.update(inspect.getsource(f).encode())
                except (OSError, TypeError):
                    h.update(repr(f).encode())
        return "ct_" + h.hexdigest()[:32]

    def describe(self) -> dict[str, Any]:
        """Plain JSON for documentation and tools."""
        return {
            "name": self.name, "summary": self.summary, "precision": self.precision, "digest": self.digest,
            "origin": self.origin, "dims": dict(self.dims),
            "tensors": [
                {
                    "name": t.name, "direction": t.direction, "dtype": t.dtype, "extents": list(t.extents),
                    "meaning": t.meaning,
                }
                for t in self.tensors
            ],
            "scalars": [asdict(s) for s in self.scalars],
            "dtypes": {k: list(v) for k, v in self.dtypes.items()},
            "shapes": {k: [dict(s) for s in v] for k, v in self.shapes.items()},
            "distributions": list(self.distributions), "baselines": list(self.baselines),
            "nonfinite": {v: self.special(v) for v in SPECIALS}, "least": dict(self.least),
            "accumulate": self.accumulate,
        }  # fmt: skip

    def page(self) -> str:
        """The contract as Markdown: what a kernel author needs to write one that fits."""
        lines = [f"# {self.name}", "", self.summary, "", f"Digest `{self.digest}`, {self.origin}.", ""]
        lines += ["## Signature", "", "| tensor | direction | elements | extents | meaning |"]
        lines += ["| --- | --- | --- | --- | --- |"]
        for t in self.tensors:
            kinds = " or ".join(self.dtypes.get(t.dtype, (t.dtype,)))
            extents = ", ".join(map(str, t.extents))
            lines.append(f"| `{t.name}` | {t.direction} | {kinds} | {extents} | {t.meaning} |")
        lines.append("")
        lines += [f"Scalar `{s.name}`: {s.dtype}, {s.meaning}; the judge passes {s.value:g}." for s in self.scalars]
        lines += ["", "Dimensions: " + "; ".join(f"{k}: {v}" for k, v in self.dims.items()) + ".", ""]
        lines += ["## Precision", "", self.precision, ""]
        if self.accumulate == "f32":
            lines += ["Partial sums in less than f32 are refused by the text alone (`contract/narrow-sum`).", ""]
        lines += ["## Shapes", ""]
        for name in SHAPE_SETS:
            rows = "; ".join(" ".join(f"{k}={v}" for k, v in s.items()) for s in self.shapes[name])
            lines.append(f"- {name}: {rows}")
        lines += ["", "## Inputs", "", "Distributions: " + ", ".join(self.distributions) + "."]
        if self.limit is not None:
            lines.append(f"Magnitudes are at most {self.limit:g}.")
        lines.append("In inputs: " + ", ".join(f"{v} {self.special(v)}" for v in SPECIALS) + ".")
        lines += [f"{d} is at least {n}." for d, n in self.least.items()]
        lines += ["", "Baselines: " + (", ".join(self.baselines) or "none") + "."]
        return "\n".join(lines) + "\n"


def _specials(a: np.ndarray) -> set[str]:
    """Which of nan, inf and -inf an array of floats holds."""
    found: set[str] = set()
    flat = a.reshape(-1)
    for i in range(0, flat.size, 1 << 20):
        part = flat[i : i + (1 << 20)].astype(np.float64 if a.dtype.itemsize == 8 else np.float32)
        if not np.isfinite(part).all():
            found |= {v for v, f in zip(SPECIALS, (np.isnan, np.isposinf, np.isneginf), strict=True) if f(part).any()}
    return found


# ---- loading -------------------------------------------------------------------------------------------------------

_BUILT_IN = (
    "col_sums",
    "gemm_bf16",
    "gemm_bf16_nn",
    "kmeans_assign",
    "kmeans_inertia",
    "kmeans_update",
    "rmsnorm",
    "row_norms",
    "softmax",
)


def contracts(extra_dir: str | Path | None = None, bad: list[Diagnostic] | None = None) -> dict[str, Contract]:
    """All contracts by name: the built-in ones and, for operators, those of `extra_dir`.

    A file that does not load is `contract/bad-file` (naming file, line and cause): appended to `bad`, so that it hides
    nothing but itself; without such a list raised as CakeError.
    """
    found: dict[str, Contract] = {}
    for module in _BUILT_IN:
        found.update({c.name: c for c in _declared(importlib.import_module(f"corpus.contracts.{module}"))})
    if extra_dir is not None:
        for path in _files(Path(extra_dir)):
            try:
                for c in load_file(path):
                    if c.name in found:
                        _bad_file(path, f"the name {c.name!r} is taken by a contract that is {found[c.name].origin}")
                    found[c.name] = c
            except CakeError as exc:
                if bad is None:
                    raise
                bad.append(exc.diagnostic)
    return found


def _files(directory: Path) -> list[Path]:
    """The contract files of a directory, sorted by name."""
    if not directory.is_dir():
        _bad_file(directory, "is not a directory")
    return [path for path in sorted(directory.glob("*.py")) if not path.name.startswith("_")]


def load_file(path: Path) -> list[Contract]:
    """Contracts that a file defines as `CONTRACT` or `CONTRACTS` (trusted code, executed).

    Raises CakeError `contract/bad-file`; the functions of the contracts raise `contract/bad-oracle`.
    """
    name = f"cake_operator_contract_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        _bad_file(path, "cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and inspect look a module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as exc:  # an operator's file may fail in any way; the answer must name the place
        line = getattr(exc, "lineno", None) or _line_in(exc, path)
        del sys.modules[name]
        _bad_file(path, f"failed to load: {type(exc).__name__}: {exc}", line)
    found = _declared(module)
    if not found or not all(isinstance(c, Contract) for c in found):
        _bad_file(path, "must define CONTRACT (a corpus.contract.Contract) or CONTRACTS (a list of them)")
    return [_of_operator(c, path) for c in found]


def _declared(module: ModuleType) -> list[Any]:
    """What a module calls CONTRACTS, or else its CONTRACT."""
    found = getattr(module, "CONTRACTS", None)
    return [module.CONTRACT] if found is None and hasattr(module, "CONTRACT") else list(found or [])


_FUNCTIONS = ("oracle", "judge", "solution", "generate", "flops", "bytes_moved")


def _of_operator(c: Contract, path: Path) -> Contract:
    """The contract with its origin, its own functions reporting a mistake in them as `contract/bad-oracle`."""
    own = {f: getattr(c, f) for f in _FUNCTIONS}
    guarded = {f: _guarded(g, f, c.name, path) for f, g in own.items() if g not in (None, default_generate)}
    return replace(c, origin=str(path), **guarded)


def _guarded(function: Callable[..., Any], what: str, contract: str, path: Path) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as exc:
            if isinstance(exc, CakeError | MemoryError) or type(exc).__name__ == "OutOfMemoryError":
                raise
            line = _line_in(exc, path)
            raise bad_oracle(contract, f"{what} failed: {type(exc).__name__}: {exc}", f"{path}", line) from exc

    return call


def bad_oracle(contract: str, message: str, origin: str, line: int | None = None) -> CakeError:
    """`contract/bad-oracle`: a mistake in a contract's function, with its place; never the kernel's fault."""
    text = f"{origin}{f':{line}' if line else ''}: contract {contract}: {message}"
    law = "The functions of a contract answer for every shape and input of it; docs/contracts.md lists what `m` offers."
    return CakeError(error("contract/bad-oracle", "language", text, _span(line), contract=law))


def _line_in(exc: BaseException, path: Path) -> int | None:
    """The line of `path` at which an exception left it. Python names the file by its absolute path."""
    names = {str(path), str(path.absolute()), str(path.resolve())}
    line, tb = None, exc.__traceback__
    while tb is not None:
        if tb.tb_frame.f_code.co_filename in names:
            line = tb.tb_lineno
        tb = tb.tb_next
    return line


def _span(line: int | None) -> Span:
    return Span(line=line, col=1, end_line=line, end_col=1) if line else NOWHERE


def _bad_file(path: Path, message: str, line: int | None = None) -> NoReturn:
    raise CakeError(
        error(
            "contract/bad-file", "language", f"{path}{f':{line}' if line else ''}: {message}", _span(line),
            contract="A file in the contracts directory defines CONTRACT or CONTRACTS and runs without error.",
        )
    )  # fmt: skip
