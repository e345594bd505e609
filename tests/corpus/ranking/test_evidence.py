"""A played run from campaign to figures: lost candidates, stale texts and forged files are told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cake_ir.diagnostics import CakeError
from corpus.ranking import figures, points, predict, record, run
from corpus.ranking import workloads as registry
from corpus.ranking.workloads import Workload
from corpus.tuning import campaign as campaigns
from corpus.tuning import run as tuning_run
from lowering.runtime import bench
from tests.corpus.tuning import played, small
from tests.corpus.tuning.played import Played

SMALL = Workload("small", "kmeans_assign", "bf16", ("kmeans_packed",), small.SMALL, (), (), ())


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the recorded points of a small workload: the times that the model predicts, but for 20 %."""
    directory = tmp_path / "made" / "small"
    made = small.make(directory)
    entries = tuple(e.model_copy(update={"set": "development"}) for e in made.shapes[:3])
    cut = made.model_copy(update={"shapes": entries, "predictions": {n: p[:3] for n, p in made.predictions.items()}})
    cubins = {p.name: p.read_bytes() for p in (directory / "cubins").iterdir()}
    campaigns.write(directory, cut, cubins)
    gpu = Played(cut, lambda kernel, bindings, dims: 5.0 + bindings["STAGES"] + bindings["DP"] / 64)
    gpu.wrong = ("DP64-WG2-STAGES8",)
    monkeypatch.setattr(bench, "bench", gpu.bench)
    monkeypatch.setattr(played, "INFO", replace(played.INFO, name="NVIDIA H200"))
    monkeypatch.setitem(registry.WORKLOADS, "small", SMALL)
    out = tmp_path / "out"
    out.mkdir()
    done = tuning_run.attempt(
        directory, out / "small.jsonl", env=gpu.env(), task=replace(run.TASK, find=lambda name: small.FAMILY)
    )
    assert done["complete"] and done["shapes_left"] == 0
    record.record(tmp_path / "made", out, tmp_path / "results")
    return tmp_path / "results"


def test_what_was_measured_is_recorded_and_read_back(measured: Path) -> None:
    found = points.read("development", measured)
    assert len(found.shapes) == 3 and found.seed == 3 and found.device == "NVIDIA H200"
    first = found.shapes[0]
    assert [m.check for m in first.measured].count("failed") == 1 and len(first.measured[0].samples_us) == 8
    assert first.again_of == first.measured[0].id and first.apart < 0.02
    for _, kept, left in points.usable(found):
        assert all("DP64-WG2-STAGES8" not in p.id for p in kept) and [x.why.split(":")[0] for x in left] == [
            "check failed"
        ]
        assert [p.draw for p in kept] == sorted(p.draw for p in kept)


def test_points_of_an_older_text_are_no_evidence(measured: Path) -> None:
    file = measured / "development.json"
    plain = json.loads(file.read_text())
    plain["workloads"]["small"]["variants"] |= {
        n: v | {"content_id": "ir_" + "0" * 32}
        for n, v in plain["workloads"]["small"]["variants"].items()
        if "DP128" in n
    }
    file.write_text(json.dumps(plain))
    for _, kept, left in points.usable(points.read("development", measured)):
        assert all("DP64" in p.id for p in kept)
        assert any("the kernel has changed" in x.why for x in left)


def test_figures_follow_from_points_and_predictions(
    measured: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("corpus.ranking.statistics.LEAST", 3)
    made = figures.make("development", measured, ablated=False, processes=1)
    assert made["points"] == sum(s["points"] for s in made["per_shape"]) > 0
    assert (
        made["workloads"]["small"]["points"] == made["points"]
        and made["ablation"]["none"]["error_p90"] == made["error_p90"]
    )
    path = figures.write(made, tmp_path / "cost-ranking.json")
    assert figures.held(measured, path) == [] and figures.differences(figures.read(path), made) == []
    assert any("measured" in line for line in figures.table("development", measured, processes=1))
    forged: Any = json.loads(path.read_text())
    forged["error_p90"] = 0.01
    name = figures.shapes(points.read("development", measured))[0].points[0].id
    forged["predictions"][0]["points"][name][0] *= 1.5
    path.write_text(json.dumps(forged))
    said = "\n".join(figures.held(measured, path, again=1))
    assert ".error_p90" in said and name in said


def test_every_ablation_has_a_prediction(measured: Path) -> None:
    found = points.read("development", measured)
    some = next(iter(points.usable(found)))[1][:1]
    said = predict.predict(found, some, predict.ablations())
    assert list(said) == [predict.WHOLE, *predict.ablations()[1:-1], predict.ROOFLINE]
    assert all(len(p) == 1 and next(iter(p.values())).us > 0 for p in said.values())
    assert next(iter(said[predict.ROOFLINE].values())).us <= next(iter(said[predict.WHOLE].values())).us


def test_half_a_run_is_refused(measured: Path, tmp_path: Path) -> None:
    journal = tmp_path / "out" / "small.jsonl"
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(x for i, x in enumerate(lines) if i != 1) + "\n")
    with pytest.raises(CakeError, match="was not measured at"):
        record.record(tmp_path / "made", tmp_path / "out", measured)
    with pytest.raises(CakeError, match="bad-results"):
        points.read("test", measured)
