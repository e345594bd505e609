"""Recipes: all that a launch of a compiled variant needs, as plain JSON, for a host that has neither the text nor the compiler.

A recipe is to `lowering.recipe` what an emitted kernel is to `plan`: the same numbers, from text expressions over the caller's
extents instead of from bound ones. The kernels of a `@program` are rewritten in terms of the program's extents and tensors.

    {"tensors": [{"name", "dtype", "direction", "extents": [size, ...]}, ...],     what the caller passes, in signature order
     "scalars": [name, ...], "workspaces": [{"name", "dtype", "extents"}, ...],
     "launches": [{"fill": tensor, "value": v} | {"cubin_key": k, "manifest": Manifest.to_json()}, ...],   in stream order
     "admits": [[condition, why], ...]}                                            what `plan` would check, over extents and sms
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cake_ir.binding.program import BoundProgram, Fill
from cake_ir.bound import (
    SX,
    BoundKernel,
    For,
    Op,
    Region,
    ScalarVar,
    SConst,
    SetScalar,
    SOp,
    SVar,
    Tensor,
    sx_vars,
    walk,
)
from cake_ir.facts import EXTENT_MAX, INT_MAX
from lowering.cache import cubin_key
from lowering.compile import DEFAULT_OPTIONS
from lowering.emission.manifest import Emitted
from lowering.emission.scalars import sx_text
from lowering.plan import ArgSpec, MapSpec

Given = Mapping[ScalarVar, SX]


def recipe(emitted: Emitted) -> dict[str, Any]:
    """The recipe of one kernel."""
    bound = emitted.bound
    launched = _Launched(emitted, {}, {})
    return {
        "tensors": [_tensor(t, {}) for t in bound.tensors],
        "scalars": [v.name for v in bound.args],
        "workspaces": [],
        "launches": [launched.step(dependent=launched.may_start_early())],
        "admits": _distinct([*_extents(bound.tensors, {}), *launched.conditions()]),
    }


def program_recipe(program: BoundProgram, emitted: Sequence[Emitted]) -> dict[str, Any]:
    """The recipe of a program. emitted: the kernel of each launch, in text order (fills have none)."""
    known: dict[ScalarVar, SX] = {}
    for var, value in program.definitions:
        known[var] = _inline(value, known)
    conditions: list[tuple[str, str]] = list(_extents((*program.tensors, *program.workspaces), known))
    for where in program.where:
        text = sx_text(_inline(where.cond, known))
        conditions.append((text, f"where({text}) of {program.name}"))
    steps: list[dict[str, Any]] = []
    kernels = iter(emitted)
    for step in program.steps:
        if isinstance(step, Fill):
            steps.append({"fill": step.tensor.name, "value": step.value})
            continue
        e = next(kernels)
        given = {e.bound.dims[name]: _inline(x, known) for name, x in step.dims.items()}
        given |= {v: _inline(step.scalars[v.name], known) for v in e.bound.args}
        given |= {v: SVar(program.sms) for v in _multiprocessors(e.bound)}
        launched = _Launched(e, given, {name: t.name for name, t in step.tensors.items()})
        steps.append(launched.step(dependent=step.dependent or (not steps and launched.may_start_early())))
        conditions += launched.conditions()
    return {
        "tensors": [_tensor(t, known) for t in program.tensors],
        "scalars": [v.name for v in program.args],
        "workspaces": [_tensor(t, known) for t in program.workspaces],
        "launches": steps,
        "admits": _distinct(conditions),
    }


class _Launched:
    """One kernel in terms of the caller's extents. names: kernel tensor -> caller's tensor."""

    def __init__(self, emitted: Emitted, given: Given, names: Mapping[str, str]) -> None:
        self.emitted, self.bound = emitted, emitted.bound
        self._names = names
        self._known: dict[ScalarVar, SX] = dict(given)
        free = {*self.bound.dims.values(), *self.bound.args, *_multiprocessors(self.bound)}
        for stmt in self.bound.body:  # what the host can compute: as `manifest.environment`
            if isinstance(stmt, SetScalar) and stmt.var not in self._known and stmt.var not in free:
                if all(v in self._known or v in free for v in sx_vars(stmt.value)):
                    self._known[stmt.var] = self.of(stmt.value)
        self._free = free

    def may_start_early(self) -> bool:
        """Whether it may be launched while any kernel still runs: it waits before it touches anything. Rule
        `sync/griddep-access-before-wait` proves that of all but Const tensors, which a caller's kernel may be writing."""
        return self.emitted.manifest.pdl and all(t.direction != "Const" for t in self.bound.tensors)

    def of(self, x: SX) -> SX:
        """The expression over the caller's extents."""
        return _inline(x, self._known)

    def step(self, dependent: bool) -> dict[str, Any]:
        """The launch, with its manifest rewritten."""
        e, m = self.emitted, self.emitted.manifest
        args: list[ArgSpec] = []
        maps: dict[str, MapSpec] = {}
        for kind, thing in e.parameters:
            if kind == "tensor":
                args.append(ArgSpec(kind, self._names.get(thing.name, thing.name)))
            elif kind == "tensor_map":
                args.append(ArgSpec(kind, thing.name))
                maps[thing.name] = self._map(m.tensor_maps[thing.name], thing.tensor)
            else:
                args.append(ArgSpec(kind, thing.name, self._size(SVar(thing))))  # type: ignore[arg-type]
        grid = self._size(self.bound.launch.ctas)
        manifest = replace(m, grid=grid, args=tuple(args), tensor_maps=maps, pdl=dependent, timeline=None)
        return {"cubin_key": cubin_key(e.cuda, e.arch, DEFAULT_OPTIONS), "manifest": manifest.to_json()}

    def _size(self, x: SX) -> int | str:
        x = self.of(x)
        return int(x.value) if isinstance(x, SConst) and x.dtype != "f32" else sx_text(x)

    def _map(self, m: MapSpec, t: Tensor) -> MapSpec:
        dims = tuple(self._size(e) for e in reversed(t.extents))
        strides = tuple(self._stride(t, dim) for dim in range(len(t.extents) - 2, -1, -1))
        return replace(m, tensor=self._names.get(t.name, t.name), dims=dims, strides=strides)

    def _stride(self, t: Tensor, dim: int) -> int | str:
        from cake_ir.derive.maps import stride

        size = self._size(stride(t, dim))
        return size * t.dtype.bytes if isinstance(size, int) else f"{t.dtype.bytes} * {size}"

    def conditions(self) -> Iterator[tuple[str, str]]:
        """(condition, why) of everything that `plan` checks."""
        for where in self.bound.where:
            text = sx_text(self.of(where.cond))
            yield text, f"{self.bound.name} asks for {sx_text(where.cond)}"
        for guard in self.emitted.derived.guards:
            if guard.value is None:
                continue  # base addresses are checked where they are known
            value, size = sx_text(self.of(guard.value)), guard.tensor.dtype.bytes
            if guard.kind == "stride":
                text = f"(({value} * {size}) % {guard.modulus}) == 0"
                yield text, f"rows of {guard.tensor.name} are a multiple of {guard.modulus} bytes ({guard.reason})"
            elif guard.kind == "extent":
                extent = sx_text(self.of(guard.tensor.extents[guard.dim]))
                yield f"{extent} == {value}", f"extent {guard.dim} of {guard.tensor.name} is {value} ({guard.reason})"
        yield from self._fits()
        yield from _extents(self.bound.tensors, self._known)

    def _fits(self) -> Iterator[tuple[str, str]]:
        """Index expressions that the launch alone decides fit the kernel's 32 bits."""
        for x in _index_expressions(self.bound):
            if all(v in self._known or v in self._free for v in sx_vars(x)):
                inlined = self.of(x)
                if not _small(inlined):
                    text = sx_text(inlined)
                    yield f"({text} <= {INT_MAX}) and ({text} >= {-INT_MAX - 1})", f"{text} fits 32 bits"


