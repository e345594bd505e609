"""Profiles for the tool and the command: run the job, say what it means, keep it, set it beside another one.

The record of a profile is the JSON of `corpus.jobs.Profile` with the summary of `corpus.profiling` in place of its
sentence. It is stored before it is answered, under the id that `compare_with` takes; its artifacts belong to that id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cake_ir.diagnostics import CakeError, Diagnostic
from server.errors import BadArgument, Cancelled, EngineError, UnknownId
from server.gpu_work import COMPILE_TIMEOUT_S, as_error, device_name, job_of
from server.predictions import mispredicted_next, model_row, outside, predicted
from server.programs import Program, Unit
from server.results import Detail, Result, clean, plain, rounded
from server.shapes import shape_list
from server.store import is_id
from server.worker import Control

if TYPE_CHECKING:
    from server.evaluate import Evaluator

PROFILE_SAMPLES = 21
"""Rounds of the timing: a profile says where time goes, a bench how much it is."""
SHOWN_CHANGES = 4


def profile(
    work: Evaluator, program: Program, unit: Unit, spec: Any, shape: Mapping[str, int], control: Control, detail: Detail,
    compare_with: str = "", anyway: bool = False,
) -> Result:  # fmt: skip
    """Profile an accepted kernel on this machine's GPU at one shape (none: the first tuning shape)."""
    wanted = shape_list(spec, [dict(shape)] if shape else "tuning")[:1]
    earlier = reference(work, compare_with) if compare_with else None
    if earlier is not None and not anyway:
        _refuse_early(work, earlier, spec, wanted[0], control)
    raw = work.run_gpu(program, unit, spec, "profile", wanted, control, samples=PROFILE_SAMPLES)
    listing, pending = "", None
    try:
        raw, listing = _explained(work, program, unit, spec, raw, control)
    except EngineError as exc:  # what was measured is kept whatever happens to its explanation
        pending = exc
    verdict = "passed" if raw["passed"] else "failed"
    model = predicted(unit.bound, spec, device_name(raw), [raw["shape"]])
    kept = work.keep(unit, spec, "profile", {"shapes": wanted}, device_name(raw), verdict, raw, model)
    if isinstance(pending, Cancelled):
        raise pending
    result = Result(
        summary=f"{unit.kernel} on {device_name(raw)}: {_sentence(raw)}", status=verdict,
        ids={**program.ids, "variant_id": unit.variant_id, "measurement_id": kept},
    )  # fmt: skip
    result.data = _facts(raw, spec, detail)
    result.data["timing"] |= model_row(model[0])
    if pending is not None:
        result.data["notes"] = [*result.data.get("notes", ()), f"not explained: {pending.message}"]
    _artifacts(work, kept, program, unit, raw, listing, result)
    if earlier is not None:
        result.data = {"comparison": _compared(earlier, raw, compare_with, anyway, result, detail), **result.data}
    if outside(model[0]):
        result.summary += "; outside what the model predicted"
    result.next = next_step(program, spec.name, raw, kept, model[0])
    return result


def _explained(
    work: Evaluator, program: Program, unit: Unit, spec: Any, raw: dict[str, Any], control: Control
) -> tuple[dict[str, Any], str]:
    """The record with its summary, and the listing of the machine code by line; unchanged when there is no time."""
    if not raw["shape"].get("candidate"):
        return raw, ""
    control.progress(0, None, "joining samples with lines")
    job = {
        **job_of(program, unit), "kind": "explain", "contract": spec.name, "profile": raw, "cubin_sha256": raw["cubin_sha256"],
        "contracts_dir": work.engine.config.contracts_path, "timeout_s": COMPILE_TIMEOUT_S - 10,
        "cache_dir": str(work.engine.cubin_dir()),
    }  # fmt: skip
    found = work.run_cpu(unit, job, COMPILE_TIMEOUT_S, control)
    if "diagnostic" in found:
        raise as_error(Diagnostic.model_validate(found["diagnostic"]))
    return {**raw, "summary": found["summary"]}, found["listing"]


def reference(work: Evaluator, measurement_id: str) -> dict[str, Any]:
    """The stored profile of that id. Raises UnknownId, or BadArgument when it is another kind of record."""
    row = work.engine.store.measurement(measurement_id) if is_id(measurement_id, "m") else None
    if row is None:
        raise UnknownId("profile", measurement_id)
    if row["kind"] != "profile":
        raise BadArgument(f"{measurement_id} is a {row['kind']}, not a profile", "give the measurement_id of a profile")
    raw = row["record"]["raw"]
    if not isinstance(raw.get("summary"), Mapping):
        raise BadArgument(f"{measurement_id} has no summary to compare with", "profile that kernel again, then compare")
    return raw


def _refuse_early(
    work: Evaluator, reference: Mapping[str, Any], spec: Any, shape: dict[str, int], control: Control
) -> None:
    """Refuse a comparison that will be nonsense before the GPU is used for it."""
    from corpus.profiling.compare import differences

    known = reference["shape"]
    coming = {"shape": shape, "dtypes": known.get("dtypes"), "mode": known["mode"]}
    this = {"device": work.device(control), "contract": spec.name, "contract_digest": spec.digest, "shape": coming}
    found = differences(reference, this)
    if found:
        raise BadArgument(
            f"these profiles are not comparable: {'; '.join(found)}",
            "compare profiles of one device, contract and shape, or insist on it (compare_anyway, --compare-anyway)",
            code="profile/not-comparable",
        )


