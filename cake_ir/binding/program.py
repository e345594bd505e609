"""Binding a `@program`: workspaces, fills and launches in text order, with every launch's kernel bound for its arguments.

Tensors are passed whole. A launch gives the kernel's tensors and scalars by position and may give tunables by keyword; a
tunable that is an extent or dtype of a tensor takes it from the argument. Cross-kernel facts are checked here: shapes agree, an
input is not written, every workspace is written before it is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cake_ir import bound as B
from cake_ir import syntax as S
from cake_ir.binding import Binding, bind, choose_target, tunables
from cake_ir.binding import expr as E
from cake_ir.binding.context import Context
from cake_ir.binding.decls import BUILTINS, signature, where
from cake_ir.binding.scalars import StaticRange
from cake_ir.binding.scope import SilentError
from cake_ir.diagnostics import CakeError, Diagnostic, Span, error
from cake_ir.dtypes import DType


@dataclass(frozen=True, eq=False)
class Fill:
    """A memset node: every element of `tensor` becomes `value`."""

    tensor: B.Tensor
    value: int | float
    span: Span


@dataclass(frozen=True, eq=False)
class KernelLaunch:
    """One launch. tensors and scalars: kernel parameter name -> program tensor / scalar expression. dims: kernel dimension ->
    program expression. dependent: launched with programmatic stream serialisation, because the kernel has a griddep_wait."""

    kernel: B.BoundKernel
    tensors: dict[str, B.Tensor]
    scalars: dict[str, B.SX]
    dims: dict[str, B.SX]
    dependent: bool
    span: Span


@dataclass(frozen=True, eq=False)
class BoundProgram:
    """A bound program. `workspaces` hold nothing at the start of a call. `scalars` is the environment (index = slot)."""

    name: str
    tunables: dict[str, Any]
    tensors: tuple[B.Tensor, ...]
    args: tuple[B.ScalarVar, ...]
    dims: dict[str, B.ScalarVar]
    sms: B.ScalarVar
    workspaces: tuple[B.Tensor, ...]
    where: tuple[B.Where, ...]
    steps: tuple[Fill | KernelLaunch, ...]
    scalars: tuple[B.ScalarVar, ...]
    definitions: tuple[tuple[B.ScalarVar, B.SX], ...]
    span: Span


@dataclass(frozen=True)
class ProgramResult:
    """program is None when there is an error-severity diagnostic."""

    program: BoundProgram | None
    diagnostics: tuple[Diagnostic, ...]


@dataclass
class _Body:
    """What has been bound so far, and what each tensor holds: names written by an earlier step."""

    c: Context
    file: S.File
    bindings: dict[str, Binding]
    target: str
    workspaces: list[B.Tensor] = field(default_factory=list)
    steps: list[Fill | KernelLaunch] = field(default_factory=list)
    written: set[str] = field(default_factory=set)


def bind_program(file: S.File, bindings: dict[str, Binding] | None = None, target: str | None = None) -> ProgramResult:
    """Bind the file's `@program`.

    Args:
        file: a file with a program.
        bindings: program tunables by name, kernel tunables as `KERNEL.NAME`.
        target: an architecture every launched kernel is written for; by default the first that they share.
    """
    program = file.program
    if program is None:
        fault = error("language/program", "language", "the file has no @program", file.kernels[0].span)
        return ProgramResult(None, (fault,))
    given = dict(bindings or {})
    try:
        chosen = target or _shared_target(file, program)
        own = {k: v for k, v in given.items() if "." not in k}
        c = Context(program, choose_target(file.kernels[0], None), tunables(program, own))
        signature(c)
    except CakeError as fault:
        return ProgramResult(None, (fault.diagnostic,))
    for name in BUILTINS:
        c.scopes[0].names.pop(name, None)  # a program has no CTA
    body = _Body(c, file, given, chosen)
    for stmt in program.body:
        try:
            _statement(body, stmt)
        except CakeError as fault:
            c.diagnostics.append(fault.diagnostic)
            if isinstance(stmt, S.Assign):
                c.poison(stmt.targets[0].id)
        except StaticRange as fault:
            c.report("language/static-range", str(fault), stmt.span, contract="Static integers fit 64 bits.")
        except SilentError:
            continue
    if not c.diagnostics and not any(isinstance(s, KernelLaunch) for s in body.steps):
        c.diagnostics.append(
            error("language/program", "language", f"program '{program.name}' launches no kernel", program.span)
        )
    for t in program.tensors:
        if t.direction == "Out" and t.name not in body.written and not c.diagnostics:
            text = f"output '{t.name}' is written by no step"
            c.diagnostics.append(error("schedule/output-not-written", "schedule", text, t.span))
    if c.diagnostics:
        return ProgramResult(None, tuple(c.diagnostics))
    return ProgramResult(
        BoundProgram(
            program.name, c.tunables, tuple(c.tensors[t.name] for t in program.tensors), tuple(c.args), c.dims, c.builtins["sms"],
            tuple(body.workspaces), tuple(c.where), tuple(body.steps), tuple(c.scalars), tuple(c.definitions.items()), program.span,
        ),
        (),
    )  # fmt: skip


def _shared_target(file: S.File, program: S.Program) -> str:
    called = {s.call.func.id for s in program.body if isinstance(s, S.CallStmt) and isinstance(s.call.func, S.Name)}
    launched = [k for k in file.kernels if k.name in called] or list(file.kernels)
    for t in launched[0].targets:
        if all(t in k.targets for k in launched):
            return t
    raise CakeError(
        error("hardware/target-mismatch", "hardware", "the launched kernels share no target", program.span,
              contract="Targets are matched exactly; a program runs on one device.")
    )  # fmt: skip


def _statement(b: _Body, stmt: Any) -> None:
    c = b.c
    if isinstance(stmt, S.Assign):
        _assign(b, stmt)
        return
    if not isinstance(stmt, S.CallStmt) or not isinstance(stmt.call.func, S.Name):
        c.fail("language/program", "a program has where, host arithmetic, workspace, fill and launches only", stmt.span,
               contract="Programs are straight-line: host branches belong to the dispatcher.")  # fmt: skip
    name, call = stmt.call.func.id, stmt.call
    if name == "where":
        where(c, call)
    elif name == "fill":
        _fill(b, call)
    elif any(k.name == name for k in b.file.kernels):
        _launch(b, next(k for k in b.file.kernels if k.name == name), call)
    else:
        known = ", ".join(k.name for k in b.file.kernels)
        c.fail("language/unknown-op", f"'{name}' is no kernel of this file ({known})", call.span)


def _assign(b: _Body, stmt: S.Assign) -> None:
    c, value = b.c, stmt.value
    if len(stmt.targets) != 1:
        c.fail("language/unpack", "one name per assignment", stmt.span)
    target = stmt.targets[0]
    if c.lookup(target.id) is not None:
        c.fail("language/duplicate-name", f"'{target.id}' is already declared", target.span)
    if isinstance(value, S.Call) and isinstance(value.func, S.Name) and value.func.id == "workspace":
        if value.keywords or len(value.args) < 2:
            c.fail("language/arguments", "workspace(dtype, extent, ...)", value.span)
        dtype = E.expr(c, value.args[0])
        if not isinstance(dtype, DType):
            c.fail("language/unknown-dtype", "workspace() needs a dtype first", value.args[0].span)
        extents = tuple(E.index(c, a, "an extent") for a in value.args[1:])
        for size, node in zip(extents, value.args[1:], strict=True):
            if isinstance(size, B.SConst) and not 1 <= size.value <= 2**31 - 1:
                text = f"an extent of '{target.id}' is {size.value}; extents are 1 .. 2^31 - 1"
                c.fail("language/extent-range", text, node.span)
        tensor = B.Tensor(target.id, "InOut", dtype, extents, tuple(None for _ in extents), target.span)
        b.workspaces.append(tensor)
        c.define(target.id, tensor)
        return
    number = E.index(c, value)
    if isinstance(number, B.SConst):
        c.define(target.id, number)
        return
    var = c.scalar(target.id, "local", "i32", "grid", target.span)
    c.definitions[var] = number
    c.define(target.id, var)


def _fill(b: _Body, call: S.Call) -> None:
    c = b.c
    if call.keywords or len(call.args) != 2:
        c.fail("language/arguments", "fill(tensor, literal)", call.span)
    tensor, value = E.expr(c, call.args[0]), E.scalar(c, call.args[1])
    if not isinstance(tensor, B.Tensor) or not isinstance(value, B.SConst):
        c.fail("language/type", "fill() takes a whole tensor and a literal", call.span)
    if tensor.direction in ("In", "Const"):
        c.fail("data/write-to-input", f"'{tensor.name}' is {tensor.direction} and is filled", call.span)
    b.steps.append(Fill(tensor, value.value, call.span))
    b.written.add(tensor.name)


def _launch(b: _Body, kernel: S.Kernel, call: S.Call) -> None:
    c = b.c
    wanted = len(kernel.tensors) + len(kernel.scalars)
    if len(call.args) != wanted:
        names = ", ".join([t.name for t in kernel.tensors] + [s.name for s in kernel.scalars])
        c.fail(
            "language/arguments", f"{kernel.name} takes {wanted} arguments ({names}), {len(call.args)} given", call.span
        )
    values = [E.expr(c, a) for a in call.args]
    tensors: dict[str, B.Tensor] = {}
    bindings: dict[str, Binding] = {k: v for k, v in b.bindings.items() if k.startswith(f"{kernel.name}.")}
    known = {t.name for t in kernel.tunables}
    for param, value, node in zip(kernel.tensors, values, call.args, strict=False):
        if not isinstance(value, B.Tensor):
            c.fail("language/type", f"{param.name} of {kernel.name} is a tensor, got {E.describe(value)}", node.span)
        if len(param.extents) != len(value.extents):
            c.fail(
                "language/rank",
                f"{param.name} of {kernel.name} has {len(param.extents)} dimensions, '{value.name}' has {len(value.extents)}",
                node.span,
            )
        tensors[param.name] = value
        for extent, size in zip(param.extents, value.extents, strict=True):
            if isinstance(extent.size, S.Name) and extent.size.id in known:
                if not isinstance(size, B.SConst):
                    c.fail(
                        "language/not-static",
                        f"{extent.size.id} of {kernel.name} is static; '{value.name}' has a runtime extent there",
                        node.span,
                    )
                bindings[f"{kernel.name}.{extent.size.id}"] = size.value
        if isinstance(param.dtype, S.Name) and param.dtype.id in known:
            bindings[f"{kernel.name}.{param.dtype.id}"] = value.dtype.name
    for k in call.keywords:
        if k.name not in known:
            c.fail("language/unknown-tunable", f"kernel '{kernel.name}' has no tunable '{k.name}'", k.span)
        given = E.expr(c, k.value)
        if isinstance(given, DType):
            bindings[f"{kernel.name}.{k.name}"] = given.name
        elif isinstance(given, B.SConst):
            bindings[f"{kernel.name}.{k.name}"] = given.value
        else:
            c.fail("language/not-static", f"tunable {k.name} must be static", k.span)
    done = bind(b.file, bindings, b.target, kernel.name)
    if done.bound is None:
        c.diagnostics.extend(done.diagnostics)
        raise SilentError
    bound = done.bound
    dims = _unify(b, bound, tensors, call)
    scalars: dict[str, B.SX] = {}
    for param, value, node in zip(
        kernel.scalars, values[len(kernel.tensors) :], call.args[len(kernel.tensors) :], strict=True
    ):
        if not E.is_sx(value):
            c.fail("language/type", f"{param.name} of {kernel.name} is a scalar", node.span)
        scalars[param.name] = value
    _flow(b, bound, tensors, call)
    waits = any(isinstance(s, B.Op) and s.name == "griddep_wait" for s in B.walk(bound.body))
    if waits:
        _in_flight(b, bound, tensors, call)
    b.steps.append(KernelLaunch(bound, tensors, scalars, dims, waits and bool(b.steps), call.span))


def _in_flight(b: _Body, bound: B.BoundKernel, tensors: dict[str, B.Tensor], call: S.Call) -> None:
    """A kernel that starts early reads its Const tensors at once, so no launch that may still run writes them."""
    for step in reversed(b.steps):
        if not isinstance(step, KernelLaunch):
            return  # a fill is complete before the next kernel starts
        written = {step.tensors[t.name].name for t in step.kernel.tensors if t.direction in ("Out", "InOut")}
        for t in bound.tensors:
            if t.direction == "Const" and tensors[t.name].name in written:
                b.c.fail(
                    "data/const-written",
                    f"{bound.name} may read '{tensors[t.name].name}' as {t.name} before its griddep_wait, while "
                    f"{step.kernel.name} still writes it; declare {t.name} In, and read it after the wait",
                    call.span,
                    contract="Const is written by no kernel in flight.",
                )
        if not step.dependent:
            return


def _unify(b: _Body, bound: B.BoundKernel, tensors: dict[str, B.Tensor], call: S.Call) -> dict[str, B.SX]:
    """The kernel's dimensions from the arguments' extents; static extents and dtypes must agree."""
    c, dims = b.c, {}
    for t in bound.tensors:
        given = tensors[t.name]
        if t.dtype is not given.dtype:
            c.fail(
                "language/type", f"{t.name} of {bound.name} is {t.dtype}, '{given.name}' is {given.dtype}", call.span
            )
        for extent, size in zip(t.extents, given.extents, strict=True):
            if isinstance(extent, B.SConst) and isinstance(size, B.SConst) and extent.value != size.value:
                c.fail(
                    "language/extent-mismatch",
                    f"{t.name} of {bound.name} has an extent {extent.value}, '{given.name}' has {size.value}",
                    call.span,
                )
            if isinstance(extent, B.SVar) and extent.var.kind == "dim":
                known = dims.setdefault(extent.var.name, size)
                if isinstance(known, B.SConst) and isinstance(size, B.SConst) and known.value != size.value:
                    c.fail(
                        "language/extent-mismatch",
                        f"{extent.var.name} of {bound.name} is {known.value} and {size.value}",
                        call.span,
                    )
    return dims


def _flow(b: _Body, bound: B.BoundKernel, tensors: dict[str, B.Tensor], call: S.Call) -> None:
    """Inputs are not written; a workspace (and an output that is read) was written by an earlier step."""
    c = b.c
    if c.diagnostics:
        return  # what a faulty step would have written is unknown
    spaces = {w.name for w in b.workspaces}
    for t in bound.tensors:
        given = tensors[t.name]
        if t.direction in ("Out", "InOut") and given.direction in ("In", "Const"):
            c.fail(
                "data/write-to-input",
                f"'{given.name}' is {given.direction}; {bound.name} writes it as {t.name}",
                call.span,
            )
        reads = t.direction in ("In", "Const", "InOut")
        if reads and given.name not in b.written and (given.name in spaces or given.direction == "Out"):
            what = "workspace" if given.name in spaces else "output"
            c.fail("data/workspace-uninitialised", f"{bound.name} reads the {what} '{given.name}', written by no earlier step", call.span,
                   contract="A workspace holds nothing at the start of a call.")  # fmt: skip
    changed = {tensors[t.name].name: t for t in bound.tensors if t.direction in ("Out", "InOut")}
    for t in bound.tensors:
        other = changed.get(tensors[t.name].name, t)
        if other is not t:
            c.fail(
                "data/aliased-argument",
                f"'{tensors[t.name].name}' is passed to {bound.name} as {t.name} and as {other.name}, which is written",
                call.span,
                contract="What a launch writes it has under one name: inputs are read through the read-only path.",
            )
    b.written |= set(changed)
