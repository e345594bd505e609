"""Answers of a GPU to a calibration file: slope, rate, spread, with everything needed to trace or repeat it.

A rate is made of the slopes of the rounds, (longer - median of the shorter) / difference of trips, and of the SM clock counted meanwhile;
`value` is their median, `low` and `high` its order-statistic interval (`lowering.runtime.stats.summarise`), `setup_us` what remains of
the shorter run at that slope: launch, prologue, drain and the event clock's own cost.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, NoReturn

from analyses.cost.calibration import DIRECTORY, FORM, parse, slug
from cake_ir import targets
from cake_ir.diagnostics import CakeError, error
from corpus import files
from corpus.calibrate import run as measuring
from corpus.calibrate.prepare import content_of
from corpus.calibrate.probe import Probe
from corpus.calibrate.probes import probes
from lowering.runtime.stats import summarise

CLOCK = "clock.under."
"""Rates of this family are SM clocks in MHz, not slopes."""


def record(jobs: dict[str, Any], answers: dict[str, Any], directory: Path = DIRECTORY) -> Path:
    """Write the calibration file of the device that answered; its path.

    Rates whose program has changed since are left out. A run of some rates only (`--only`) replaces those in the file of the same device,
    target, driver and compiler. Raises CakeError
    `corpus/bad-answers`: answers of another form or to other jobs, a rate that failed, conditions that spoil a timing.
    """
    made = calibration(jobs, answers)
    path = directory / f"{slug(made['device']['name'])}.json"
    if path.is_file() and len(made["rates"]) < len(probes()):
        try:
            made = _merged(json.loads(path.read_bytes()), made)
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as exc:
            _bad(f"{path} is damaged ({type(exc).__name__}); remove it, or measure all rates")
    parse(made, path.name)  # what the cost model would refuse is not written
    directory.mkdir(parents=True, exist_ok=True)
    files.replace(path, _text(made).encode())
    return path


def _text(made: dict[str, Any]) -> str:
    """The file: a line for each key and for each rate, so that a change of one shows as one."""

    def line(obj: object) -> str:
        return json.dumps(obj, sort_keys=True, separators=(",", ":"))

    head = [f"{line(k)}: {line(v)}," for k, v in sorted(made.items()) if k != "rates"]
    rates = [f" {line(k)}: {line(v)}" for k, v in sorted(made["rates"].items())]
    return "\n".join(["{", *head, '"rates": {', ",\n".join(rates), "}", "}"]) + "\n"


def calibration(jobs: dict[str, Any], answers: dict[str, Any]) -> dict[str, Any]:
    """The calibration as JSON. Raises like `record`."""
    try:
        return _calibration(jobs, answers)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as exc:  # they come from another machine
        _bad(f"jobs or answers do not have their form ({type(exc).__name__}: {str(exc)[:200]}); prepare and run again")


def _calibration(jobs: dict[str, Any], answers: dict[str, Any]) -> dict[str, Any]:
    if answers.get("form") != measuring.FORM:
        _bad(f"their form is {answers.get('form')!r}, not {measuring.FORM}")
    if answers["faults"]:
        _bad(f"the device was disturbed: {'; '.join(answers['faults'])}; run again")
    by_rate = {j["rate"]: j for j in jobs["jobs"]}
    known = {p.rate: p for p in probes() if p.target == jobs["target"]}
    if not slug(answers["device"]["name"]):
        _bad("their device has no name")
    rates: dict[str, Any] = {}
    for name, answer in answers["rates"].items():
        if "error" in answer:
            _bad(f"{name} failed: {answer['error']}")
        if name not in by_rate:
            _bad(f"{name} is no job of this folder")
        if name in known and by_rate[name]["content_id"] == content_of(known[name]):
            made = {
                "commit": str(jobs["commit"]),
                "date": answers["date"],
            }  # of each, because a later part may replace some
            rates[name] = {**_rate(known[name], by_rate[name], answer), **made}
    if not rates:
        _bad("they hold no rate of a program of this checkout")
    return {
        "form": FORM, "target": answers["target"], "device": answers["device"], "date": answers["date"],
        "driver": str(answers["telemetry"].get("driver", answers["device"]["driver"])), "compiler": by_rate[next(iter(rates))]["compiler"],
        "commit": str(jobs["commit"]), "command": str(answers["command"]), "telemetry": answers["telemetry"], "rates": rates,
    }  # fmt: skip


def _rate(probe: Probe, job: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    few, many = answer["trips"]
    if [r["trips"] for r in job["runs"]] != [few, many]:
        _bad(f"{probe.rate} was measured with other trip counts than the jobs have")
    mhz = answer["many_mhz"]
    if probe.mode == "residency":
        values, unit, setup = [answer["clusters"] * probe.amount], probe.unit, 0.0
    elif probe.rate.startswith(CLOCK):
        values, unit, setup = [float(v) for v in mhz], "MHz", 0.0
    else:
        # In clocks, because the clock of the two runs may differ, then at the longer run's clock. The shorter run counts by its median:
        # one round that something held up would else spoil a good long one.
        base = statistics.median(a * f for a, f in zip(answer["few_us"], answer["few_mhz"], strict=True))
        slopes = [(b - base / g) / (many - few) for b, g in zip(answer["many_us"], mhz, strict=True)]
        if min(slopes) <= 0:
            _bad(f"{probe.rate}: a longer run took less time than a shorter one")
        values, unit = [value(probe, s, f, job["ctas"]) for s, f in zip(slopes, mhz, strict=True)], probe.unit
        setup = statistics.median(answer["few_us"]) - few * statistics.median(slopes)
    found = summarise(values)
    busy = {}
    if probe.rate.startswith(CLOCK) and probe.tensor:
        clk = statistics.median(us * f for us, f in zip(answer["many_us"], mhz, strict=True)) / many
        busy = {"tensor_share": _short(probe.tensor / clk / targets.get(probe.target).rate("tc_bf16"))}
    return {
        **busy, "value": _short(found.median), "unit": unit, "low": _short(found.low), "high": _short(found.high), "mad": _short(found.mad),
        "setup_us": round(setup, 3), "sm_mhz": statistics.median(mhz) if mhz else 0.0, "trips": [few, many],
        "few_us": answer["few_us"], "few_mhz": answer["few_mhz"], "many_us": answer["many_us"], "many_mhz": mhz,
        "program": f"{probe.file}.cake", "kernel": job["kernel"], "bindings": job["bindings"], "ctas": job["ctas"],
        "content_id": job["content_id"], "variant_id": job["variant_id"], "cubin_sha256": job["cubin"],
    }  # fmt: skip


def value(probe: Probe, us: float, mhz: float, ctas: int) -> float:
    """The rate of a slope of `us` microseconds a trip at an SM clock of `mhz`, in the probe's unit."""
    if probe.form == "per_clk":
        return probe.amount / (us * mhz)
    if probe.form == "per_s":
        return probe.amount * ctas / us * 1e6
    return us / probe.amount * (mhz if probe.form == "clk" else 1.0)


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    for key in ("form", "target", "driver", "compiler"):
        if old.get(key) != new[key]:
            _bad(
                f"they would be mixed with a calibration of another {key} ({old.get(key)}, now {new[key]}); measure all rates"
            )
    known = {p.rate: p for p in probes() if p.target == new["target"]}
    kept = {k: v for k, v in old["rates"].items() if k in known and v["content_id"] == content_of(known[k])}
    return {**new, "rates": {**kept, **new["rates"]}}


def _short(x: float) -> float:
    return float(f"{x:.6g}")


def _bad(why: str) -> NoReturn:
    raise CakeError(
        error("corpus/bad-answers", "performance", f"these answers are not recorded: {why}",
              contract="A calibration rests on an undisturbed device and on the programs of this checkout.")
    )  # fmt: skip