def _compared(
    reference: Mapping[str, Any], raw: Mapping[str, Any], name: str, anyway: bool, result: Result, detail: Detail
) -> dict[str, Any]:
    """The comparison as it is shown; its sentence goes into the summary."""
    from corpus.profiling import compare
    from corpus.profiling.compare import words

    try:
        found = compare(reference, raw, name=name, force=anyway)
    except CakeError as exc:
        result.summary += f"; not compared: {clean(exc.diagnostic.message, 200)}"
        return {"reference": name, "refused": clean(exc.diagnostic.message, 300)}
    result.summary += f"; {clean(words(found), 240)}"
    if detail == "concise":
        for key in ("lines", "metrics", "roles"):
            found[key] = found[key][:SHOWN_CHANGES]
        found["lines"] = [
            {k: x[k] for k in ("role", "line", "ops", "delta_us")} for x in found["lines"] if x["delta_us"]
        ]
    return rounded(plain(found))


def _sentence(raw: Mapping[str, Any]) -> str:
    said = raw["summary"]
    return clean(str(said["sentence"] if isinstance(said, Mapping) else said), 480)


def _facts(raw: Mapping[str, Any], spec: Any, detail: Detail) -> dict[str, Any]:
    """What the answer shows of a profile; artifacts have the rest."""
    row, said = raw["shape"], raw["summary"] if isinstance(raw["summary"], Mapping) else {}
    candidate = row.get("candidate") or {}
    data: dict[str, Any] = {"contract": spec.name, "device": device_name(raw), "shape": row["shape"]}
    if said:
        data |= {"bound": said["bound"], "why": said["why"], "basis": said["basis"], "limiters": said["limiters"]}
    data["timing"] = {
        "verdict": row["verdict"], "message": row.get("message") or None, "time_us": candidate.get("median_us"),
        "mad_us": candidate.get("mad_us"), "floor_us": row.get("floor_us"), "mode": row["mode"],
        "tflop_per_s": row.get("flops_per_s", 0) / 1e12, "gbyte_per_s": row.get("bytes_per_s", 0) / 1e9,
    }  # fmt: skip
    timeline = raw["timeline"]
    if "unavailable" not in timeline:
        data["timeline"] = {
            "kernel_us": timeline["kernel_us"], "overhead": timeline["overhead"],
            "roles": {r["role"]: r["us"] for r in timeline["roles"]},
            "closure": said.get("closure") if said else None,
        }  # fmt: skip
    if said:
        data |= {"counters": said["brief"], "unattributed": said["unattributed"], "notes": said["notes"]}
        if detail == "detailed":
            data |= {"by_line": said["by_line"][:24], "by_role": said["by_role"], "units": said["units"]}
    if detail == "detailed":
        data["conditions"] = row.get("conditions")
    data["timing"] = {k: v for k, v in data["timing"].items() if v is not None}
    return rounded({k: plain(v) for k, v in data.items() if v not in (None, [], {})})


def _artifacts(
    work: Evaluator, owner: str, program: Program, unit: Unit, raw: Mapping[str, Any], listing: str, result: Result
) -> None:
    """profile, timeline (a page), trace, sass-lines; what cannot be made is left out."""
    store, had = work.engine.store, "unavailable" not in raw["timeline"]
    result.artifacts.append(store.put_artifact(owner, "profile", json.dumps(raw)))
    page = _page(raw, program.text, unit.kernel, result)
    if page:
        result.artifacts.append(store.put_artifact(owner, "timeline", page))
    if had:
        from lowering.timeline import chrome_trace

        result.artifacts.append(store.put_artifact(owner, "trace", json.dumps(chrome_trace(dict(raw["timeline"])))))
    if listing:
        result.artifacts.append(store.put_artifact(owner, "sass-lines", listing))


def _page(raw: Mapping[str, Any], text: str, kernel: str, result: Result) -> str:
    """The HTML page of a profile; empty, with a note, where it cannot be made (libraries missing, a damaged timeline)."""
    try:
        from server.report import timeline_page

        return timeline_page(raw, source=text, title=f"{kernel}: profile")
    except (ImportError, ValueError) as exc:
        result.data["notes"] = [*result.data.get("notes", ()), f"no page: {clean(str(exc), 120)}; see `cake doctor`"]
        return ""


def next_step(program: Program, contract: str, raw: Mapping[str, Any], kept: str, model: Mapping[str, Any]) -> str:
    """What to do with a profile: report a model that is wrong beyond its interval, or edit and compare."""
    said = raw["summary"]
    if not isinstance(said, Mapping):
        return (
            ""
            if raw["passed"]
            else f"compile_and_bench(ir_id={program.ir_id!r}, contract={contract!r}) says what is wrong"
        )
    if outside(model):
        return f"the model said {model['low_us']:.4g} to {model['high_us']:.4g} us: {mispredicted_next(kept)}"
    at = f" at line {said['limiters'][0]['line']}" if said["limiters"] else ""
    return f"edit what limits it{at}, then profile(..., compare_with={kept!r}) says what the edit changed"
