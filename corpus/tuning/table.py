"""The route table of a family and the committed record of the campaign it comes from.

    corpus/families/NAME.TARGET.json       what the dispatcher obeys (`corpus.routes.Table`)
    corpus/results/tuning/NAME.json        what it was made from: gates, candidates, predictions, times, validation

Both follow from the campaign folder and its journal alone: writing them again gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError, error
from corpus import evidence, routes
from corpus.families import DIRECTORY, Family, Shape
from corpus.recipes import table_text
from corpus.tuning.campaign import Campaign
from corpus.tuning.decide import JUDGE, TUNE, Decision, decide, report, served_dtypes
from corpus.tuning.journal import Journal, shape_key
from corpus.tuning.prepare import sample_cost_s

RESULTS = evidence.DIRECTORY / "tuning"
MOST_EVIDENCE = 24
"""Ids a route lists; the record holds the rest under the same campaign."""
HOW = (
    "GPU seconds of a seed: over every tuning shape that it takes, warm-up and rounds of max(sample length, time), each with its "
    "untimed lead; times as predicted by analyses.estimate, or, for a seed that could not be bound, the median measured cost of the "
    "accepted ones; for a rule about kernels that do not end, the time limit of a launch and a restart of the process on top"
)


@dataclass(frozen=True)
class Made:
    """What a campaign leads to. measurements: one per candidate and shape, with the id that routes name as evidence."""

    table: routes.Table
    record: dict[str, Any]
    measurements: tuple[dict[str, Any], ...]
    decisions: Mapping[str, Decision]


def measurement_id(campaign: str, entry: Mapping[str, Any], candidate: str) -> str:
    """`m_` and 32 hex digits of what was measured: the same in the table, the record and the evidence store."""
    said = entry["contenders"][candidate]
    plain = [campaign, entry["phase"], entry["dtype"], sorted(entry["dims"].items()), candidate, said]
    return "m_" + hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:32]


def make(family: Family, campaign: Campaign, journal: Journal, *, command: str, date: str, commit: str = "") -> Made:
    """Decide and put together. commit: of the tree that was measured, where the campaign does not name it.

    Raises CakeError: `tuning/not-run` for a journal without a start, and as `decide`."""
    starts = journal.of("start")
    if not starts:
        raise CakeError(
            error("tuning/not-run", "data", f"{journal.path} holds no run; make it on the GPU machine with "
                  "`python -m corpus.tuning.run DIR OUT`", contract="A table is measured.")
        )  # fmt: skip
    device = dict(starts[-1]["device"])
    sms = int(device["sms"])
    decisions = {d: decide(family, campaign, journal, d, sms) for d in served_dtypes(family, campaign)}
    reports = {d: report(family, campaign, journal, x, sms) for d, x in decisions.items()}
    table = _table(family, campaign, journal, decisions, reports, device)
    rows = tuple(_measurements(campaign, journal, str(device.get("name", ""))))
    end = journal.of("end")[-1] if journal.of("end") else {}
    record = {
        "kind": "tuning", "family": family.name, "target": campaign.target, "campaign": campaign.id, "date": date,
        "commit": campaign.commit or commit, "commands": [campaign.command, str(starts[-1].get("command", "")), command],
        "device": device, "compiler": campaign.compiler, "packages": starts[-1].get("packages", {}), "seed": campaign.seed,
        "secret": starts[0].get("secret", ""), "settings": campaign.settings.model_dump(), "contracts": campaign.contracts,
        "prepare_s": campaign.prepare_s, "run_s": _run_s(journal), "complete": bool(end.get("complete")),
        "conditions": end.get("telemetry"),
        "gates": gates(campaign, journal), "model": {d: model(campaign, x) for d, x in decisions.items() if d not in family.alike},
        "validation": reports, "lost": journal.of("lost"),
        "candidates": [c.model_dump(mode="json", exclude={"recipe", "cubins"}) for c in campaign.candidates],
        "rejected": [r.model_dump(mode="json") for r in campaign.rejected],
        "predictions": {"shapes": [e.dims for e in campaign.shapes], "us": campaign.predictions},
        "shapes": [{k: v for k, v in e.items() if k != "kind"} for e in journal.of("shape")],
    }  # fmt: skip
    return Made(table, record, rows, decisions)


def write(made: Made, tables: Path = DIRECTORY, results: Path = RESULTS) -> tuple[Path, Path]:
    """Write table and record, each whole or not at all. Raises OSError."""
    record = evidence.replace_text(
        results / f"{made.table.family}.json", json.dumps(made.record, sort_keys=True, separators=(",", ":")) + "\n"
    )
    table = evidence.replace_text(
        tables / f"{made.table.family}.{made.table.target}.json", table_text(made.table).decode()
    )
    return table, record


def _table(
    family: Family, campaign: Campaign, journal: Journal, decisions: Mapping[str, Decision],
    reports: Mapping[str, dict[str, Any]], device: Mapping[str, Any],
) -> routes.Table:  # fmt: skip
    variants: dict[str, routes.Variant] = {}
    rows: list[routes.Route] = []
    fallback: list[str] = []
    entries = {(e["dtype"], shape_key(e["dims"])): e for e in journal.of("shape") if e["phase"] != JUDGE}

    def use(name: str) -> str:
        c = campaign.record(name)
        variants[name] = routes.Variant(name, c.kernel, c.dtype, c.recipe, dict(c.bindings), c.content_id, c.variant_id)
        return name

    for dtype, decision in decisions.items():
        judged = {m: n for n, m in _sources(campaign, dtype).items()} if dtype in family.alike else {}
        for rule in decision.listing.rules:
            name = use(decision.name(rule.candidate))
            guard = tuple(routes.Comparison(c.feature, c.op, c.value) for c in rule.guard)
            measured = judged.get(name, name)
            paid = []
            for s in rule.served:
                e = entries.get((family.alike.get(dtype, dtype), shape_key(decision.seen.shapes[s])))
                if e is not None and measured in e["contenders"]:
                    paid.append(measurement_id(campaign.id, e, measured))
            rows.append(routes.Route(name, guard, tuple(paid[:MOST_EVIDENCE]), round(rule.gain, 4), len(rule.served)))
        fallback += [use(decision.name(c)) for c in decision.listing.fallback]
    used = {c.term for r in rows for c in r.guard}
    validation = {
        d: {k: r[k] for k in ("sets", "quarters_left_out", "noise", "overlapping", "missing", "probes")} for d, r in reports.items()
    }  # fmt: skip
    table = routes.Table(
        family=family.name, target=campaign.target, dims=family.dims, variants=variants, routes=tuple(rows),
        fallback=tuple(fallback), derived={n: d.text for n, d in family.derived.items() if n in used},
        device={k: device[k] for k in ("name", "sms", "driver", "compute_capability") if k in device},
        compiler=campaign.compiler, validation=validation,
    )  # fmt: skip
    table.check()
    return table


def _sources(campaign: Campaign, dtype: str) -> dict[str, str]:
    """Measured candidate -> its twin of an element type."""
    return {c.id: c.twins[dtype] for c in campaign.candidates if dtype in c.twins}


def _measurements(campaign: Campaign, journal: Journal, device: str) -> list[dict[str, Any]]:
    out = []
    for e in journal.of("shape"):
        for name, said in e["contenders"].items():
            c = campaign.record(name)
            out.append(
                {
                    "measurement_id": measurement_id(campaign.id, e, name), "variant_id": c.variant_id,
                    "contract": campaign.contracts[c.dtype]["name"], "shape": e["dims"], "device": device, "kind": "tuning",
                    "verdict": "measured" if said["check"] == "passed" and "us" in said else said["check"],
                    "record": {**said, "candidate": name, "campaign": campaign.id, "phase": e["phase"], "set": e["set"]},
                }
            )  # fmt: skip
    return out


def _run_s(journal: Journal) -> float:
    """Seconds that measuring took, all processes together, as far as shapes say."""
    return round(sum(float(e.get("seconds", 0.0)) for e in journal.of("shape")), 1)


def gates(campaign: Campaign, journal: Journal) -> dict[str, Any]:
    """What the gates stopped, by gate and rule, and the GPU time that running it would have taken."""
    spent: dict[str, float] = defaultdict(float)
    for e in journal.of("shape"):
        if e["phase"] == TUNE:
            for name, c in e["contenders"].items():
                if "us" in c:
                    spent[name] += sample_cost_s(c["us"], campaign.settings)
    typical = statistics.median(spent.values()) if spent else 0.0
    costs = [(r, typical if r.cost_s is None else r.cost_s) for r in campaign.rejected]
    counted = Counter((r.gate, r.rule) for r in campaign.rejected)
    compiled = sum(not c.twin for c in campaign.candidates)
    return {
        "seeds": campaign.seeds, "legal": campaign.legal, "verified": campaign.verified, "compiled": compiled,
        "left_out_by_prediction": campaign.left_out,
        "rejected": [{"gate": g, "rule": r, "seeds": n} for (g, r), n in sorted(counted.items())],
        "gpu_s_not_spent": round(sum(cost for _, cost in costs), 1),
        "of_that_hangs": round(sum(cost for r, cost in costs if r.hangs), 1),
        "gpu_s_spent": round(sum(spent.values()), 1), "how": HOW,
    }  # fmt: skip


def model(campaign: Campaign, decision: Decision) -> dict[str, Any]:
    """How the predictions did: what the predicted best loses to the measured best, and by what factor times are off."""
    number = {tuple(sorted(e.dims.items())): i for i, e in enumerate(campaign.shapes)}
    picked, off = [], []
    for s, shape in enumerate(decision.seen.shapes):
        i = number.get(tuple(sorted(shape.items())))
        told = {
            c: p
            for c, n in enumerate(decision.seen.candidates)
            if i is not None and decision.seen.measured[s, c] and (p := campaign.predictions[n][i])
        }
        if not told:
            continue
        us = decision.seen.us[s]
        first = min(told, key=lambda c: (told[c], c))
        picked.append(math.log(us[first] / min(us[c] for c in told)))
        off += [math.log(us[c] / p) for c, p in told.items()]
    if not picked:
        return {}
    return {
        "predicted_best_over_best": round(math.exp(statistics.fmean(picked)), 4),
        "worst": round(math.exp(max(picked)), 4),
        "time_over_prediction": {q: round(math.exp(v), 3) for q, v in _quartiles(off).items()},
    }


def _quartiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {q: ordered[round(f * (len(ordered) - 1))] for q, f in (("p10", 0.1), ("median", 0.5), ("p90", 0.9))}


def summary_rows(made: Made) -> list[dict[str, Any]]:
    """Losses first: every shape where the table's choice is beaten by more than the noise, then sets, then routes."""
    rows: list[dict[str, Any]] = []
    for dtype, r in made.record["validation"].items():
        for x in r["losses"]:
            rows.append({"what": f"loss, {x['set']}", "dtype": dtype, "where": text(x["dims"]), "ratio": x["loss"],
                         "choice": x["chosen"], "against": x["best"]})  # fmt: skip
        for name, x in r["sets"].items():
            rows.append({"what": f"set {name}", "dtype": dtype, "where": f"{x['shapes']} shapes", "ratio": x["loss"],
                         "choice": f"worst {x['worst']:.3f}", "against": "candidates" if name == "tuned" else "variants"})  # fmt: skip
        if x := r["quarters_left_out"]:
            rows.append({"what": "quarters left out", "dtype": dtype, "where": f"{x['shapes']} shapes", "ratio": x["loss"],
                         "choice": "tables made without them", "against": "candidates"})  # fmt: skip
    for i, route in enumerate(made.table.routes):
        guard = " and ".join(map(str, route.guard)) or "every shape"
        rows.append({"what": f"route {i}", "dtype": made.table.variants[route.variant].dtype, "where": guard, "ratio": route.gain,
                     "choice": route.variant, "against": f"{route.shapes} shapes"})  # fmt: skip
    rows += [{"what": "fallback", "dtype": made.table.variants[n].dtype, "where": "else", "ratio": 1.0, "choice": n, "against": ""}
             for n in made.table.fallback]  # fmt: skip
    return rows


def text(shape: Shape) -> str:
    """A shape for people."""
    return " ".join(f"{k}={v}" for k, v in shape.items())
