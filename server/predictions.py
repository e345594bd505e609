"""Predictions beside measurements: what the model said of a timing, what it is known to be worth, and where it was wrong.

A timing is stored with what the model of that day predicted for it (`model` of the measurement's record, one entry per row).
A row outside the interval of its prediction opens a calibration record when it is reported: a failure of the cost model with
everything that a look at it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import structlog

from cake_ir.diagnostics import CakeError
from server.results import clean

if TYPE_CHECKING:
    from analyses.cost.history import History, Prior
    from server.store import Store

_log = structlog.get_logger("cake.predictions")

NOISE = 0.01
"""Measured times closer than this (as a fraction) are not asked to be in order."""
LEAST = 3
"""Timings of one family, on one device, from which its prior error is told."""
ORDERED = 4
"""Variants timed at one shape from which their order counts: among three each is in the first three."""


def predicted(bound: Any, spec: Any, device: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a timing (`corpus.jobs.BenchShape` as JSON) with what the model says of them.

    Each has `shape`, `l2` (`warm`, `cold`), `measured_us` (None: not valid), and `time_us`, `low_us`, `high_us` (None: no interval is
    claimed), `bound_class`, `source`; or `unavailable` with the reason, for a device that the model knows nothing of."""
    from corpus.jobs import VALID

    out = []
    for row in rows:
        us = (row.get("candidate") or {}).get("median_us") if row["verdict"] in VALID else None
        known = {"shape": dict(row["shape"]), "l2": row["mode"], "measured_us": us}
        out.append({**known, **_said(bound, spec, row["shape"], device, row["mode"])})
    return out


def _said(bound: Any, spec: Any, shape: Mapping[str, int], device: str, l2: Any) -> dict[str, Any]:
    from corpus.executable import Executable

    try:
        (e,) = Executable(bound).estimates(spec, dict(shape), device, l2=l2, explain=False)
    except CakeError as exc:
        return {"unavailable": clean(exc.diagnostic.message, 300)}
    except Exception:  # what was measured is kept whatever becomes of its prediction
        _log.exception("the model failed", kernel=bound.name, shape=dict(shape))
        return {"unavailable": "the model failed on this kernel; the server's log says how"}
    return {
        "time_us": e.time_us, "low_us": e.low_us, "high_us": e.high_us, "bound_class": e.bound_class, "source": e.source,
    }  # fmt: skip


def outside(row: Mapping[str, Any]) -> bool:
    """Whether a valid time lies outside the interval of its prediction; where no interval is claimed it does not."""
    us, low, high = row.get("measured_us"), row.get("low_us"), row.get("high_us")
    return us is not None and low is not None and high is not None and not low <= us <= high


def model_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a timing's answer shows of the prediction, beside the time."""
    if "time_us" not in row:
        return {}
    shown: dict[str, Any] = {"predicted_us": float(f"{row['time_us']:.4g}")}
    if row.get("high_us") is not None:
        shown["predicted_interval"] = [float(f"{row[k]:.4g}") for k in ("low_us", "high_us")]
    return {**shown, "outside": True} if outside(row) else shown


def mispredicted_next(measurement_id: str) -> str:
    """The call that keeps a misprediction."""
    return f"report_failure(symptom='mispredicted_time', measurement_id={measurement_id!r}) opens a calibration record"


# ---- prior error ---------------------------------------------------------------------------------------------------


def contracts_of_interest(store: Store) -> list[str]:
    """Contracts whose kernels have a prior error: those of the committed evidence and those timed in this workspace."""
    from analyses.cost.history import committed

    known = committed()
    names = [c for c, _ in known.families.values()] if known else []
    return list(dict.fromkeys([*names, *store.timed_contracts()]))


def history(store: Store, kernels: Iterable[tuple[str, Sequence[str]]], device: str, l2: Any) -> History:
    """Prior errors of the family of these kernels (name, contracts that they fit). Kernels of several families have those of all."""
    from analyses.cost.history import ALL, History, committed

    known = committed()
    mine = [(name, tuple(contracts)) for name, contracts in kernels]
    shared = [c for c in dict.fromkeys(c for _, cs in mine for c in cs) if all(c in cs for _, cs in mine)]
    found = History(note="no prior error is known: no evidence is committed")
    if known is not None:
        names = {_family(known.families, name, contracts) for name, contracts in mine}
        found = known.history(names.pop() if len(names) == 1 else ALL, device, l2)
    own = workspace_prior(store, shared, device, l2)
    return History((*found.priors, own), found.note) if own else found


def _family(families: Mapping[str, tuple[str, tuple[str, ...]]], kernel: str, contracts: Sequence[str]) -> str:
    """The workload of a kernel: one whose contract it fits, first of those that name it; `ALL` where it fits none."""
    from analyses.cost.history import ALL

    fitting = [name for name, (contract, _) in families.items() if contract in contracts]
    return next((name for name in fitting if kernel in families[name][1]), fitting[0] if fitting else ALL)


def workspace_prior(store: Store, contracts: Sequence[str], device: str, l2: Any) -> Prior | None:
    """Predicted against measured over what this workspace has timed under these contracts: the latest valid row of each variant,
    shape and L2 state. None below `LEAST` rows."""
    points: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    kernels = set()
    for timing in store.predicted_timings(device, contracts):
        for row in timing["model"]:
            if row["l2"] == l2 and row.get("measured_us") and row.get("time_us"):
                group = points.setdefault((timing["contract"], str(sorted(row["shape"].items()))), {})
                group.setdefault(timing["variant_id"], (row["time_us"], row["measured_us"]))  # the latest comes first
                kernels.add(timing["kernel"])
    if sum(map(len, points.values())) < LEAST:
        return None
    from analyses.cost.history import Prior, figures
    from corpus.ranking.statistics import Sample, summarise

    every = [Sample(tuple(m for _, m in g.values()), tuple(p for p, _ in g.values()), NOISE) for g in points.values()]
    error = summarise(every)
    order = summarise([s for s in every if len(s.measured) >= ORDERED])
    of_order = ("spearman_median", "regret_median", "regret_worst", "top3", "resolution")
    return Prior(
        family=", ".join(contracts), device=device, l2=l2, origin="workspace", source=f"timings of {', '.join(sorted(kernels))}",
        **figures({**asdict(error), **{k: getattr(order, k) for k in of_order}}),
    )  # fmt: skip
