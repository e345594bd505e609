"""A kernel or a `@program`, bound: which shapes it takes, what it launches at one, and what that is predicted to cost.

Both are a list of steps here: a kernel is a program of one launch whose parameters bear its own names. Nothing is compiled;
`kernels` are what has to be, each once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cake_ir.arithmetic import compile_sx
from cake_ir.diagnostics import CakeError, error
from corpus.contract import Contract, Shape
from corpus.signature import match, scalar_values, solve_dims

if TYPE_CHECKING:
    from cake_ir import bound as B
    from cake_ir.binding import Binding
    from cake_ir.binding.program import BoundProgram
    from cake_ir.syntax import File
    from lowering.emission import Emitted

NOT_ADMITTED = "lowering/shape-not-admitted"


@dataclass(frozen=True)
class Fill:
    """Every element of a tensor becomes a value: its bytes are `pattern` (`width` bytes wide) over `nbytes`."""

    tensor: str
    pattern: int
    width: int
    nbytes: int


@dataclass(frozen=True)
class Start:
    """One kernel launch of a call: `kernel` counts in `Executable.kernels`; the plan names tensors as the caller does."""

    kernel: int
    plan: dict[str, Any]


@dataclass(frozen=True)
class Call:
    """What one call does at a shape, in order, and the scratch tensors (dtype, extents) it needs."""

    steps: tuple[Fill | Start, ...]
    workspaces: dict[str, tuple[str, tuple[int, ...]]]


class Executable:
    """See the module. Made by `load`."""

    def __init__(self, subject: B.BoundKernel | BoundProgram, target: str) -> None:
        from cake_ir.binding.program import BoundProgram, KernelLaunch

        self.subject = subject
        self.target = target
        self._program = subject if isinstance(subject, BoundProgram) else None
        launched = [s.kernel for s in subject.steps if isinstance(s, KernelLaunch)] if self._program else [subject]
        self.kernels: tuple[B.BoundKernel, ...] = tuple({id(k): k for k in launched}.values())  # type: ignore[misc]

    @property
    def name(self) -> str:
        """The kernel's or program's own name."""
        return self.subject.name

    @cached_property
    def emitted(self) -> tuple[Emitted, ...]:
        """CUDA of each of `kernels`. Raises CakeError as `lowering.emit` does."""
        from lowering.emission import emit

        return tuple(emit(k) for k in self.kernels)

    def fits(self, contract: Contract) -> dict[str, str]:
        """Choices of the contract's dtype parameters; raises CakeError `contract/signature-mismatch`."""
        found = match(self.subject, contract)  # type: ignore[arg-type]
        if not found:
            raise CakeError(found.diagnostics[0])
        return dict(found.dtypes)

    def refused(self, contract: Contract, shape: Shape) -> str | None:
        """Why it does not take a contract shape, or None."""
        try:
            self.call(contract, shape, 132, only_ask=True)
        except CakeError as exc:
            if exc.diagnostic.rule in (NOT_ADMITTED, "contract/signature-mismatch"):
                return exc.diagnostic.message
            raise
        return None

    def call(
        self, contract: Contract, shape: Shape, sms: int, shas: Sequence[str] = (), *, only_ask: bool = False
    ) -> Call:
        """What one call launches on a device of `sms` multiprocessors. shas: of the cubins of `kernels`. only_ask: only find out
        whether the shape is taken; the call is then empty.

        Raises CakeError `lowering/shape-not-admitted`, or `contract/signature-mismatch` where extents contradict each other.
        """
        from cake_ir.binding.program import Fill as BoundFill
        from lowering.emission import plan

        dims = solve_dims(self.subject, contract, shape)  # type: ignore[arg-type]
        scalars = scalar_values(self.subject, contract, shape)  # type: ignore[arg-type]
        names = {id(k): i for i, k in enumerate(self.kernels)}
        if self._program is None:
            made = plan(self.emitted[0], dims, scalars, sms, cubin_sha256=_sha(shas, 0))
            return Call((), {}) if only_ask else Call((Start(0, made.to_json()),) if made.grid else (), {})
        env = self._environment(dims, scalars, sms)
        for w in self._program.where:
            if not compile_sx(w.cond)(env):
                raise _not_admitted(f"`where` on line {w.span.line} does not hold for {_text(shape)}")
        steps: list[Fill | Start] = []
        for step in self._program.steps:
            if isinstance(step, BoundFill):
                steps.append(_fill(step, _extents(step.tensor, env)))
                continue
            i = names[id(step.kernel)]
            own = {name: int(compile_sx(x)(env)) for name, x in step.dims.items()}
            values = {name: compile_sx(x)(env) for name, x in step.scalars.items()}
            made = plan(self.emitted[i], own, values, sms, cubin_sha256=_sha(shas, i))
            if made.grid:
                steps.append(Start(i, _renamed(made.to_json(), {p: t.name for p, t in step.tensors.items()})))
        spaces = {t.name: (t.dtype.name, _extents(t, env)) for t in self._program.workspaces}
        return Call(() if only_ask else tuple(steps), spaces)

    def predicted_us(self, contract: Contract, shape: Shape) -> float:
        """Microseconds by `analyses.estimate`; of a program the sum over its launches, which follow each other without the host.

        Raises CakeError for a shape that is not taken.
        """
        from analyses import estimate

        dims = solve_dims(self.subject, contract, shape)  # type: ignore[arg-type]
        if self._program is None:
            scalars = scalar_values(self.subject, contract, shape)  # type: ignore[arg-type]
            return estimate(self.kernels[0], {**dims, **_whole(scalars)}).time_us
        env = self._environment(dims, scalar_values(self.subject, contract, shape), 132)  # type: ignore[arg-type]
        total = 0.0
        for step in self._launches():
            own = {name: int(compile_sx(x)(env)) for name, x in step.dims.items()}
            scalars = _whole({name: compile_sx(x)(env) for name, x in step.scalars.items()})
            total += estimate(step.kernel, {**own, **scalars}).time_us
        return total

    def _launches(self) -> Iterator[Any]:
        from cake_ir.binding.program import KernelLaunch

        assert self._program is not None
        return (s for s in self._program.steps if isinstance(s, KernelLaunch))

    def _environment(self, dims: Mapping[str, int], scalars: Mapping[str, float | int], sms: int) -> list[Any]:
        p = self._program
        assert p is not None
        env: list[Any] = [None] * len(p.scalars)
        for name, var in p.dims.items():
            env[var.slot] = dims[name]
        for var in p.args:
            env[var.slot] = scalars[var.name]
        env[p.sms.slot] = sms
        for var, value in p.definitions:
            env[var.slot] = compile_sx(value)(env)
        return env


