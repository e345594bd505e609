"""What an answer says after a hang or a fault: health, where the roles stood, what the order reading sees. The device is played."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from server import diagnosis, gpu_work, worker
from server.diagnosis import Case, diagnose, fault_in, health, stood
from server.engine import Engine
from server.errors import EngineError, Missing
from server.programs import Ref
from server.worker import JobFault
from tests import compiled
from tests.server.conftest import BROKEN, KMEANS, LEFT_OUT_AT
from tests.server.test_gpu_path import DEVICE, SHAPE

ROLES = [
    {"role": "producer", "instances": 2, "ctas": 2, "which": [0], "ended": False, "line": 34, "text": "wait(free[n - STAGES])",
     "barrier": "free", "stage": "n - STAGES", "passed": [5, 6]},
    {"role": "math", "instances": 4, "ctas": 2, "which": [0, 1], "ended": False, "line": 39, "text": "wait(full[n])",
     "barrier": "full", "stage": "n"},
    {"role": "idle", "instances": 2, "ctas": 2, "which": [0], "ended": True},
]  # fmt: skip
NEEDS = [
    {
        "line": 34,
        "barrier": "free",
        "text": "wait on free (line 34, producer) needs 4 arrivals by arrive of math (line 45)",
    }
]
HUNG = JobFault(
    "worker/hung", "k did not end: launch 2 of B=1 normal, limit 5 s", "report it", {"shape": SHAPE, "launch": 2}
)


class Gpu:
    """Answers jobs by kind; an answer that is an exception is raised."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {"probe": {"kind": "probe", "device": DEVICE, "healthy": True}, **answers}
        self.asked: list[dict[str, Any]] = []

    def __call__(self, job: dict[str, Any], seconds: float) -> dict[str, Any]:
        self.asked.append(job)
        answer = self.answers[job["kind"]]
        answer = answer.pop(0) if isinstance(answer, list) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kinds(self) -> list[str]:
        return [j["kind"] for j in self.asked]


def where(roles: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "kind": "where",
        "ended": False,
        "moving": False,
        "message": "has not ended within 2 s",
        "roles": roles,
        **more,
    }


def test_each_standing_role_is_named_with_what_its_wait_needs() -> None:
    words, lines = stood(where(ROLES), NEEDS)
    assert words == [
        "producer stands at line 34, wait(free[n - STAGES]) in 2 CTAs, the wait's round 5 to 6, which needs 4 arrivals by "
        "arrive of math (line 45)",
        "math 0..1 stands at line 39, wait(full[n]) in 2 CTAs",
    ]
    assert lines == [34, 39]


def case(gpu: Gpu, asked: bool = True) -> Case:
    return Case(
        0, {"text": "t", "kernel": "k"}, 132, (lambda shape: {"kind": "where", "shapes": [shape]}) if asked else None
    )


def test_a_hang_is_asked_about_from_all_three_sides() -> None:
    gpu, kept = Gpu(where=where(ROLES)), []
    cpu = Gpu(
        stand={"blocks": True, "text": "the order reading blocks as well, line 34", "stuck": ["a"], "needs": NEEDS}
    )
    got = diagnose("worker/hung", HUNG.at, case(gpu), gpu, cpu, kept.append)
    assert gpu.kinds() == ["probe", "where", "probe"] and kept == ["", ""]
    assert cpu.asked[0]["shape"] == SHAPE and cpu.asked[0]["sms"] == 132
    assert got.answers and got.health == "GPU 0 answers again" and len(got.roles) == 2
    told = got.to_json()
    assert (
        told["model"].startswith("the order reading blocks")
        and told["stood"] == got.roles
        and told["lines"] == [34, 39]
    )
    assert len(json.dumps(told)) < 3000 and "producer stands at line 34" in got.words()


def test_without_an_instrumented_kernel_the_order_reading_speaks_alone() -> None:
    cpu = Gpu(stand={"blocks": False, "text": "the model sees no block: a rule is missing", "stuck": [], "needs": []})
    for gpu, given in (
        (Gpu(), case(Gpu(), asked=False)),
        (Gpu(where=EngineError("job/bad", "no timeline")), case(Gpu())),
    ):
        got = diagnose("worker/hung", HUNG.at, given, gpu, cpu, lambda text: None)
        assert got.roles == [] and "a rule is missing" in got.words()
    assert "no timeline" in got.to_json()["device_says"]


