"""Decorators and parameters of a kernel or program: `@kernel(target=...)`, tensors, scalars, then `*` and tunables."""

from __future__ import annotations

import ast
import re

from cake_ir import syntax as cst
from cake_ir.text.expressions import Builder

DIRECTIONS = ("In", "Const", "Out", "InOut")
SCALARS = ("i32", "f32")
_TENSOR = "a tensor is NAME: In[dtype, extent, ...] with In, Const, Out or InOut"
_FORM = f"{_TENSOR}; a scalar is NAME: i32 or NAME: f32"


def read_decorators(b: Builder, node: ast.FunctionDef) -> tuple[str | None, tuple[str, ...]]:
    """("kernel", targets), ("program", ()) or (None, ()) with a fault."""
    if not node.decorator_list:
        b.fault("decorator", f'put @kernel(target="...") or @program above {node.name!r}', node)
        return None, ()
    first = node.decorator_list[0]
    for extra in node.decorator_list[1:]:
        b.fault("decorator", "one decorator, @kernel(target=...) or @program, is allowed", extra)
    if isinstance(first, ast.Name) and first.id == "program":
        return "program", ()
    if isinstance(first, ast.Name) and first.id == "kernel":
        b.fault("decorator", 'a kernel names its target: @kernel(target="sm_90a")', first)
        return None, ()
    if not (
        isinstance(first, ast.Call) and isinstance(first.func, ast.Name) and first.func.id in ("kernel", "program")
    ):
        b.fault("decorator", "the decorators are @kernel(target=...) and @program", first)
        return None, ()
    if first.func.id == "program":
        b.fault("decorator", "@program takes no arguments; write it without brackets", first)
        return None, ()
    if first.args or [item.arg for item in first.keywords] != ["target"]:
        b.fault("decorator", 'the form is @kernel(target="sm_90a") or @kernel(target=("sm_80", "sm_90a"))', first)
        return None, ()
    value = first.keywords[0].value
    targets: list[str] = []
    for item in value.elts if isinstance(value, ast.Tuple) else [value]:
        if not (isinstance(item, ast.Constant) and isinstance(item.value, str)):
            b.fault("decorator", 'a target is a string, as in "sm_90a"', item)
        elif re.fullmatch(r"[a-z][a-z0-9_]{0,31}", item.value) is None:
            b.fault("decorator", f"{item.value[:40]!r} is not a target name; it looks like sm_90a", item)
        elif item.value in targets:
            b.fault("duplicate-name", f"the target {item.value!r} is named twice", item)
        else:
            targets.append(item.value)
    if not targets:
        b.fault("decorator", "at least one target is needed", value)
    return "kernel", tuple(targets)


def read_parameters(
    b: Builder, node: ast.FunctionDef
) -> tuple[tuple[cst.TensorParam, ...], tuple[cst.ScalarParam, ...], tuple[cst.Tunable, ...]]:
    """The three parameter groups, in order."""
    args = node.args
    tensors: list[cst.TensorParam] = []
    scalars: list[cst.ScalarParam] = []
    tunables: list[cst.Tunable] = []
    if node.returns is not None:
        b.fault(
            "parameter", "a kernel returns nothing; leave '->' out and name the results as Out parameters", node.returns
        )
    for item in getattr(node, "type_params", []):
        b.fault("parameter", "there are no type parameters; a dtype is a tunable such as DT: (bf16, f16) = bf16", item)
    if args.posonlyargs:
        b.fault("parameter", "there is no '/' between parameters", args.posonlyargs[0])
    for star in (args.vararg, args.kwarg):
        if star is not None:
            b.fault("parameter", "there are no star parameters; a bare '*' stands before the tunables", star)
    for default in args.defaults:
        b.fault("parameter", "a tensor or scalar has no default; tunables stand behind '*'", default)
    seen: set[str] = set()
    for item in [*args.posonlyargs, *args.args, *args.kwonlyargs]:
        b.identifier(item.arg, item)
        if item.arg in seen:
            b.fault("duplicate-name", f"the parameter {item.arg!r} is declared twice; rename one", item)
        seen.add(item.arg)
    for item in [*args.posonlyargs, *args.args]:
        note = item.annotation
        if isinstance(note, ast.Name) and note.id in SCALARS:
            scalars.append(b.make(cst.ScalarParam, b.span(item), name=item.arg, dtype=note.id))
        elif isinstance(note, ast.Subscript) and isinstance(note.value, ast.Name) and note.value.id in DIRECTIONS:
            if scalars:
                b.fault("parameter", f"tensors come first; move {item.arg!r} before {scalars[0].name!r}", item)
            tensors.append(_tensor(b, item, note, note.value.id))
        elif note is None:
            b.fault("parameter", f"the parameter {item.arg!r} has no type; {_FORM}", item)
        elif isinstance(note, ast.Name) and note.id in DIRECTIONS:
            b.fault("parameter", f"{note.id} needs a dtype and extents; {_TENSOR}", note)
        else:
            b.fault("parameter", f"the type of {item.arg!r} is not readable; {_FORM}", note)
    for item, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        tunable = _tunable(b, item, default)
        if tunable is not None:
            tunables.append(tunable)
    return tuple(tensors), tuple(scalars), tuple(tunables)


