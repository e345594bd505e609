"""The interval of predictions: how measured times of the development set lie around what the model says, by bound class.

`python -m corpus.ranking spread` writes `corpus/calibration/spread/<device>.json`, which `analyses.cost` reads.
The test set has no part in it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from analyses.cost.calibration import SPREAD, slug
from corpus import evidence
from corpus.ranking import points as store
from corpus.ranking import statistics as st
from corpus.ranking.figures import shapes
from corpus.ranking.predict import WHOLE, predict

LOW, HIGH = 0.05, 0.95
LEAST = 40
"""Points below which a class takes the quantiles of all."""
COMMAND = "python -m corpus.ranking spread"


def make(directory: Path = store.DIRECTORY, processes: int = 2) -> dict[str, Any]:
    """The quantiles of measured over predicted time: {"device", "classes": {class: [low, high, points]}, ...}; `all` is every point.

    Raises CakeError `corpus/bad-results`.
    """
    found = store.read("development", directory)
    kept = [p for r in shapes(found) for p in r.points]
    said = predict(found, kept, (WHOLE,), processes)[WHOLE]
    by_class: dict[str, list[float]] = defaultdict(list)
    for p in kept:
        ratio = p.us / said[p.key].us
        by_class["all"].append(ratio)
        by_class[said[p.key].bound_class].append(ratio)
    classes = {
        name: [round(st.quantile(ratios, LOW) or 0.0, 4), round(st.quantile(ratios, HIGH) or 0.0, 4), len(ratios)]
        for name, ratios in sorted(by_class.items())
        if len(ratios) >= LEAST
    }
    return {
        "kind": "cost-spread", "device": found.device, "source": "corpus/results/ranking/development.json", "command": COMMAND,
        "quantiles": [LOW, HIGH], "classes": classes,
    }  # fmt: skip


def write(made: dict[str, Any], directory: Path = SPREAD) -> Path:
    """Write the file of the device. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    return evidence.replace_text(directory / f"{slug(made['device'])}.json", json.dumps(made, indent=1) + "\n")
