"""A wrong element is answered with the line, role, CTA and tile that wrote it, from a GPU's answer and by interpretation."""

from __future__ import annotations

from typing import Any

import pytest

from corpus.check import CaseResult
from server import gpu_work
from server.engine import Engine
from server.errors import EngineError
from server.programs import Ref
from server.results import CONCISE_BYTES, size_of
from server.worker import Control, WorkerDied, run_worker
from tests.server.conftest import KMEANS
from tests.server.test_gpu_path import DEVICE, SHAPE, Played

LINE = KMEANS[: KMEANS.index("store(label[")].count("\n") + 1
SMALL = {"B": 1, "N": 130, "C": 200, "D": 64}


def wrong(name: str, index: list[int]) -> dict[str, Any]:
    case = CaseResult(
        shape=SHAPE, distribution=name, verdict="failed", cause="label", bad=1, total=130,
        message=f"1 of 130 labels are wrong; worst at {index}: label 3 scores 2 above the nearest, 5",
        worst={"tensor": "label", "index": index, "expected": 5.0, "got": 3.0, "error": 2.0, "tolerance": 0.1,
               "excess": 20.0, "ulp": "nan"},
        at={"tensor": "label", "index": index},
    )  # fmt: skip
    return case.model_dump(mode="json")


class Wrong(Played):
    """A device whose results are wrong in a few elements; `died` makes the blame's worker die."""

    def __init__(self) -> None:
        super().__init__()
        self.died = False

    def __call__(self, module: str, job: dict[str, Any], **more: Any) -> dict[str, Any]:
        if module == "server.cpu_main" and job["kind"] == "blame" and self.died:
            raise WorkerDied("worker/killed", "ended by SIGKILL", "log", "x")
        if module != "corpus.gpu_main" or job["kind"] == "probe":
            return super().__call__(module, job, **more)
        cases = [wrong("normal", [0, 70]), wrong("sorted", [0, 129])]
        if job["kind"] == "check":
            first = cases[0]["message"]
            return {"passed": False, "on": "gpu", "summary": f"failed: 2 failed; first at N=130 (normal): {first}", "cases": cases,
                    "diagnostics": [], "seed": 0, "secret": "05", "contract": "kmeans_assign"}  # fmt: skip
        raw = self.bench(job).model_dump(mode="json")
        row = {
            **raw["shapes"][0],
            "verdict": "incorrect",
            "message": cases[0]["message"],
            "checks": cases[:1],
            "candidate": None,
        }
        return {**raw, "passed": False, "secret": "05", "shapes": [row]}


@pytest.fixture
def device(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Wrong:
    fake = Wrong()
    monkeypatch.setattr(gpu_work, "run_worker", fake)
    monkeypatch.setattr(engine.catalog, "gpu_indices", lambda: [0])
    return fake


def test_a_check_on_the_gpu_points_at_the_line_of_the_op(engine: Engine, device: Wrong) -> None:
    got = engine.evaluate.check(Ref(text=KMEANS), "kmeans_assign", [SHAPE], on="gpu")
    assert got.status == "failed" and DEVICE["name"] in got.summary
    owners = [f["owner"] for f in got.data["failed"]]
    assert [(o["line"], o["op"], o["role"], o["instance"]) for o in owners] == [
        (LINE, "store", "math", 1),
        (LINE, "store", "math", 0),
    ]
    assert owners[0]["cta"] != owners[1]["cta"] and owners[0]["box"] == [[0, 1], [64, 128]]
    assert f"; written by store on line {LINE} (math[1] of CTA " in got.data["failed"][0]["message"]
    assert {(d.rule, d.line) for d in got.diagnostics} == {("contract/wrong-result", LINE)}
    assert any(
        d.message.startswith("label[0, 70] is wrong (label): expected 5, got 3; written") for d in got.diagnostics
    )
    assert size_of(got.compact()) < CONCISE_BYTES


def test_a_timing_with_wrong_outputs_points_there_too(engine: Engine, device: Wrong) -> None:
    got = engine.evaluate.bench(Ref(text=KMEANS), "kmeans_assign", [SHAPE])
    assert got.status == "failed" and f"store on line {LINE}" in got.data["shapes"][0]["message"]
    assert got.diagnostics[0].line == LINE and size_of(got.compact()) < CONCISE_BYTES


def test_the_verdict_stands_when_nobody_can_say_who_wrote_it(engine: Engine, device: Wrong) -> None:
    device.died = True
    got = engine.evaluate.check(Ref(text=KMEANS), "kmeans_assign", [SHAPE], on="gpu")
    assert got.status == "failed" and len(got.data["failed"]) == 2 and "owner" not in got.data["failed"][0]
    assert got.diagnostics == [] and engine.store.failures() == []


def test_a_check_by_interpretation_points_at_the_line_of_the_op(engine: Engine) -> None:
    text = KMEANS
    at = text.index("store(label[")
    end = text.index("\n", at)
    store = text[at:end]
    broken = (
        text[:at] + store[: store.rindex(",")] + ", " + store[store.rindex(",") + 1 : -1].strip() + " + 1)" + text[end:]
    )
    got = engine.evaluate.check(Ref(text=broken), "kmeans_assign", [SMALL])
    assert got.status == "failed", got.summary
    assert got.data["failed"][0]["owner"]["line"] == LINE and got.diagnostics[0].line == LINE
    assert size_of(got.compact()) < CONCISE_BYTES


def test_the_worker_answers_with_the_cases_in_order(engine: Engine) -> None:
    cases = [wrong("normal", [0, 1]), wrong("normal", [5, 1])]
    job = {"text": KMEANS, "bindings": {}, "target": "sm_90a", "kernel": None, "kind": "blame", "seed": 0, "secret": "05",
           "contract": "kmeans_assign", "contracts_dir": None, "cases": cases, "sms": 132}  # fmt: skip
    inside, outside = run_worker("server.cpu_main", job, timeout_s=60, control=Control())["cases"]
    assert inside["owner"]["line"] == LINE and outside["owner"] is None, "an index outside the tensor has no writer"
    with pytest.raises(EngineError):
        run_worker("server.cpu_main", {**job, "cases": [{"verdict": "failed"}]}, timeout_s=60, control=Control())
