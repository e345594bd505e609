"""A `@program` as a whole: the extents that one kernel dimension stands for agree, no launch is refused for every shape, no output is
written over. What single kernels do is verified kernel by kernel; that a workspace is written before it is read, by the binder."""

from __future__ import annotations

import random
from typing import Any

from analyses import symbolic as S
from analyses.indexvalues import Values
from analyses.symbolic import Poly, TooLarge, const
from cake_ir.arithmetic import compile_sx
from cake_ir.binding.program import BoundProgram, KernelLaunch
from cake_ir.bound import SConst
from cake_ir.diagnostics import Diagnostic, Related, Span, Subject
from cake_ir.facts import facts_of

DIFFER, NEVER, OVER = "schedule/extents-differ", "schedule/launch-not-admitted", "schedule/output-overwritten"
CONTRACTS = {
    DIFFER: "A dimension of a kernel has one value per launch: tensors that share it have equal extents there.",
    NEVER: "For some shape that the program admits, each launch satisfies the `where` of its kernel.",
    OVER: "Out is written once: a later launch updates it as InOut, or writes another tensor.",
}
TRIES = 200
SIZES = (1, 2, 3, 4, 8, 16, 24, 32, 64, 100, 128, 256, 512, 1024, 4096)


def check_program(program: BoundProgram) -> list[Diagnostic]:
    """The findings, in the order of the launches."""
    return _Program(program).check()


class _Program:
    def __init__(self, program: BoundProgram) -> None:
        self.program = program
        self.values = Values(lambda x: isinstance(x, SConst) and x.value >= 0)
        self.values.declare(program.dims.values(), program.args, program.sms, program.where)
        for var, x in program.definitions:
            self.values.values[var] = self.values.scalar(x)
        self.given = {
            t: tuple(self.values.scalar(e) for e in t.extents)
            for step in program.steps
            if isinstance(step, KernelLaunch)
            for t in step.tensors.values()
        }

    def check(self) -> list[Diagnostic]:
        found: list[Diagnostic] = []
        written: dict[str, Span] = {}
        for step in self.program.steps:
            if not isinstance(step, KernelLaunch):
                continue
            try:
                fault = self.extents(step) or self.guards(step)
            except TooLarge:
                fault = None
            if fault is not None:
                found.append(fault)
            for t in step.kernel.tensors:
                given = step.tensors[t.name]
                if t.direction != "Out" or given.direction != "Out":
                    continue
                if given.name in written:
                    text = f"{step.kernel.name} writes all of '{given.name}', which an earlier launch has written"
                    found.append(self.finding(OVER, step, text, given.name, written[given.name]))
                written[given.name] = step.span
        return found

    def kernel(self, step: KernelLaunch) -> Values:
        """The values of a kernel's scalars at this launch, in terms of the program's."""
        inner = Values(facts_of(step.kernel).nonnegative, self.values.algebra)
        for name, var in step.kernel.dims.items():
            if name in step.dims:
                inner.values[var] = self.values.scalar(step.dims[name])
        for var in step.kernel.args:
            x = step.scalars.get(var.name)
            if x is not None and var.dtype == "i32":
                inner.values[var] = self.values.scalar(x)
        if "sms" in step.kernel.builtins:
            inner.values[step.kernel.builtins["sms"]] = self.values.values[self.program.sms]
        inner.facts = list(self.values.facts)
        return inner

    def extents(self, step: KernelLaunch) -> Diagnostic | None:
        """Arguments whose extents the kernel takes to be equal, for a shape where they are not."""
        inner = self.kernel(step)
        for t in step.kernel.tensors:
            given = step.tensors[t.name]
            for i, (e, have) in enumerate(zip(t.extents, self.given[given], strict=True)):
                want = inner.scalar(e)
                more, less = S.add(have, want, -1), S.add(want, have, -1)
                if have == want or (self.proves(more) and self.proves(less)):
                    continue
                values = self.witness(lambda v, d=more: S.evaluate(d, v) != 0, [more])
                if values is None:
                    continue
                at = ", ".join(f"{n}={S.evaluate(self.values.values[v], values)}" for n, v in self.program.dims.items())
                text = (
                    f"{step.kernel.name} takes extent {i} of {t.name} to be {S.evaluate(want, values)}, but '{given.name}' has "
                    f"{S.evaluate(have, values)} there [{at}]"
                )
                return self.finding(DIFFER, step, text, given.name)
        return None

    def guards(self, step: KernelLaunch) -> Diagnostic | None:
        """A kernel's `where` that no shape of the program satisfies."""
        inner = self.kernel(step)
        for w in step.kernel.where:
            for p in inner.conditions(w.cond):
                if self.proves(S.add(const(-1), p, -1)):
                    text = f"no launch of {step.kernel.name} is admitted: its `where` of line {w.span.line} never holds here"
                    return self.finding(NEVER, step, text, None, w.span)
        return None

    def proves(self, p: Poly) -> bool:
        return self.values.algebra.proves(p, self.values.facts)

    def witness(self, test: Any, polys: list[Poly]) -> dict[int, int] | None:
        """Extents that the program admits and the test holds for."""
        a = self.values.algebra
        base = [*self.values.values.values(), *polys, *self.values.facts]
        chance = random.Random(len(base))
        for _ in range(TRIES):
            values: dict[int, int] = {}
            try:
                for v in a.closure(base):
                    at = a.atoms[v]
                    if at.made is not None:
                        op, x, y = at.made
                        values[v] = S.operate(op, S.evaluate(x, values), S.evaluate(y, values))
                    else:
                        low = max((S.evaluate(p, values) for p in at.lower), default=0)
                        values[v] = max(low, chance.choice(SIZES))
                if all(S.evaluate(f, values) >= 0 for f in self.values.facts) and self.admits(values) and test(values):
                    return values
            except (KeyError, ZeroDivisionError):
                continue
        return None

    def admits(self, values: dict[int, int]) -> bool:
        """Whether the program's `where` holds."""
        env: list[Any] = [1] * (len(self.program.scalars) + 1)
        for v, p in self.values.values.items():
            if all(x in values for m in p for x in m):
                env[v.slot] = S.evaluate(p, values)
        return all(compile_sx(w.cond)(env) for w in self.program.where)

    def finding(
        self, rule: str, step: KernelLaunch, text: str, resource: str | None, other: Span | None = None
    ) -> Diagnostic:
        related = (Related(span=other, message="here"),) if other is not None else ()
        return Diagnostic(
            rule=rule, family="schedule", severity="error", message=text, contract=CONTRACTS[rule], span=step.span,
            related=related, subject=Subject(kernel=step.kernel.name, resource=resource),
        )  # fmt: skip
