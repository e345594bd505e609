"""A kernel or a `@program`, bound: its signature, the kernels to compile, its recipe, and what it is predicted to cost.

How it is launched at a shape is said by the recipe (`lowering.emission.recipe`), the same that a dispatcher obeys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cake_ir.arithmetic import compile_sx
from cake_ir.diagnostics import CakeError
from corpus.contract import Contract, Shape
from corpus.signature import match, scalar_values, solve_dims

if TYPE_CHECKING:
    from analyses import Estimate
    from cake_ir import bound as B
    from cake_ir.binding import Binding
    from cake_ir.binding.program import BoundProgram
    from cake_ir.syntax import File
    from lowering.emission import Emitted


class Executable:
    """See the module. Made by `load`. `kernels`: what has to be compiled, each once."""

    def __init__(self, subject: B.BoundKernel | BoundProgram) -> None:
        from cake_ir.binding.program import BoundProgram, KernelLaunch

        self.subject = subject
        self._program = subject if isinstance(subject, BoundProgram) else None
        launched: list[Any] = [subject]
        if self._program is not None:
            launched = [s.kernel for s in self._program.steps if isinstance(s, KernelLaunch)]
        self._launched = launched
        self.kernels: tuple[B.BoundKernel, ...] = tuple({id(k): k for k in launched}.values())

    @property
    def name(self) -> str:
        """The kernel's or program's own name."""
        return self.subject.name

    @cached_property
    def emitted(self) -> tuple[Emitted, ...]:
        """CUDA of each of `kernels`. Raises CakeError as `lowering.emit` does."""
        from lowering.emission import emit

        return tuple(emit(k) for k in self.kernels)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What every launch of it needs (`lowering.emission.recipe`)."""
        from lowering.emission.recipe import program_recipe, recipe

        if self._program is None:
            return recipe(self.emitted[0])
        by_kernel = {id(k): e for k, e in zip(self.kernels, self.emitted, strict=True)}
        return program_recipe(self._program, [by_kernel[id(k)] for k in self._launched])

    def fits(self, contract: Contract) -> dict[str, str]:
        """Choices of the contract's dtype parameters; raises CakeError `contract/signature-mismatch`."""
        found = match(self.subject, contract)  # type: ignore[arg-type]
        if not found:
            raise CakeError(found.diagnostics[0])
        return dict(found.dtypes)

    def predicted_us(self, contract: Contract, shape: Shape) -> float:
        """Microseconds by `analyses.estimate`; of a program the sum over its launches, which follow each other without the host.

        Raises CakeError for a shape that is not taken.
        """
        return sum(e.time_us for e in self.estimates(contract, shape))

    def estimates(self, contract: Contract, shape: Shape, device: str | None = None, **how: Any) -> list[Estimate]:
        """Of each launch, in order; device and how as `analyses.estimate` takes them. Raises CakeError for a shape that is not taken."""
        from analyses import estimate

        dims = solve_dims(self.subject, contract, shape)  # type: ignore[arg-type]
        scalars = scalar_values(self.subject, contract, shape)  # type: ignore[arg-type]
        if self._program is None:
            return [estimate(self.kernels[0], {**dims, **_whole(scalars)}, device, **how)]
        env = self._environment(dims, scalars, 132)
        out = []
        for step in self._launches():
            own = {name: int(compile_sx(x)(env)) for name, x in step.dims.items()}
            passed = _whole({name: compile_sx(x)(env) for name, x in step.scalars.items()})
            out.append(estimate(step.kernel, {**own, **passed}, device, **how))
        return out

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
    return Executable(subject)


def tunables_of(file: File, kernel: str | None = None) -> set[str]:
    """Names of the tunables that `load` takes: a program's own and, as `KERNEL.NAME`, those of its kernels."""
    if file.program is None or kernel is not None:
        return {t.name for k in file.kernels if kernel in (None, k.name) for t in k.tunables}
    return {t.name for t in file.program.tunables} | {f"{k.name}.{t.name}" for k in file.kernels for t in k.tunables}


def _whole(scalars: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(v) for name, v in scalars.items() if isinstance(v, int)}
