"""Binding: a kernel of a file, with its tunables bound, becomes a typed `BoundKernel`.

`bind` collects every independent fault; consequences of a fault are not repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cake_ir import bound as B
from cake_ir import syntax as S
from cake_ir.binding import decls
from cake_ir.binding.context import Context
from cake_ir.binding.scalars import StaticRange
from cake_ir.binding.stmts import statement
from cake_ir.diagnostics import CakeError, Diagnostic, error
from cake_ir.dtypes import DTYPES, DType

Binding = int | float | bool | str


@dataclass(frozen=True)
class BindResult:
    """bound is None when there is an error-severity diagnostic."""

    bound: B.BoundKernel | None
    diagnostics: tuple[Diagnostic, ...]


def bind(
    file: S.File,
    bindings: dict[str, Binding] | None = None,
    target: str | None = None,
    kernel: str | None = None,
    name: str = "<text>",
) -> BindResult:
    """Bind one kernel of a file.

    Args:
        file: the syntax tree.
        bindings: values of tunables by name; dtypes as strings ("bf16"). `KERNEL.NAME` addresses one kernel of several.
        target: one of the kernel's targets; required when it names several and the first is not meant.
        kernel: which kernel; may be left out when the file has one.
        name: file name for #line and messages.
    """
    try:
        chosen = _choose(file, kernel)
        table = choose_target(chosen, target)
        values = tunables(chosen, bindings or {})
    except CakeError as fault:
        return BindResult(None, (fault.diagnostic,))
    c = Context(chosen, table, values)
    c.assigned = _mutable(chosen.body)
    try:
        decls.signature(c)
        for stmt in chosen.body:
            statement(c, stmt)
    except CakeError as fault:
        c.diagnostics.append(fault.diagnostic)
    except StaticRange as fault:
        c.diagnostics.append(error("language/static-range", "language", str(fault), chosen.span))
    except RecursionError:
        c.diagnostics.append(error("language/too-deep", "language", "the program nests too deeply", chosen.span))
    if c.launch is None and not c.diagnostics:
        c.diagnostics.append(
            error("language/no-launch", "language", f"kernel '{chosen.name}' has no launch(ctas=...)", chosen.span)
        )
    if not c.roles and not c.diagnostics:
        c.diagnostics.append(
            error("language/no-role", "language", f"kernel '{chosen.name}' declares no role", chosen.span)
        )
    if c.diagnostics or c.launch is None:
        unique = {(d.rule, d.span, d.message): d for d in c.diagnostics}
        return BindResult(None, tuple(sorted(unique.values(), key=lambda d: (d.span.line, d.span.col, d.rule))))
    for var, uniformity in c.uniformity.items():
        object.__setattr__(var, "uniformity", uniformity)
    bound = B.BoundKernel(
        name=chosen.name,
        target=table,
        tunables=values,
        tensors=tuple(c.tensors.values()),
        args=tuple(c.args),
        dims=c.dims,
        builtins=c.builtins,
        where=tuple(c.where),
        launch=c.launch,
        roles=tuple(c.roles),
        buffers=tuple(c.buffers),
        barriers=tuple(c.barriers),
        body=tuple(c.out),
        scalars=tuple(c.scalars),
        sites=c.sites,
        span=chosen.span,
        source_name=name,
        notes={"definitions": dict(c.definitions), "ranges": dict(c.ranges)},
    )
    return BindResult(bound, ())


def _choose(file: S.File, kernel: str | None) -> S.Kernel:
    names = [k.name for k in file.kernels]
    if kernel is None:
        if len(names) == 1:
            return file.kernels[0]
        raise CakeError(
            error(
                "language/kernel-missing",
                "language",
                f"the file has several kernels; name one of {', '.join(names)}",
                file.kernels[0].span,
            )
        )
    for k in file.kernels:
        if k.name == kernel:
            return k
    raise CakeError(
        error("language/kernel-missing", "language", f"no kernel '{kernel}'; the file has {', '.join(names)}")
    )


def choose_target(kernel: S.Kernel, target: str | None) -> Any:
    """The target's table; raises CakeError for one the kernel is not written for."""
    from cake_ir import targets

    for t in kernel.targets:
        if t not in targets.names():
            raise CakeError(
                error(
                    "hardware/unknown-target",
                    "hardware",
                    f"unknown target '{t}'; known: {', '.join(targets.names())}",
                    kernel.span,
                )
            )
    if target is not None and target not in kernel.targets:
        raise CakeError(
            error(
                "hardware/target-mismatch",
                "hardware",
                f"kernel '{kernel.name}' is written for {', '.join(kernel.targets)}, not {target}",
                kernel.span,
                contract="Targets are matched exactly; nothing is stepped down to another architecture.",
            )
        )
    return targets.get(target or kernel.targets[0])