def _tensor(b: Builder, item: ast.arg, note: ast.Subscript, direction: str) -> cst.TensorParam:
    parts = note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]
    if len(parts) < 2:
        b.fault("parameter", f"{item.arg!r} needs a dtype and at least one extent; {_TENSOR}", note)
    dtype = b.expr(parts[0]) if parts and not isinstance(parts[0], ast.Slice) else None
    if not isinstance(dtype, cst.Name):
        b.fault("parameter", f"the dtype of {item.arg!r} is a name such as bf16", parts[0] if parts else note)
    extents = []
    for part in parts[1:]:
        if not isinstance(part, ast.Slice):
            extents.append(b.make(cst.Extent, b.span(part), size=b.expr(part), stride=None))
            continue
        if part.lower is None or part.upper is None or part.step is not None:
            b.fault("parameter", "an extent is SIZE or SIZE:STRIDE, both written", part)
            continue
        size, stride = b.expr(part.lower), b.expr(part.upper)
        extents.append(b.make(cst.Extent, b.span(part), size=size, stride=stride))
    return b.make(
        cst.TensorParam, b.span(item), name=item.arg, direction=direction, dtype=dtype, extents=tuple(extents)
    )


def _tunable(b: Builder, item: ast.arg, default: ast.expr | None) -> cst.Tunable | None:
    form = "a tunable is NAME: (literal, ...) = default or NAME: range(first, last + 1) = default"
    if item.annotation is None or default is None:
        b.fault("parameter", f"{item.arg!r} needs a domain and a default; {form}", item)
        return None
    domain, value = b.expr(item.annotation), b.expr(default)
    ok = isinstance(domain, cst.Tuple) and all(is_literal(entry) for entry in domain.items)
    if isinstance(domain, cst.Call) and isinstance(domain.func, cst.Name) and domain.func.id == "range":
        ok = 1 <= len(domain.args) <= 3 and not domain.keywords and all(is_literal(entry) for entry in domain.args)
    if not ok:
        b.fault("parameter", f"the domain of {item.arg!r} is not readable; {form}", item.annotation)
    if not is_literal(value):
        b.fault("parameter", f"the default of {item.arg!r} is a literal: a number, True, False or a dtype", default)
    return b.make(cst.Tunable, _upto(b, item, default), name=item.arg, domain=domain, default=value)


def _upto(b: Builder, item: ast.arg, default: ast.expr) -> cst.Span:
    start, end = b.span(item), b.span(default)
    return start.model_copy(update={"end_line": end.end_line, "end_col": end.end_col})


def is_literal(node: cst.Node) -> bool:
    """A number (with or without a minus), a bool, or a name (a dtype)."""
    if isinstance(node, cst.Unary):
        return node.op == "-" and isinstance(node.operand, cst.Num)
    return isinstance(node, cst.Num | cst.Bool | cst.Name)
