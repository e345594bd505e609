"""The sentences and small tables of results, in one place so that every tool speaks alike."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from server.programs import Program, Ref, Unit


def ids_of(program: Program, units: Sequence[Unit]) -> dict[str, str]:
    out = dict(program.ids)
    if len(units) == 1:
        out["variant_id"] = units[0].variant_id
    elif units:
        out |= {f"variant_id.{u.kernel}": u.variant_id for u in units[:6]}
    return out


def binding_args(ref: Ref) -> str:
    out = f", bindings={json.dumps(dict(ref.bindings))}" if ref.bindings else ""
    out += f", target={ref.target!r}" if ref.target else ""
    return out + (f", kernel={ref.kernel!r}" if ref.kernel else "")


def repair_next(program: Program) -> str:
    if not program.source_id:
        return "send a text of at most 262144 bytes"
    base = program.ir_id or program.source_id
    return (
        f"repair with propose_ir(base_id={base!r}, edits=[{{old, new}}]); verified `fixes` can be sent back as they are"
    )


def counted(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def unit_facts(program: Program, unit: Unit) -> dict[str, Any]:
    assert program.file is not None
    kernel = next(k for k in program.file.kernels if k.name == unit.kernel)
    return {
        "kernel": unit.kernel,
        "target": unit.target,
        "targets": list(kernel.targets),
        "bindings": unit.bindings,
        "tunables": [t.name for t in kernel.tunables],
        "tensors": [t.name for t in kernel.tensors],
    }


def other_targets(program: Program, units: Sequence[Unit]) -> list[str]:
    """Targets that the program names and this call did not look at."""
    if program.file is None or program.ref.target is not None:
        return []
    named = {k.name: k.targets for k in program.file.kernels}
    rest = {u.kernel: [t for t in named[u.kernel] if t != u.target] for u in units}
    return [f"{kernel} for {', '.join(others)}: pass target=" for kernel, others in rest.items() if others]


def by_verdict(properties: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Names of properties under proved, checked, refuted, undecided; the detailed form says why."""
    out: dict[str, Any] = {}
    for p in properties:
        out.setdefault(p["verdict"], []).append(p["name"])
    return out


def estimate_summary(unit: Unit, shape: Mapping[str, int], found: Any) -> str:
    dims = ",".join(f"{k}={v}" for k, v in shape.items())
    return (
        f"{unit.kernel} at {dims} on {unit.target}: estimated {found.time_us:.4g} us, no schedule below "
        f"{found.floor_us:.4g} us, roofline {found.bound_by}, schedule limited by {found.limited_by} (uncalibrated model, not a measurement)"
    )
