"""The figures in docs/cost-model.md, "How well it ranks": tables from `corpus/results/cost-ranking.json`, never typed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corpus.ranking.predict import ROOFLINE, WHOLE

BEGIN = "<!-- ranking: written by tools/gen_docs.py, do not edit -->"
END = "<!-- end of the ranking -->"
COLUMNS = (
    "workload", "points", "shapes", "Spearman, median (least)", "regret, median (worst)", "best in top 3", "error, median (90 %)",
    "inside the interval",
)  # fmt: skip
PICTURES = "img"
"""Folder of the pictures, beside the page."""


def section(made: Mapping[str, Any] | None) -> str:
    """The text between the marks; made: what `corpus.ranking.figures.read` gives, None without one."""
    if made is None:
        return "\nNo test set has been measured.\n\n"
    where = f"{made['points']} points of {made['shapes']} shapes on an {made['device']}, driver {made['driver']}, {made['compiler']}"
    lines = [
        "",
        f"Measured: {where}, {made['date'][:10]}, seed {made['seed']} (`{made['source']}`); L2 {made['l2']}.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "| --- |" + " ---: |" * 7,
        *(_row(name, f) for name, f in made["workloads"].items()),
        _row("**all**", made),
        "",
        *_resolution(made),
        "",
        f"![Predicted against measured times]({PICTURES}/cost-model-error.svg)",
        "",
        f"![Measured times in the predicted order, per workload]({PICTURES}/cost-model-ranking.svg)",
        "",
        "**Ablation.** The same points with each term of the model taken out in turn (`analyses/cost/terms.py`), and a roofline alone:",
        "",
        "| without | Spearman, median | regret, median (worst) | best in top 3 | error, median (90 %) |",
        "| --- |" + " ---: |" * 4,
        *(_ablated(name, f) for name, f in _order(made["ablation"])),
        "",
        f"![What each term of the model is worth]({PICTURES}/cost-model-ablation.svg)",
        "",
        *_worst(made),
        "",
    ]
    return "\n".join(lines) + "\n"


def _percent(x: float | None, digits: int = 1) -> str:
    return "-" if x is None else f"{100 * x:.{digits}f} %"


def _rho(x: float | None) -> str:
    return "-" if x is None else f"{x:.3f}"


def _row(name: str, f: Mapping[str, Any]) -> str:
    cells = [
        name, str(f["points"]), str(f["shapes"]), f"{_rho(f['spearman_median'])} ({_rho(f['spearman_least'])})",
        f"{_percent(f['regret_median'])} ({_percent(f['regret_worst'])})", _percent(f["top3"], 0),
        f"{_percent(f['error_median'])} ({_percent(f['error_p90'])})", _percent(f["coverage"], 0),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _ablated(name: str, f: Mapping[str, Any]) -> str:
    said = {WHOLE: "nothing", ROOFLINE: "everything but the rates (a roofline)"}.get(name, name)
    cells = [said, _rho(f["spearman_median"]), f"{_percent(f['regret_median'])} ({_percent(f['regret_worst'])})",
             _percent(f["top3"], 0), f"{_percent(f['error_median'])} ({_percent(f['error_p90'])})"]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _order(found: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The whole model first, then what costs most rank correlation, the roofline last."""
    return sorted(found.items(), key=lambda x: (x[0] != WHOLE, x[0] == ROOFLINE, x[1]["spearman_median"] or 0.0, x[0]))


def _resolution(made: Mapping[str, Any]) -> list[str]:
    each = ", ".join(f"{n} {_percent(f['resolution'])}" for n, f in made["workloads"].items())
    return [
        "Two predictions of one shape are in the right order in nine of ten pairs when they differ by "
        f"{_percent(made['resolution'])} ({each}).",
        f"Of {made['neighbours']['pairs']} pairs of neighbours (one tunable of one kernel differs, predictions more than "
        f"{_percent(made['neighbours']['apart'], 0)} apart) {made['neighbours']['right']} are.",
        f"{len(made['left_out'])} measured candidates are in no figure; the file says of each why.",
    ]


def _worst(made: Mapping[str, Any]) -> list[str]:
    """Where it is worst: shapes by regret, then by rank correlation."""
    shapes = made["per_shape"]
    by_regret = max(shapes, key=lambda s: s["regret"])
    by_rho = min(shapes, key=lambda s: 1.0 if s["spearman"] is None else s["spearman"])

    def said(s: Mapping[str, Any]) -> str:
        return f"{s['workload']} at {' '.join(f'{k}={v}' for k, v in s['shape'].items())}"

    return [
        f"Worst: {said(by_regret)}, where the predicted best loses {_percent(by_regret['regret'])}; "
        f"{said(by_rho)}, with a rank correlation of {_rho(by_rho['spearman'])}."
    ]
