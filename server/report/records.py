"""Single records of evidence as parts of the report's model.

Evidence is data from elsewhere (another version, another machine, a bundle): every field may be missing. What does not
fit raises one of `MISFIT`; the caller names it on the page and goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cake_ir.diagnostics import CakeError
from server.report import units
from server.report.model import (
    Comparison,
    Conditions,
    Contender,
    Judgement,
    Provenance,
    Resources,
    RoleRegisters,
    Subject,
    Timing,
    overall,
)
from server.steps import verdictless

if TYPE_CHECKING:
    from cake_ir.bound import BoundKernel

MISFIT = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError)
"""What reading a record of another form raises; ArithmeticError: numbers beyond all floats."""

_LONGEST_US = 1e12
_MOST = 1e30
"""No launch takes eleven days, no shape has more work: larger numbers, and NaN, are damage."""

Work = tuple[float, float, str]
"""FLOP, bytes and unit of the FLOP of one shape, by its contract."""


def judgement(subject: Subject, provenance: Provenance, m: Mapping[str, Any], raw: Mapping[str, Any]) -> Judgement:
    """A check (`corpus.check.CheckResult` as JSON). m: the row of the store that holds it."""
    cases = raw.get("cases", [])
    ran = [c for c in cases if c.get("verdict") != "skipped"]
    return Judgement(
        subject=subject, provenance=provenance, where="interpreted" if m["kind"] == "check-cpu" else provenance.device,
        verdict="passed" if raw["passed"] else "failed", summary=verdictless(str(raw.get("summary", ""))), cases=len(ran),
        shapes=len({units.pairs(c.get("shape", {})) for c in ran}),
        distributions=tuple(sorted({str(c.get("distribution", "")) for c in ran})),
        judge="; ".join(str(raw[k]) for k in ("judge_selftest", "soak") if raw.get(k)),
        undecided=tuple(map(str, m["record"].get("undecided", ()))),
    )  # fmt: skip


def second_opinion(subject: Subject, provenance: Provenance, raw: Mapping[str, Any]) -> Judgement:
    """compute-sanitizer's verdicts (`corpus.jobs.Sanitize` as JSON): one case per tool, each finding with its line."""
    runs = raw["runs"]
    found = [f"{r['tool']}, {_at(f)}: {f.get('message', '')}" for r in runs for f in r.get("findings", ())]
    return Judgement(
        subject=subject, provenance=provenance, where=f"{provenance.device}, compute-sanitizer",
        verdict="passed" if raw["passed"] else "failed", summary="; ".join(f"{r['tool']} {r['verdict']}" for r in runs),
        cases=len(runs), shapes=1, distributions=tuple(str(r["tool"]) for r in runs), findings=tuple(found),
        judge="; ".join(f"{r['tool']}: {r['limit']}" for r in runs if r.get("limit")),
    )  # fmt: skip


def _at(finding: Mapping[str, Any]) -> str:
    lines = [s["line"] for s in finding.get("sites", ()) if s.get("line")]
    return f"line {lines[0]}" if lines else "no known line"


def timing(subject: Subject, provenance: Provenance, s: Mapping[str, Any], rule: str, work: Work) -> Timing:
    """One `corpus.jobs.BenchShape` as JSON."""
    comparisons = tuple(map(comparison, s.get("baselines", ())))
    flops, moved, unit = work
    verdict = overall(str(s["verdict"]), comparisons, s.get("baseline"))
    # The verdict is about the fastest baseline and may have been withheld, whatever the bare interval says.
    comparisons = tuple(replace(c, verdict=verdict) if c.baseline.name == s.get("baseline") else c for c in comparisons)
    return Timing(
        subject=subject, provenance=provenance, shape=units.pairs(s["shape"]), mode=str(s["mode"]),
        verdict=verdict, dtypes=units.pairs(s["dtypes"]) if s.get("dtypes") else "",
        method=str(s.get("method", "")), message=str(s.get("message", "")), rule=rule,
        candidate=contender(s["candidate"]) if s.get("candidate") else None, comparisons=comparisons,
        unavailable={str(k): str(v) for k, v in s.get("unavailable", {}).items()}, floor_us=_amount(s.get("floor_us")),
        flops=_amount(s.get("flops")) or flops, bytes=_amount(s.get("bytes")) or moved, flop_unit=unit,
        checks=_checks(s.get("checks", ())), conditions=conditions(s.get("conditions", {})),
    )  # fmt: skip


