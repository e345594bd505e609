"""`estimate_cost` of one candidate: the prediction, what it waits for, and in detail what another schedule would give."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cake_ir.diagnostics import CakeError
from server.errors import BadArgument
from server.limits import computation_limit
from server.predictions import contracts_of_interest, history
from server.programs import Program, Ref, Unit
from server.results import Detail, Result, clean, fit, plain, rounded, text_edits
from server.wording import binding_args, estimate_summary, ids_of, prior_row

if TYPE_CHECKING:
    from analyses.cost.estimate import Estimate, Step
    from analyses.cost.history import History
    from server.engine import Engine

ESTIMATE_S = 30.0
"""Processor seconds of one estimate, and of one explanation."""
LIMITERS = 3
FIRST = (
    "time_us", "low_us", "high_us", "floor_us", "bound_class", "why", "limiters", "advice", "sensitivity", "path", "prior", "prior_note",
)  # fmt: skip
"""Members of the answer that come first, in this order."""


def estimate(engine: Engine, ref: Ref, shape: Mapping[str, int], detail: Detail, device: str | None, l2: Any) -> Result:
    """One kernel at one shape. Concise: one run of the model, milliseconds. Detailed: also what each term of the model costs, what
    neighbouring schedules would take and advice that passed the verifier, a second or two.

    Raises BadArgument for a shape that is not the kernel's, EngineError program/too-complex."""
    program = engine.programs.load(ref)
    refused = engine.rejection(program, detail)
    if refused is not None:
        return refused
    unit = engine.accepted_unit(program)
    shape = {clean(k, 64): v for k, v in shape.items()}
    check_shape(unit, shape)
    try:
        with computation_limit("estimating", ESTIMATE_S):
            found = _predict(unit, shape, device, l2)
        prior = _prior(engine, unit, found, l2)
        whole = plain(found)
        data = {k: v for k, v in whole.items() if k not in ("sites", "path") and v is not None}
        data |= {"prior": [prior_row(p) for p in prior.priors], "prior_note": prior.note}
        if detail == "detailed":
            with engine.one_analysis(), computation_limit("explaining", ESTIMATE_S):
                more = _explained(program, unit, shape, device, l2, prior.resolution)
            data |= {"path": [_step(s) for s in found.path], **more}
        else:
            longest = sorted(found.path, key=lambda s: -s.us)[:LIMITERS]
            data["limiters"] = [_stretch(s) for s in longest]
    except CakeError as exc:
        refusal = engine.refused(program, [unit], [exc.diagnostic], "cannot be estimated at this shape", detail)
        refusal.next = other_than_the_program(exc.diagnostic.rule) or refusal.next
        return refusal
    summary = estimate_summary(unit, shape, found, data.get("bound_class", found.bound_class))
    shown = {k: data[k] for k in (*FIRST, *data) if data.get(k) not in (None, "", [], {})}
    result = Result(summary=summary, status="ok", ids=ids_of(program, [unit]), data=rounded(shown))
    text = json.dumps({**whole, **data}, indent=1, ensure_ascii=False)
    result.artifacts = [engine.store.put_artifact(unit.variant_id, "estimate", text)]
    result.next = f"compile_and_bench(ir_id={program.ir_id!r}{binding_args(program.ref)}, contract=...)"
    if detail == "concise":
        result.next += "; detail='detailed' says what each term costs, tries neighbouring schedules and advises"
    elif data["advice"]:
        best = data["advice"][0]
        send = {"bindings": best["bindings"], **({"edits": "..."} if best.get("edits") else {})}
        result.next = (
            f"propose_ir(base_id={program.ir_id!r}, {', '.join(f'{k}={v}' for k, v in send.items())}): {best['title']}"
        )
    return fit(result, detail)


def _predict(unit: Unit, shape: dict[str, int], device: str | None, l2: Any) -> Estimate:
    from analyses import estimate

    assert unit.bound is not None
    return estimate(unit.bound, shape, device, l2=l2)


def _prior(engine: Engine, unit: Unit, found: Estimate, l2: Any) -> History:
    """Prior errors of the kernel's family; contracts are loaded only where some kernels have been measured."""
    from corpus.signature import match

    names = contracts_of_interest(engine.store)
    known = engine.catalog.contract_registry() if names else {}
    assert unit.bound is not None
    fitting = [n for n in names if n in known and match(unit.bound, known[n])]
    return history(engine.store, [(unit.kernel, fitting)], found.device, l2)


def _explained(
    program: Program, unit: Unit, shape: dict[str, int], device: str | None, l2: Any, resolution: float | None
) -> dict[str, Any]:
    """`bound_class`, `why`, `limiters`, `sensitivity` and `advice` (with edits as propose_ir takes them)."""
    from analyses.cost.explain import as_dict, explain

    x = explain(
        program.text, shape, bindings=unit.bindings, target=unit.target, kernel=unit.kernel, device=device, l2=l2, resolution=resolution,
    )  # fmt: skip
    advice = []
    for a in x.advice:
        row = {
            "title": a.title,
            "why": a.why,
            "time_us": a.time_us,
            "saves_us": a.saves_us,
            "bindings": dict(a.bindings),
        }
        edits = text_edits(program.text, a.fix) if a.fix.edits else []
        if edits is not None:
            advice.append({**row, "edits": [e.model_dump() for e in edits]} if edits else row)
    return plain({**as_dict(x), "advice": advice})


def _step(s: Step) -> dict[str, Any]:
    return {"role": f"{s.role}[{s.instance}]", "op": s.what, "why": s.why, "us": s.us, "share": s.share, "line": s.line}


def _stretch(s: Step) -> dict[str, Any]:
    """A stretch of the critical path in the form of a limiter."""
    what = s.what if s.why == "executes" else f"{s.what} {s.why}"
    return {"what": what, "cost_us": s.us, "share": s.share, "line": s.line, "col": s.col, "role": s.role}


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
    check_extents(shape)


def check_extents(shape: Mapping[str, int]) -> None:
    """Raise BadArgument args/shape for an extent that no tensor has."""
    bad = [k for k, v in shape.items() if isinstance(v, bool) or not isinstance(v, int) or not 0 <= v < 2**31]
    if bad:
        raise BadArgument(f"extent {bad[0]} must be an integer from 0 to 2^31 - 1", code="args/shape")


def other_than_the_program(rule: str) -> str:
    """What to do about a refusal that no edit of the program mends; empty for one that an edit may mend."""
    if rule in ("language/shape", "language/where-unsatisfied"):
        return "give a shape that the kernel's where(...) conditions admit, or other bindings"
    if rule == "cost/unknown-device":
        return (
            "name a device that runs the target and is measured or has a data sheet: `cake calibrate --show` lists them"
        )
    if rule in ("cost/bad-calibration", "cost/rate-missing", "cost/bad-history"):
        return "the program is not at fault: restore that file from the release, or make it again"
    return ""
