"""GPU work up to the device: jobs are really prepared, in this process but for one; only the device's answers are played by the test.

No GPU is needed. What the device itself does is tested where there is one (tests/lowering, corpus/results).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from corpus.jobs import Bench, BenchShape, BenchVerdict, Job, Timing
from server.engine import Engine
from server.errors import EngineError, Missing
from server.programs import Ref
from server.worker import WorkerDied, run_worker
from tests import compiled
from tests.server.conftest import KMEANS, ROOT, play_gpu

DEVICE = {"name": "Test device", "sms": 4, "driver": "13.0", "uuid": "00", "compute_capability": [9, 0]}
SHAPE = {"B": 1, "N": 130, "C": 200, "D": 64}


class Played:
    """Answers GPU jobs; keeps the prepared job. `cpu`: who answers the others."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.cpu = compiled.worker
        self.fault: EngineError | None = None
        self.verdict: BenchVerdict = "faster"

    def __call__(self, module: str, job: dict[str, Any], **more: Any) -> dict[str, Any]:
        if module != "corpus.gpu_main":
            return self.cpu(module, job, **more)
        if job["kind"] == "probe":
            return {"kind": "probe", "device": DEVICE}
        self.jobs.append(Job.model_validate(job))
        if self.fault is not None:
            raise self.fault
        if job["kind"] == "check":
            return {
                "passed": True,
                "on": "gpu",
                "summary": "passed: 4 passed",
                "soak": "64 launches, none differed",
                "cases": [],
                "diagnostics": [],
                "seed": 0,
            }
        return self.bench(job).model_dump(mode="json")

    def bench(self, job: dict[str, Any]) -> Bench:
        def timing(name: str, us: float) -> Timing:
            return Timing(name=name, median_us=us, mad_us=0.1, samples_us=(us,) * 5, batch=10)

        usable = self.verdict == "faster"
        rows = tuple(
            BenchShape(
                shape=launch["shape"], mode=mode, verdict=self.verdict, candidate=timing("candidate", 100.0), baseline="flash-kmeans",
                baselines=(timing("flash-kmeans", 120.0),), ratio=1.2, floor_us=50.0, flops_per_s=5e14, bytes_per_s=1e12,
            )
            for launch in job["launches"] for mode in job["modes"]
        )  # fmt: skip
        return Bench(
            contract=job["contract"], contract_digest=job["contract_digest"], kernel=job["kernel"], passed=usable,
            summary="100 us, 1.200 x flash-kmeans", seed=0, secret="00", device=DEVICE, shapes=rows, rule="by intervals", seconds=1.0,
        )  # fmt: skip