def test_a_fault_is_probed_but_not_launched_again() -> None:
    gpu = Gpu()
    got = diagnose("lowering/device-fault", {}, case(gpu), gpu, Gpu(), lambda text: None)
    assert gpu.kinds() == ["probe"] and got.answers


def test_a_device_that_does_not_answer_is_kept_in_mind_and_not_launched_on() -> None:
    gpu, kept = Gpu(probe=EngineError("worker/timeout", "no answer in 60 s")), []
    got = diagnose("worker/hung", {"shape": SHAPE}, case(gpu), gpu, Gpu(stand=EngineError("x/y", "z")), kept.append)
    assert not got.answers and kept == ["GPU 0 does not answer: no answer in 60 s"] and gpu.kinds() == ["probe"]


def test_a_device_whose_memory_lies_does_not_answer() -> None:
    assert health(0, Gpu(probe={"kind": "probe", "device": DEVICE, "healthy": False}))[0] is False


def test_faults_are_found_inside_verdicts() -> None:
    good = {"verdict": "passed", "cause": "", "shape": {"M": 1}}
    bad = {
        "verdict": "error",
        "cause": "lowering/device-fault",
        "shape": {"M": 2},
        "distribution": "normal",
        "message": "x",
    }
    assert (
        fault_in({"cases": [good]}) is None and fault_in({"shapes": [{"verdict": "measured", "message": ""}]}) is None
    )
    found = fault_in({"cases": [good, bad], "kernel": "k"})
    assert found is not None and found.code == "lowering/device-fault" and found.at["shape"] == {"M": 2}
    row = {"verdict": "error", "message": "error[lowering/device-fault]: boom", "shape": {"M": 3}, "mode": "cold"}
    found = fault_in({"shapes": [row], "kind": "bench"})
    assert found is not None and found.at == {"job": "bench", "kernel": "", "shape": {"M": 3}, "case": "cold"}


def test_doctor_says_whether_a_gpu_answers_and_who_has_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def row() -> dict[str, Any]:
        return next(c for c in engine.catalog.doctor().data["checks"] if c["check"] == "gpu 0")

    monkeypatch.setattr(engine.catalog, "gpu_indices", lambda: [0])
    monkeypatch.setattr(worker.tempfile, "gettempdir", lambda: str(tmp_path))
    alive = {"kind": "probe", "device": DEVICE, "healthy": True}
    answers: list[Any] = [EngineError("worker/timeout", "no answer in 60 s"), alive, alive]
    gpu = Gpu(probe=answers)
    monkeypatch.setattr(diagnosis, "run_worker", lambda module, job, timeout_s, **more: gpu(job, timeout_s))
    lost = row()
    assert (
        lost["ok"] is False and "does not answer: no answer in 60 s" in lost["found"] and "nvidia-smi" in lost["remedy"]
    )
    assert row()["found"].startswith("GPU 0 answers again; before: GPU 0 does not answer")
    assert row()["found"] == "GPU 0 answers, nobody has its lock"
    with worker.gpu_lock(0, worker.Control()):
        taken = row()
    assert taken["ok"] and f"taken by process {os.getpid()}" in taken["found"]


# ---- through the engine ------------------------------------------------------------------------------------------------


class Machine:
    """A GPU behind the engine: the job's answer is given, the CPU worker's is made in this process."""

    def __init__(self, fault: Exception | dict[str, Any], **answers: Any) -> None:
        self.gpu = Gpu(check=fault, **answers)

    def __call__(self, module: str, job: dict[str, Any], *, timeout_s: float, **more: Any) -> dict[str, Any]:
        if module == "server.cpu_main":
            return compiled.worker(module, job, timeout_s=timeout_s, **more)
        return self.gpu(job, timeout_s)


def played(engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, machine: Machine) -> Machine:
    monkeypatch.setattr(gpu_work, "run_worker", machine)
    monkeypatch.setattr(engine.catalog, "gpu_indices", lambda: [0])
    monkeypatch.setattr(worker.tempfile, "gettempdir", lambda: str(tmp_path))
    return machine


