"""The sentences and small tables of results, in one place so that every tool speaks alike."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from server.programs import Program, Ref, Unit
from server.results import Result, clean


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
        f"repair with propose_ir(base_id={base!r}, edits=[{{old, new}}]); `fixes` marked verified pass the verifier and can be "
        "sent as they are, what they compute is unchecked"
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


def undecided(properties: Sequence[Mapping[str, Any]]) -> list[str]:
    """'property: reason' of everything that was not decided; 'property of kernel: reason' where there are several."""
    several = len({p["kernel"] for p in properties}) > 1
    return [
        p["name"] + (f" of {p['kernel']}" if several else "") + (f": {p['reason']}" if p["reason"] else "")
        for p in properties
        if p["verdict"] == "undecided"
    ]


def undecided_words(items: Sequence[str]) -> str:
    """What a summary ends with when something was left open: nothing undecided counts as proved."""
    if not items:
        return ""
    names = [i.split(": ")[0] for i in items]
    why = items[0].partition(": ")[2]
    return f"; not proved, undecided: {', '.join(dict.fromkeys(names))}" + (f" ({why})" if why else "")


def label(result: Result, items: Sequence[str]) -> Result:
    """The result with what the verifier left undecided, in its sentence and as a member."""
    result.undecided = [clean(i, 300) for i in items]
    result.summary += clean(undecided_words(items), 400)
    return result


def estimate_summary(unit: Unit, shape: Mapping[str, int], found: Any, bound_class: str) -> str:
    dims = ",".join(f"{k}={v}" for k, v in shape.items())
    begin = f"{unit.kernel} at {dims} on {found.device}, L2 {found.l2}: "
    if not found.calibrated:
        return (
            f"{begin}at least {found.floor_us:.4g} us; uncalibrated, so bounds only ({found.time_us:.4g} us by rates of the data sheet and "
            "assumed latencies), not a measurement"
        )
    span = f" ({found.low_us:.4g} to {found.high_us:.4g})" if found.high_us is not None else ""
    return (
        f"{begin}predicted {found.time_us:.4g} us{span}, bound by {bound_class}, no schedule below {found.floor_us:.4g} us (rates measured "
        f"on {found.source}; not a measurement)"
    )


def prior_row(prior: Any) -> dict[str, Any]:
    """One record of prior errors as an answer shows it, ratios to three digits."""
    fields = (
        "origin", "family", "device", "l2", "source", "points", "shapes", "error_median", "error_p90", "spearman_median",
        "regret_median", "regret_worst", "top3", "resolution",
    )  # fmt: skip
    found = {name: getattr(prior, name) for name in fields}
    return {k: float(f"{v:.3g}") if isinstance(v, float) else v for k, v in found.items() if v is not None}


def prior_words(history: Any) -> str:
    """What is known of earlier predictions in a family, in a sentence."""
    if not history.priors:
        return history.note[:1].upper() + history.note[1:]
    parts = []
    for p in history.priors:
        words = f"{p.family} ({p.origin}, {p.points} points, L2 {p.l2}): "
        words += f"error {_percent(p.error_median)} median, {_percent(p.error_p90)} p90"
        words += f", order {p.spearman_median:.2f} (Spearman)" if p.spearman_median is not None else ""
        words += f", regret {_percent(p.regret_worst)} at worst" if p.regret_worst is not None else ""
        parts.append(words)
    apart = history.resolution
    told = (
        f"; told apart from {_percent(apart)} on" if apart is not None else "; how far apart is told apart is not known"
    )
    return f"Prior error of {'; '.join(parts)}{told}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