@pytest.fixture
def played(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    fake = Played()
    play_gpu(engine, monkeypatch, fake)
    yield fake


def test_a_bench_is_prepared_timed_and_stored_once(
    engine: Engine, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = engine.evaluate.bench(Ref(text=KMEANS), "kmeans_assign", [SHAPE])
    assert first.status == "passed" and first.data["device"] == DEVICE and first.data["reused"] is False
    row = first.data["shapes"][0]
    assert (row["time_us"], row["baseline"], row["baseline_us"], row["ratio"]) == (100.0, "flash-kmeans", 120.0, 1.2)
    assert {r["mode"] for r in first.data["shapes"]} == {"warm", "cold"}
    job = played.jobs[0]
    plan = job.launches[0].plans[0]
    assert job.kind == "bench" and job.target == "sm_90a" and plan["grid"] == 2 and plan["cubin_sha256"] in job.cubins
    assert job.variant_id == first.ids["variant_id"]
    again = engine.evaluate.bench(Ref(text=KMEANS), "kmeans_assign", [SHAPE])
    assert again.data["reused"] is True and len(played.jobs) == 1
    assert "predicted_us" not in row, "nothing is predicted for a device that nobody measured"
    monkeypatch.setitem(DEVICE, "name", "NVIDIA H200")
    known = engine.evaluate.bench(Ref(text=KMEANS), "kmeans_assign", [SHAPE], fresh=True)
    row = known.data["shapes"][0]
    assert len(played.jobs) == 2 and row["outside"] and row["predicted_interval"][1] < 100
    assert "2 times outside what the model predicted" in known.summary
    assert f"report_failure(symptom='mispredicted_time', measurement_id={known.ids['measurement_id']!r}" in known.next


@pytest.mark.parametrize(
    ("verdict", "next", "again"),
    [("invalid", "must not be used", 2), ("error", "driver's words", 2), ("incorrect", "repair", 1)],
)
def test_a_time_that_must_not_be_used_fails_and_is_taken_again(
    engine: Engine, played: Played, verdict: BenchVerdict, next: str, again: int
) -> None:
    played.verdict = verdict
    for _ in range(2):
        got = engine.evaluate.bench(Ref(text=KMEANS), "kmeans_assign", [SHAPE])
        assert got.status == "failed" and next in got.next and got.data["shapes"][0]["verdict"] == verdict
    assert len(played.jobs) == again, "only a right or wrong kernel is evidence; a bad moment of the machine is none"


def test_the_whole_way_runs_every_step(engine: Engine, played: Played) -> None:
    """With the CPU worker in processes of its own, as it is used."""
    played.cpu = run_worker
    got = engine.evaluate.compile_and_bench(Ref(text=KMEANS), "kmeans_assign", [SHAPE])
    assert got.status == "passed" and {"check_cpu", "check_gpu", "bench"} <= set(got.data)
    assert [j.kind for j in played.jobs] == ["check", "bench"]


@pytest.mark.parametrize(
    ("fault", "symptom"),
    [
        (WorkerDied("worker/timeout", "ended after 540 s", "log", "x"), "hang"),
        (WorkerDied("worker/killed", "ended by SIGKILL", "log", "x"), "crash"),
        (EngineError("lowering/device-fault", "illegal address", "x"), "crash"),
        (EngineError("job/bad-contract", "no such contract", "x"), None),
    ],
)
def test_a_fault_on_an_accepted_kernel_is_evidence(
    engine: Engine, played: Played, fault: EngineError, symptom: str | None
) -> None:
    played.fault = fault
    for _ in range(2):
        with pytest.raises(EngineError) as caught:
            engine.evaluate.check(Ref(text=KMEANS), "kmeans_assign", [SHAPE], on="gpu", fresh=True)
    assert caught.value.code == fault.code
    known = engine.store.failures()
    if symptom is None:
        assert known == []
    else:
        assert [(f["symptom"], f["owner"], f["count"]) for f in known] == [(symptom, "verifier", 2)]
        assert known[0]["failure_id"] in caught.value.next


def test_a_device_that_does_not_answer_is_named(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.catalog, "gpu_indices", lambda: [0])
    with pytest.raises(Missing) as caught:
        engine.evaluate.bench(Ref(text=KMEANS), "kmeans_assign", [SHAPE])
    assert caught.value.code == "gpu/unusable"


def test_a_program_for_several_targets_runs_as_the_one_of_the_device(engine: Engine, played: Played) -> None:
    text = (ROOT / "corpus/kernels/rmsnorm.cake").read_text()
    got = engine.evaluate.check(Ref(text=text), "rmsnorm", [{"M": 3, "D": 1024}], on="gpu")
    assert got.status == "passed" and played.jobs[0].target == "sm_90a"
    assert got.data["soak"] == "64 launches, none differed"


def test_a_target_that_the_device_does_not_run_is_named(engine: Engine, played: Played) -> None:
    text = (ROOT / "corpus/kernels/rmsnorm.cake").read_text()
    with pytest.raises(Missing) as caught:
        engine.evaluate.check(Ref(text=text, target="sm_80"), "rmsnorm", [{"M": 3, "D": 1024}], on="gpu")
    assert caught.value.code == "gpu/other-target" and "9.0" in caught.value.message
    whole = engine.evaluate.compile_and_bench(Ref(text=text, target="sm_80"), "rmsnorm", [{"M": 3, "D": 1024}])
    assert whole.status == "passed" and "does not run sm_80" in whole.data["bench"]["reason"] and not played.jobs