def _multiprocessors(bound: BoundKernel) -> list[ScalarVar]:
    """The only builtin that the host knows."""
    return [v for name, v in bound.builtins.items() if name == "sms" or v.kind == "sms"]


def _index_expressions(bound: BoundKernel) -> Iterator[SOp]:
    def visit(x: SX) -> Iterator[SOp]:
        if isinstance(x, SOp):
            for y in x.args:
                yield from visit(y)
            if x.dtype == "i32" and x.op in ("+", "-", "*", "<<"):
                yield x

    yield from visit(bound.launch.ctas)
    for stmt in walk(bound.body):
        if isinstance(stmt, SetScalar):
            yield from visit(stmt.value)
        elif isinstance(stmt, For):
            yield from visit(stmt.start)
            yield from visit(stmt.stop)
        elif isinstance(stmt, Op):
            for r in stmt.operands.values():
                for d in r.dims if isinstance(r, Region) else ():
                    yield from visit(d.start)


def _small(x: SX) -> bool:
    """Fits 32 bits for every extent that is admitted: no variable, or one plus a number below the slack of EXTENT_MAX."""
    if not sx_vars(x):
        return True
    if isinstance(x, SOp) and x.op in ("+", "-") and isinstance(x.args[0], SVar) and isinstance(x.args[1], SConst):
        return x.args[0].var.kind == "dim" and 0 <= int(x.args[1].value) <= INT_MAX - EXTENT_MAX
    return False


def _extents(tensors: Iterable[Tensor], known: Given) -> Iterator[tuple[str, str]]:
    for t in tensors:
        for i, e in enumerate(t.extents):
            if isinstance(e, SConst):
                continue
            text = sx_text(_inline(e, known))
            yield f"({text} >= 1) and ({text} <= {EXTENT_MAX})", f"extent {i} of {t.name} is 1 .. {EXTENT_MAX}"


def _tensor(t: Tensor, known: Given) -> dict[str, Any]:
    extents = [int(e.value) if isinstance(e, SConst) else sx_text(_inline(e, known)) for e in t.extents]
    return {"name": t.name, "dtype": t.dtype.name, "direction": t.direction, "extents": extents}


def _inline(x: SX, known: Given) -> SX:
    if isinstance(x, SVar):
        return known.get(x.var, x)
    if isinstance(x, SOp):
        return SOp(x.op, tuple(_inline(a, known) for a in x.args), x.dtype)
    return x


def _distinct(conditions: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Each condition once, with its first reason."""
    first: dict[str, str] = {}
    for text, why in conditions:
        first.setdefault(text, why)
    return [[text, why] for text, why in first.items()]
