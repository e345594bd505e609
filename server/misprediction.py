"""`report_failure` of a mispredicted time: a measurement of the store held against the model as it is now.

A time outside the interval of its prediction opens a calibration record: a failure of the cost model that names the measurement
and what was predicted, so that a look at it needs nobody's memory. A time inside opens none; nor does a device whose
predictions claim no interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from server.errors import BadArgument, UnknownId
from server.predictions import outside, predicted
from server.programs import Ref, Unit
from server.results import Detail, Result, clean, fit
from server.store import digest, is_id
from server.wording import counted

if TYPE_CHECKING:
    from server.engine import Engine

KINDS = ("bench", "profile")
SYMPTOM = "mispredicted_time"
REASON = "the time lies outside the interval of its prediction"


def report(
    engine: Engine, ref: Ref | None, measurement_id: str, shape: Mapping[str, int], notes: Mapping[str, str], detail: Detail
) -> Result | None:  # fmt: skip
    """Hold a measurement against the model: the one named, or the latest of the variant (at `shape` of its contract, where given).

    None when no measurement is named or found. notes: what the reporter says, kept in records that are opened. Raises UnknownId, and
    BadArgument when the measurement has no valid time (at that shape).
    """
    row = _named(engine, measurement_id) if measurement_id else _latest(engine, ref, shape)
    if row is None:
        return None
    program = engine.programs.load(Ref(id=row["variant_id"]))
    unit = engine.accepted_unit(program)
    raw = row["record"]["raw"]
    rows = [
        s for s in (raw["shapes"] if row["kind"] == "bench" else [raw["shape"]]) if not shape or s["shape"] == shape
    ]
    said = predicted(unit.bound, engine.catalog.contract(row["contract"]), row["device"], rows)
    timed = [s for s in said if s["measured_us"] is not None]
    if not timed:
        where = f" at {_words(shape)}" if shape else ""
        raise BadArgument(
            f"measurement {row['measurement_id']} has no valid time{where}",
            "time it again with compile_and_bench (fresh=true)",
        )
    ids = {"variant_id": unit.variant_id, "measurement_id": row["measurement_id"], **program.ids}
    opened = [_open(engine, row, unit, program.ir_id, s, notes) for s in timed if outside(s)]
    result = Result(summary=_summary(unit, row, timed, opened), status="ok", ids=ids)
    shown = opened or [_shown(s) for s in timed]
    result.data = {"owner": "cost_model" if opened else "none", "records": len(opened), "rows": shown}
    result.next = "nothing was recorded"
    if opened:
        result.ids["failure_id"] = opened[0]["failure_id"]
        where = f"profile(ir_id={unit.variant_id!r}, contract={row['contract']!r})"
        result.next = f"`cake calibrate --records` lists them; {where} says where the time goes"
    return fit(result, detail)


def records(engine: Engine) -> Result:
    """All calibration records of the workspace, latest first."""
    rows = [
        {**f["record"]["calibration"], "count": f["count"], "failure_id": f["failure_id"]}
        for f in engine.store.failures()
        if "calibration" in f["record"]
    ]
    return Result(
        summary=f"{counted(len(rows), 'calibration record')} in {engine.config.workspace}", status="ok", data={"rows": rows},
        next="" if rows else "report_failure(symptom='mispredicted_time', measurement_id=...) opens one",
    )  # fmt: skip


def _named(engine: Engine, measurement_id: str) -> dict[str, Any]:
    row = engine.store.measurement(measurement_id) if is_id(measurement_id, "m") else None
    if row is None:
        raise UnknownId("measurement", measurement_id)
    if row["kind"] not in KINDS:
        raise BadArgument(
            f"{measurement_id} is a {row['kind']}, not a timing", "give the measurement_id of a timing or a profile"
        )
    return row


def _latest(engine: Engine, ref: Ref | None, shape: Mapping[str, int]) -> dict[str, Any] | None:
    """The latest timing of the variant. A program for several targets was timed as the one of the device, so others count too."""
    if ref is None:
        return None
    unit = engine.accepted_unit(engine.programs.load(ref))
    same = [unit.variant_id]
    own = engine.store.variant(unit.variant_id)
    if own is not None and ref.target is None:
        alike = engine.store.variants(own["ir_id"])
        same += [v["variant_id"] for v in alike if (v["kernel"], v["bindings"]) == (own["kernel"], own["bindings"])]
    found = [m for v in dict.fromkeys(same) for m in engine.store.measurements(v) if m["kind"] in KINDS]
    if shape:
        found = [m for m in found if shape in m["shape"].get("shapes", [])]
    return max(found, key=lambda m: m["created"], default=None)


def _open(
    engine: Engine, row: Mapping[str, Any], unit: Unit, ir_id: str, said: Mapping[str, Any], notes: Mapping[str, str]
) -> dict[str, Any]:
    """Keep one calibration record; what it says, with its id and how often it was reported."""
    shown = _shown(said)
    calibration = {
        "kernel": unit.kernel, "contract": row["contract"], "bindings": unit.bindings, "target": unit.target, "device": row["device"],
        **shown, "source": said["source"], "measurement_id": row["measurement_id"],
    }  # fmt: skip
    failure_id = digest("f", "cost_model", SYMPTOM, row["measurement_id"], said["shape"], said["l2"])
    record = {"reason": REASON, "rules": [], "ir_id": ir_id, "variant_id": unit.variant_id, "calibration": calibration}
    record |= {k: clean(v) for k, v in notes.items()}
    count = engine.store.put_failure(failure_id, "cost_model", SYMPTOM, record)
    return {**shown, "failure_id": failure_id, "count": count}


def _shown(said: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"shape": said["shape"], "l2": said["l2"], "measured_us": said["measured_us"]}
    if "time_us" in said:
        row |= {"predicted_us": said["time_us"], "low_us": said["low_us"], "high_us": said["high_us"]}
        row |= {"measured_over_predicted": said["measured_us"] / said["time_us"], "bound": said["bound_class"]}
    else:
        row["unavailable"] = said["unavailable"]
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items() if v is not None}


def _summary(unit: Unit, row: Mapping[str, Any], timed: list[dict[str, Any]], opened: list[dict[str, Any]]) -> str:
    if opened:
        worst = max(opened, key=lambda r: max(r["measured_over_predicted"], 1 / r["measured_over_predicted"]))
        return (
            f"{len(opened)} of {counted(len(timed), 'time')} of {unit.kernel} on {row['device']} outside what the model predicts, worst at "
            f"{_words(worst['shape'])} (L2 {worst['l2']}): {worst['measured_us']:.4g} us measured, {worst['low_us']:.4g} to "
            f"{worst['high_us']:.4g} us predicted; {counted(len(opened), 'calibration record')} opened, owner: cost_model"
        )
    claimed = [s for s in timed if s.get("high_us") is not None]
    if not claimed:
        why = next(
            (s["unavailable"] for s in timed if "unavailable" in s),
            "its rates are those of the data sheet, not measured",
        )
        return f"no interval is claimed for {unit.kernel} on {row['device']}: {why}; nothing to record"
    first = claimed[0]
    return (
        f"the prediction holds for {unit.kernel} on {row['device']}: e.g. at {_words(first['shape'])} (L2 {first['l2']}) "
        f"{first['measured_us']:.4g} us measured, {first['low_us']:.4g} to {first['high_us']:.4g} us predicted; nothing was recorded"
    )


def _words(shape: Mapping[str, int]) -> str:
    return ",".join(f"{k}={v}" for k, v in shape.items())
