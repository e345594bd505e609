"""The value reading of a `@program`: its steps in text order on one stream, each launch by `interpret`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from analyses.value.exprs import scalar
from analyses.value.faults import ValueFault
from analyses.value.formats import np_dtype
from analyses.value.interpret import interpret
from cake_ir.binding.program import BoundProgram, Fill
from cake_ir.bound import SVar, Tensor


def interpret_program(
    program: BoundProgram,
    tensors: Mapping[str, np.ndarray],
    scalars: Mapping[str, float | int] | None = None,
    *,
    schedule: str = "greedy",
    sms: int = 4,
) -> dict[str, np.ndarray]:
    """Outputs (Out and InOut tensors of the program) by name.

    tensors: as for `interpret`; an Out array gives only its shape. Workspaces start as poison. Dimensions come from the
    arrays or by name from `scalars`. Raises ValueFault, also for a `where` that does not hold.
    """
    given = dict(scalars or {})
    env: list[Any] = [0] * len(program.scalars)
    env[program.sms.slot] = sms
    for var in program.args:
        if var.name not in given:
            raise ValueFault("input", f"{program.name} needs the scalar {var.name}", program.span)
        env[var.slot] = given[var.name]
    _dims(program, tensors, given, env)
    for var, value in program.definitions:
        env[var.slot] = scalar(value)(env)
    for w in program.where:
        if not scalar(w.cond)(env):
            raise ValueFault(
                "where", f"{program.name} is not made for these shapes: a `where` fact does not hold", w.span
            )
    memory = {name: np.array(array) for name, array in tensors.items()}
    for t in program.workspaces:
        memory[t.name] = np.zeros([int(scalar(e)(env)) for e in t.extents], np_dtype(t.dtype))
    undefined = {t.name for t in program.workspaces} | {t.name for t in program.tensors if t.direction == "Out"}
    for step in program.steps:
        if isinstance(step, Fill):
            memory[step.tensor.name][...] = step.value
            undefined.discard(step.tensor.name)
            continue
        arrays = {name: memory[t.name] for name, t in step.tensors.items()}
        poison = {name for name, t in step.tensors.items() if t.name in undefined and _direction(step, name) == "InOut"}
        values = {name: scalar(x)(env) for name, x in step.scalars.items()} | {
            name: int(scalar(x)(env)) for name, x in step.dims.items()
        }
        out = interpret(step.kernel, arrays, values, schedule=schedule, sms=sms, undefined=poison)
        for name, array in out.items():
            memory[step.tensors[name].name] = array
            undefined.discard(step.tensors[name].name)
    return {t.name: memory[t.name] for t in program.tensors if t.direction in ("Out", "InOut")}


def _direction(step: Any, name: str) -> str:
    return next(t.direction for t in step.kernel.tensors if t.name == name)


def _dims(program: BoundProgram, tensors: Mapping[str, np.ndarray], given: Mapping[str, Any], env: list[Any]) -> None:
    """Dimension symbols from extents that are one name, or from `scalars`; every extent must then agree."""
    values = {name: int(given[name]) for name in program.dims if name in given}
    for t in program.tensors:
        array = _array(program, t, tensors)
        for size, extent in zip(array.shape, t.extents, strict=True):
            if isinstance(extent, SVar) and extent.var.kind == "dim":
                values.setdefault(extent.var.name, size)
    for name, var in program.dims.items():
        if name not in values:
            raise ValueFault("input", f"no array determines {name}; give it by name", program.span)
        env[var.slot] = values[name]
    for t in program.tensors:
        want = tuple(int(scalar(e)(env)) for e in t.extents)
        if tensors[t.name].shape != want:
            raise ValueFault("input", f"'{t.name}' has shape {tensors[t.name].shape}, expected {want}", t.span)


def _array(program: BoundProgram, t: Tensor, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    if t.name not in tensors:
        raise ValueFault("input", f"{program.name} needs the tensor '{t.name}'", t.span)
    array = tensors[t.name]
    if array.ndim != len(t.extents):
        raise ValueFault("input", f"'{t.name}' has {array.ndim} dimensions, expected {len(t.extents)}", t.span)
    return array