def load(file: File, bindings: Mapping[str, Binding], target: str, kernel: str | None = None) -> Executable:
    """The file's program, or its kernel (the one called `kernel`, if several), bound. Raises CakeError: the first error."""
    from cake_ir import bind, bind_program

    if file.program is not None and kernel is None:
        done = bind_program(file, dict(bindings), target)
        subject: Any = done.program
    else:
        done = bind(file, dict(bindings), target, kernel)
        subject = done.bound
    if subject is None:
        raise CakeError(next(d for d in done.diagnostics if d.severity == "error"))
    return Executable(subject, target)


def tunables_of(file: File, kernel: str | None = None) -> set[str]:
    """Names of the tunables that `load` takes: a program's own and, as `KERNEL.NAME`, those of its kernels."""
    if file.program is None or kernel is not None:
        return {t.name for k in file.kernels if kernel in (None, k.name) for t in k.tunables}
    return {t.name for t in file.program.tunables} | {f"{k.name}.{t.name}" for k in file.kernels for t in k.tunables}


def _sha(shas: Sequence[str], i: int) -> str:
    return shas[i] if shas else "0" * 64


def _extents(t: B.Tensor, env: list[Any]) -> tuple[int, ...]:
    return tuple(int(compile_sx(e)(env)) for e in t.extents)


def _whole(scalars: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(v) for name, v in scalars.items() if isinstance(v, int)}


def _fill(step: Any, extents: tuple[int, ...]) -> Fill:
    """The memset of a fill. Raises CakeError for an element type without bytes of its own."""
    import numpy as np

    from corpus.arrays import numpy_dtype

    kind = numpy_dtype(step.tensor.dtype.name)
    raw = np.array([step.value]).astype(kind).tobytes()
    return Fill(step.tensor.name, int.from_bytes(raw, "little"), len(raw), int(np.prod(extents)) * len(raw))


def _renamed(plan: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A kernel's launch plan with the tensors of the program that calls it."""
    args = [{**a, "name": names[a["name"]]} if a["kind"] == "tensor" else a for a in plan["args"]]
    maps = {k: {**m, "tensor": names[m["tensor"]]} for k, m in plan["tensor_maps"].items()}
    return {**plan, "args": args, "tensor_maps": maps}


def _text(shape: Mapping[str, int]) -> str:
    return " ".join(f"{k}={v}" for k, v in shape.items())


def _not_admitted(message: str) -> CakeError:
    law = "A launch satisfies the program's `where` and the guards of its instructions."
    return CakeError(error(NOT_ADMITTED, "hardware", message, contract=law))