def comparison(b: Mapping[str, Any]) -> Comparison:
    """One baseline of a shape (`corpus.jobs.Timing` as JSON)."""
    return Comparison(
        baseline=contender(b), ratio=_amount(b.get("ratio")) or None, low=_amount(b.get("ratio_low")) or None,
        high=_amount(b.get("ratio_high")) or None, verdict=str(b.get("comparison") or "inconclusive"),
        yardstick=not b.get("computes", True), results=str(b.get("verdict", "")),
    )  # fmt: skip


def contender(t: Mapping[str, Any]) -> Contender:
    """Raises ValueError for a time that no clock gives."""
    versions = units.pairs(t["versions"]) if t.get("versions") else ""
    times = (float(t["median_us"]), *map(float, t["samples_us"]))
    if not all(0 < us < _LONGEST_US for us in times):
        raise ValueError(f"{t['name']} has a time outside 0 to {_LONGEST_US:g} us")
    return Contender(str(t["name"]), times[1:], times[0], int(t.get("batch", 0)), versions)


def _amount(value: Any) -> float:
    """A quantity, 0 where there is none that can be drawn."""
    return float(value) if isinstance(value, int | float) and 0 < value < _MOST else 0.0


def _checks(cases: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """(when, verdict) of judged launches."""
    return tuple((str(c.get("message", "")).split(":")[0], str(c.get("verdict", "?"))) for c in cases)


def resources(subject: Subject, b: Mapping[str, Any], roles: tuple[RoleRegisters, ...]) -> Resources:
    """One build of the store (`lowering.Build.report`), with the registers of its roles."""
    record, used = b["record"], b["record"]["resources"]
    return Resources(
        subject=subject, date=units.when(b["created"]), registers=int(used["registers"]),
        spill_bytes=int(used["spill_store_bytes"]) + int(used["spill_load_bytes"]), stack_bytes=int(used["stack_bytes"]),
        static_smem=int(used["static_smem"]), dynamic_smem=int(used["dynamic_smem"]), barriers=int(used["barriers"]),
        blocks_per_sm=int(record["blocks_per_sm"]), limited_by=str(record["limited_by"]), roles=roles,
    )  # fmt: skip


def roles(text: str, bindings: Mapping[str, Any], target: str, kernel: str | None) -> tuple[RoleRegisters, ...]:
    """Registers per role by the verifier's budget; empty when the text is not here or does not bind."""
    bound = _bound(text, bindings, target, kernel)
    if bound is None:
        return ()
    from analyses.registers import budget
    from cake_ir.derive import derive

    return tuple(
        RoleRegisters(str(r["role"]), int(r["threads"]), r.get("budget"), str(r.get("source", "")), r.get("estimate"))
        for r in budget(bound, derive(bound))
    )


def _bound(text: str, bindings: Mapping[str, Any], target: str, kernel: str | None) -> BoundKernel | None:
    from cake_ir import bind, parse

    file = parse(text).file if text else None
    if file is None:
        return None
    try:
        return bind(file, dict(bindings), target or None, kernel).bound
    except CakeError:
        return None


def conditions(raw: Mapping[str, Any]) -> Conditions:
    """Clocks, power, temperature, throttling and other users of the device, out of a row's `conditions`."""
    telemetry = raw.get("telemetry") or raw
    if not isinstance(telemetry, Mapping):
        return Conditions()
    ends = [e for e in (telemetry.get("before"), telemetry.get("after")) if isinstance(e, Mapping)]

    def read(*names: str) -> Any:
        return next((p[n] for p in (telemetry, *ends) for n in names if p.get(n) is not None), None)

    reasons = telemetry.get("reasons")
    others = telemetry.get("other_processes")
    return Conditions(
        sm_mhz_min=read("sm_mhz_min", "sm_mhz"), sm_mhz_max=read("sm_mhz_max", "sm_mhz"), sm_mhz_limit=read("sm_max_mhz"),
        memory_mhz=read("memory_mhz_max", "memory_mhz"), power_w_max=read("power_w_max", "power_w"), power_limit_w=read("power_limit_w"),
        temperature_c_max=read("temperature_c_max", "temperature_c"),
        reasons=tuple(map(str, reasons)) if isinstance(reasons, list | tuple) else None,
        other_processes=len(others) if isinstance(others, list | tuple) else others,
        notes=tuple(map(str, raw.get("notes") or ())) or tuple(f"not recorded: {w}" for w in [telemetry.get("unavailable")] if w),
    )  # fmt: skip


def settings(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """How a timing was set up, out of a row's `conditions`."""
    found = raw.get("settings")
    return found if isinstance(found, Mapping) else {}


def text_of(value: Any) -> str:
    """A value as it is shown; empty for None."""
    return "" if value is None else str(value)
