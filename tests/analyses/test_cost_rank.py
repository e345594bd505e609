"""The order of predictions, and the evidence that says what it is worth."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analyses.cost import estimate
from analyses.cost.estimate import Estimate
from analyses.cost.history import ALL, History, Prior, committed, parse
from analyses.cost.rank import rank
from cake_ir import bind
from cake_ir.diagnostics import CakeError
from cake_ir.text import parse as parse_text
from corpus.kernels import kernel

FIGURES: dict[str, Any] = {
    "points": 40, "shapes": 5, "spearman_median": 0.9, "regret_median": 0.01, "regret_worst": 0.2, "top3": 0.8, "error_median": 0.1,
    "error_p90": 0.3, "resolution": 0.05,
}  # fmt: skip
EVIDENCE: dict[str, Any] = {
    "format": 1, "device": "NVIDIA H200", "l2": "warm", **FIGURES,
    "workloads": {"rows": {"contract": "softmax", "kernels": ["softmax"], **FIGURES, "resolution": None, "points": 16}},
}  # fmt: skip


def prior(resolution: float | None) -> Prior:
    return Prior("rows", "NVIDIA H200", "warm", "committed", "f", 40, 5, 0.1, 0.3, resolution=resolution)


@pytest.fixture(scope="module")
def base() -> Estimate:
    file = parse_text(kernel("softmax").text()).file
    assert file is not None
    done = bind(file, {}, "sm_90a")
    assert done.bound is not None
    return estimate(done.bound, {"M": 512, "N": 1024}, explain=False)


def test_predictions_are_ordered_and_near_ones_tied(base: Estimate) -> None:
    named = [(str(us), replace(base, time_us=us)) for us in (13.0, 10.0, 10.4, 10.8, 10.0)]
    got = rank(named, History((prior(0.05), prior(0.02))))
    assert [p.name for p in got.places] == ["10.0", "10.0", "10.4", "10.8", "13.0"]
    assert [p.tied for p in got.places] == [False, True, True, True, False], "each beside the one before it"
    assert got.contenders == 3 and got.places[-1].times_best == 1.3


def test_without_evidence_only_equal_predictions_are_tied(base: Estimate) -> None:
    got = rank([(str(us), replace(base, time_us=us)) for us in (10.0, 10.0, 10.001)], History((prior(None),)))
    assert [p.tied for p in got.places] == [False, True, False] and got.contenders == 2


def test_what_cannot_be_compared_has_no_order(base: Estimate) -> None:
    for other in (replace(base, shape={"M": 1, "N": 1}), replace(base, device="x"), replace(base, l2="warm")):
        with pytest.raises(ValueError, match="no order"):
            rank([("a", base), ("b", other)], History())


def test_a_family_is_a_workload_and_everything_else_is_all_of_them() -> None:
    known = parse(EVIDENCE, "f.json")
    found = known.history("rows", "NVIDIA H200", "warm")
    assert (found.priors[0].points, found.resolution, found.note) == (16, None, "")
    other = known.history("mine", "NVIDIA H200", "cold")
    assert other.priors[0].family == ALL and other.resolution == 0.05
    assert "no measured family (rows)" in other.note and "with a warm L2" in other.note
    elsewhere = known.history("rows", "NVIDIA L40S", "warm")
    assert elsewhere.priors == () and "NVIDIA L40S" in elsewhere.note


@pytest.mark.parametrize(
    "wrong", [{"format": 2}, {"l2": "hot"}, {"error_median": None}, {"resolution": math.nan}, {"workloads": {"x": {}}}]
)
def test_evidence_that_is_none_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path = tmp_path / "cost-ranking.json"
    assert committed(path) is None
    path.write_text(json.dumps(EVIDENCE | wrong))
    with pytest.raises(CakeError, match=r"cost-ranking\.json") as caught:
        committed(path)
    assert caught.value.diagnostic.rule == "cost/bad-history"