def test_a_hung_check_is_answered_with_where_it_stood_and_kept(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    machine = played(engine, monkeypatch, tmp_path, Machine(HUNG, where=where(ROLES)))
    with pytest.raises(EngineError) as caught:
        engine.evaluate.check(Ref(text=KMEANS), "kmeans_assign", [SHAPE], on="gpu", fresh=True)
    assert machine.gpu.kinds() == ["probe", "check", "probe", "where", "probe"]
    asked = machine.gpu.asked[3]
    assert asked["launches"][0]["timeline"] and asked["use_torch"] is False
    got = caught.value.result()
    assert got.code == "worker/hung" and got.ids["failure_id"] in got.next
    assert "GPU 0 answers again" in got.summary and "producer stands at line 34" in got.summary
    assert got.data["model"].endswith("so the model sees no block: a rule is missing")
    assert len(got.model_dump_json()) < 4000
    kept = engine.store.failure(got.ids["failure_id"])
    assert kept is not None and kept["symptom"] == "hang" and kept["record"]["standing"] == got.data


def test_a_fault_inside_a_check_is_an_error_and_no_verdict_is_kept(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    case = {"verdict": "error", "cause": "lowering/device-fault", "shape": SHAPE, "distribution": "normal",
            "message": "run the kernel: CUDA_ERROR_ILLEGAL_ADDRESS"}  # fmt: skip
    played(engine, monkeypatch, tmp_path, Machine({"passed": False, "summary": "", "cases": [case], "kernel": "k"}))
    with pytest.raises(EngineError) as caught:
        engine.evaluate.check(Ref(text=KMEANS), "kmeans_assign", [SHAPE], on="gpu", fresh=True)
    got = caught.value.result()
    assert got.code == "lowering/device-fault" and "ILLEGAL_ADDRESS" in got.summary
    assert got.data["at"]["shape"] == SHAPE
    assert engine.store.measurements(got.ids["variant_id"], kind="check-gpu") == []


def test_a_lost_device_is_asked_again_before_the_next_job_is_trusted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    alive = {"kind": "probe", "device": DEVICE, "healthy": True}
    lost = EngineError("worker/timeout", "no answer in 60 s")
    machine = played(engine, monkeypatch, tmp_path, Machine(HUNG, probe=[alive, lost, lost, alive]))
    run = lambda: engine.evaluate.check(Ref(text=KMEANS), "kmeans_assign", [SHAPE], on="gpu", fresh=True)  # noqa: E731
    with pytest.raises(EngineError) as caught:
        run()
    assert "GPU 0 does not answer" in caught.value.message
    assert worker.gpu_state(0)["problem"].startswith("GPU 0 does not answer")
    with pytest.raises(Missing) as refused:
        run()
    assert refused.value.code == "gpu/unusable" and machine.gpu.kinds().count("check") == 1
    good = {"passed": True, "on": "gpu", "summary": "passed: 4 passed", "cases": [], "diagnostics": [], "seed": 0}
    machine.gpu.answers["check"] = good
    assert run().status == "passed" and worker.gpu_state(0)["problem"] == ""


def test_the_order_reading_runs_the_very_shape_that_hung() -> None:
    job = {"kind": "stand", "text": BROKEN, "bindings": {}, "target": "sm_90a", "kernel": "kmeans_assign",
           "contract": "kmeans_assign", "contracts_dir": None, "sms": 4}  # fmt: skip

    def ask(c: int) -> dict[str, Any]:
        asked = {**job, "shape": {**SHAPE, "C": c}}
        return compiled.worker("server.cpu_main", asked, timeout_s=60, control=worker.Control())

    short, long = ask(200), ask(4000)  # without a wait for a free slot, a ring that never wraps is still right
    assert short["blocks"] is False and short["text"].endswith("a rule is missing")
    assert long["blocks"] is False and long["text"].startswith("the order reading does not block, but finds ")
    assert LEFT_OUT_AT not in [n["line"] for n in short["needs"]] and short["needs"]