def tunables(kernel: S.Kernel | S.Program, bindings: dict[str, Binding]) -> dict[str, Any]:
    """Values of all tunables: the defaults overridden by `bindings`; raises CakeError for a value outside its domain."""
    known = {t.name for t in kernel.tunables}
    given: dict[str, Binding] = {}
    for key, value in bindings.items():
        owner, _, short = key.rpartition(".")
        if owner and owner != kernel.name:
            continue
        if short not in known:
            raise CakeError(
                error(
                    "language/unknown-tunable",
                    "language",
                    f"kernel '{kernel.name}' has no tunable '{short}'; known: {', '.join(sorted(known)) or 'none'}",
                    kernel.span,
                )
            )
        given[short] = value
    out: dict[str, Any] = {}
    for t in kernel.tunables:
        allowed = domain(t)
        default = _literal(t.default)
        value = given.get(t.name, default)
        if isinstance(value, str):
            value = DTYPES.get(value, value)
        if not _member(default, allowed):
            raise CakeError(
                error("language/tunable-domain", "language", f"the default of {t.name} is outside its domain", t.span)
            )
        if not _member(value, allowed):
            raise CakeError(
                error(
                    "language/tunable-domain",
                    "language",
                    f"{t.name}={value} is outside its domain {_show(allowed)}",
                    t.span,
                    contract="A tunable takes a value of its domain.",
                )
            )
        out[t.name] = value
    return out


def _member(value: Any, domain: Any) -> bool:
    return (
        any(value is d if isinstance(d, (DType, bool)) else (value == d and type(value) is type(d)) for d in domain)
        if not isinstance(domain, range)
        else (isinstance(value, int) and not isinstance(value, bool) and value in domain)
    )


def _show(domain: Any) -> str:
    return (
        f"range({domain.start}, {domain.stop})"
        if isinstance(domain, range)
        else "(" + ", ".join(str(d) for d in domain) + ")"
    )


def _literal(node: Any) -> Any:
    if isinstance(node, (S.Num, S.Bool)):
        return node.value
    if isinstance(node, S.Unary) and node.op == "-" and isinstance(node.operand, S.Num):
        return -node.operand.value
    if isinstance(node, S.Name) and node.id in DTYPES:
        return DTYPES[node.id]
    raise CakeError(error("language/tunable-domain", "language", "a tunable value is a literal or a dtype", node.span))


def domain(t: S.Tunable) -> tuple[Any, ...] | range:
    """The values that a tunable may take, as its text declares them; raises CakeError `language/tunable-domain`."""
    node = t.domain
    if isinstance(node, S.Tuple):
        return tuple(_literal(i) for i in node.items)
    if (
        isinstance(node, S.Call)
        and isinstance(node.func, S.Name)
        and node.func.id == "range"
        and not node.keywords
        and 1 <= len(node.args) <= 3
    ):
        numbers = [_literal(a) for a in node.args]
        if all(isinstance(n, int) and not isinstance(n, bool) for n in numbers) and (len(numbers) < 3 or numbers[2]):
            return range(*numbers)
    raise CakeError(
        error(
            "language/tunable-domain",
            "language",
            f"the domain of {t.name} is a tuple of literals or range(start, stop)",
            t.span,
        )
    )


def _mutable(body: tuple[Any, ...]) -> dict[str, int]:
    """Names that are rebound: 2 for those, so that constants and counters are told apart before binding."""
    counts: dict[str, int] = {}

    def note(name: str, role: str, stack: list[set[tuple[str, str]]]) -> None:
        if any((role, name) in s or ("", name) in s for s in stack):
            counts[name] = 2
        else:
            stack[-1].add((role, name))

    def visit(stmts: tuple[Any, ...], role: str, stack: list[set[tuple[str, str]]]) -> None:
        for s in stmts:
            if isinstance(s, S.Assign):
                for t in s.targets:
                    note(t.id, role, stack)
            elif isinstance(s, S.AugAdd):
                counts[s.target.id] = 2
            elif isinstance(s, S.With):
                if isinstance(s.context, S.Name):
                    visit(s.body, s.context.id, stack)
                else:
                    visit(s.body, role, [*stack, set()])
            elif isinstance(s, S.If):
                visit(s.body, role, [*stack, set()])
                visit(s.orelse, role, [*stack, set()])
            elif isinstance(s, (S.For, S.While)):
                visit(s.body, role, [*stack, set()])

    visit(body, "", [set()])
    return counts
