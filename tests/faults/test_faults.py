"""The faulty kernels and the run over them, as far as that goes without a GPU."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lowering.compile import compile_cuda
from server import worker
from server.errors import EngineError
from server.worker import JobFault
from tests.faults.build import NOTHING, job, right, spoil
from tests.faults.kernels import DEADLOCKS, FAULTS, FRAME, HANGS, KERNELS, PRELUDE, REFUSED, TRIAL
from tools import gpu_faults

ROOT = Path(__file__).resolve().parents[2]


def test_there_are_fifty_that_hang_or_fault_and_more_that_cannot_be_launched() -> None:
    assert len(HANGS) + len(DEADLOCKS) + len(FAULTS) == 50 and len(REFUSED) >= 9
    assert len({k.name for k in KERNELS}) == len(KERNELS) and set(TRIAL) <= {k.name for k in KERNELS}


def test_a_spoiled_cubin_differs_in_one_instruction() -> None:
    source = PRELUDE + FRAME % {"bounds": "", "body": ""}
    whole = compile_cuda(source, "sm_90a").cubin
    broken = spoil(whole)
    changed = [i for i, (a, b) in enumerate(zip(whole, broken, strict=True)) if a != b]
    assert 0 < len(changed) <= 16 and changed[-1] - changed[0] < 16 and NOTHING in broken


def test_jobs_are_quick_to_start_and_short_to_wait_for() -> None:
    for kernel in (HANGS[0], DEADLOCKS[0], FAULTS[-1], REFUSED[-1]):
        made = job(kernel)
        assert made["job"]["use_torch"] is False and made["job"]["launch_timeout_s"] <= 3
        assert (made["where"] is not None) == (kernel in DEADLOCKS)
    assert len(made["job"]["launches"][0]["plans"]) == 2, "a right launch and a refused one"


def test_no_tool_of_the_product_reaches_them() -> None:
    for part in ("cake_ir", "analyses", "lowering", "corpus", "server"):
        for path in (ROOT / part).rglob("*.py"):
            assert "tests.faults" not in path.read_text(encoding="utf-8"), path


Answer = Callable[[dict[str, Any]], dict[str, Any]]
RIGHT = {"passed": True, "summary": "passed: 2 passed", "cases": []}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], list[dict[str, Any]]]:
    """Runs two kernels with given answers of the GPU; the rows."""
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    made = [{"name": "a", "ending": "hang"}, {"name": "b", "ending": "refused"}]
    spec = {"kind": "check", "launch_timeout_s": 2.0, "launches": [{"plans": [{"cubin_sha256": "00"}]}]}
    rows = [
        {**m, "trial": True, "kind": "cuda", "job": {**spec, "name": m["name"]}, "named": {}, "where": None}
        for m in made
    ]
    (jobs / "jobs.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (jobs / "meta.json").write_text(json.dumps({"commit": "c", "compiler": "n", "right": {"kind": "right"}}))
    monkeypatch.setattr(worker.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(gpu_faults, "RESULT", tmp_path / "isolation.json")

    def go(answer: Answer) -> list[dict[str, Any]]:
        def run_worker(module: str, job: dict[str, Any], **more: Any) -> dict[str, Any]:
            if job["kind"] == "probe":
                return {"kind": "probe", "device": {"name": "GPU", "sms": 132}, "healthy": True}
            return answer(job)

        monkeypatch.setattr(worker, "run_worker", run_worker)
        gpu_faults.run(jobs, tmp_path / "out", trial=False)
        rows = [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]
        go.code = gpu_faults.record([(jobs, tmp_path / "out")])  # type: ignore[attr-defined]
        return rows

    return go


def good(job: dict[str, Any]) -> dict[str, Any]:
    if job["kind"] == "right":
        return RIGHT
    if job["name"] == "a":
        raise JobFault("worker/hung", "a did not end", "report", {"launch": 1})
    return {"passed": False, "summary": "x", "cases": [{"verdict": "error", "cause": "lowering/launch-refused"}]}


def test_a_run_in_which_all_is_as_it_should_be(machine: Any, tmp_path: Path) -> None:
    rows = machine(good)
    assert [r["ok"] for r in rows] == [True, True] and machine.code == 0
    found = json.loads((tmp_path / "isolation.json").read_text())
    assert found["kernels"] == found["store_whole"] == found["right_after"] == 2 and found["hung_or_faulting"] == 1
    assert found["codes"] == {"worker/hung": 1, "lowering/launch-refused": 1}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("a", lambda job: RIGHT if job["kind"] == "right" else {"passed": True, "summary": "passed", "cases": []}),
        ("b", lambda job: RIGHT if job.get("name") != "a" else good(job)),
        ("a", lambda job: {**RIGHT, "passed": False} if job["kind"] == "right" else good(job)),
    ],
)
def test_a_run_sees_a_pass_or_a_right_kernel_that_no_longer_passes(machine: Any, name: str, answer: Answer) -> None:
    rows = {r["name"]: r for r in machine(answer)}
    assert rows[name]["ok"] is False and machine.code == 1


def test_the_right_kernel_is_a_check_on_the_host() -> None:
    found = right()
    assert found["kind"] == "check" and found["contract"] == "rmsnorm" and found["use_torch"] is False
    sha = found["launches"][0]["plans"][0]["cubin_sha256"]
    import base64

    assert hashlib.sha256(base64.b64decode(found["cubins"][sha])).hexdigest() == sha


def test_a_worker_that_dies_is_an_answer(machine: Any) -> None:
    def dies(job: dict[str, Any]) -> dict[str, Any]:
        if job["kind"] == "right":
            return RIGHT
        raise EngineError("worker/killed", "ended by SIGKILL")

    assert {r["code"] for r in machine(dies)} == {"worker/killed"} and machine.code == 1


def test_a_later_run_adds_to_the_first_and_withdrawn_kernels_stay_visible(machine: Any, tmp_path: Path) -> None:
    machine(lambda job: RIGHT if job["kind"] == "right" else {"passed": True, "summary": "passed", "cases": []})
    again, out = tmp_path / "again", tmp_path / "out2"
    again.mkdir()
    out.mkdir()
    jobs = [json.loads(line) for line in (tmp_path / "jobs" / "jobs.jsonl").read_text().splitlines()]
    named = [{**jobs[0], "name": "c"}, jobs[1]]
    (again / "jobs.jsonl").write_text("".join(json.dumps(j) + "\n" for j in named))
    (again / "meta.json").write_text(json.dumps({"commit": "d", "compiler": "n"}))
    first = [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]
    rows = [{**first[0], "name": "c", "code": "worker/hung"}, {**first[1], "code": "lowering/launch-refused"}]
    (out / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (out / "device.json").write_text((tmp_path / "out" / "device.json").read_text())
    runs = [(tmp_path / "jobs", tmp_path / "out"), (again, out)]
    (tmp_path / "out" / "device.json").write_text(json.dumps({"name": "GPU", "driver": "1"}))
    (out / "device.json").write_text(json.dumps({"name": "GPU", "driver": "1"}))
    assert gpu_faults.record(runs) == 0
    found = json.loads((tmp_path / "isolation.json").read_text())
    assert [r["name"] for r in found["withdrawn"]] == ["a"] and {r["name"]: r["run"] for r in found["rows"]} == {
        "b": 2,
        "c": 2,
    }
    assert [r["commit"] for r in found["runs"]] == ["c", "d"] and found["hung_or_faulting"] == 1
    (out / "device.json").write_text(json.dumps({"name": "another", "driver": "1"}))
    assert gpu_faults.record(runs) == 1
