"""`estimate_cost` of one candidate: the prediction, what it waits for, and in detail what another schedule would give."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cake_ir.diagnostics import CakeError
from server.errors import BadArgument
from server.limits import computation_limit
from server.programs import Program, Ref, Unit
from server.results import Detail, Result, clean, fit, plain
from server.wording import binding_args, estimate_summary, ids_of

if TYPE_CHECKING:
    from server.engine import Engine

ESTIMATE_S = 30.0
"""Processor seconds of one estimate with everything that is asked about it."""


def estimate(engine: Engine, ref: Ref, shape: Mapping[str, int], detail: Detail, device: str | None, l2: Any) -> Result:
    program = engine.programs.load(ref)
    refused = engine.rejection(program, detail)
    if refused is not None:
        return refused
    unit = engine.accepted_unit(program)
    shape = {clean(k, 64): v for k, v in shape.items()}
    check_shape(unit, shape)
    try:
        with computation_limit("estimating", ESTIMATE_S):
            found = _found(program, unit, shape, detail, device, l2)
    except CakeError as exc:
        return engine.refused(program, [unit], [exc.diagnostic], "cannot be estimated at this shape", detail)
    result = Result(summary=estimate_summary(unit, shape, found), status="ok", ids=ids_of(program, [unit]))
    result.data = plain(found)
    if detail == "concise":
        result.data["limiters"] = result.data["limiters"][:3]
        result.data.pop("path")
    result.artifacts = [
        engine.store.put_artifact(unit.variant_id, "estimate", json.dumps(plain(found), indent=1, ensure_ascii=False))
    ]
    result.next = f"compile_and_bench(ir_id={program.ir_id!r}{binding_args(program.ref)}, contract=...)"
    return fit(result, detail)


def _found(program: Program, unit: Unit, shape: dict[str, int], detail: Detail, device: str | None, l2: Any) -> Any:
    from analyses import estimate

    return estimate(unit.bound, shape, device, l2=l2)


def check_shape(unit: Unit, shape: Mapping[str, int]) -> None:
    """Raise BadArgument args/shape unless the shape gives every dimension of the kernel, and nothing else."""
    assert unit.bound is not None
    dims = list(unit.bound.dims)
    wrong = sorted(set(shape) - set(dims))
    missing = sorted(set(dims) - set(shape))
    if wrong or missing:
        parts = [f"unknown: {', '.join(wrong)}"] if wrong else []
        parts += [f"missing: {', '.join(missing)}"] if missing else []
        raise BadArgument(
            f"the shape does not fit kernel {unit.kernel}; {'; '.join(parts)}",
            f"give exactly {', '.join(dims)}",
            code="args/shape",
        )
    bad = [k for k, v in shape.items() if isinstance(v, bool) or not 0 <= v < 2**31]
    if bad:
        raise BadArgument(f"extent {bad[0]} must be between 0 and 2^31 - 1", code="args/shape")
