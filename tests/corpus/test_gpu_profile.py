"""A profile job on a device in host memory, with a program in the place of ncu that answers with real pages."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from cake_ir.diagnostics import CakeError, error
from corpus import gpu_bench, gpu_profile, jobs
from corpus.contract import contracts
from corpus.gpu_profile import run_profile
from tests.corpus.fake_device import env_for
from tests.corpus.test_gpu_jobs import SHAPE, make, right

DATA = Path(__file__).parent / "data"
GEMM = contracts()["gemm_bf16"]

NCU = f"""#!{sys.executable}
import json, pathlib, sys
args = sys.argv[1:]
here = pathlib.Path(__file__).parent
if "--import" in args:
    page = args[args.index("--page") + 1]
    print(pathlib.Path({str(DATA)!r}, "ncu_gemm." + page + ".csv").read_text())
else:
    (here / "args.json").write_text(json.dumps(args))
    (here / "job.json").write_text(sys.stdin.readline())
    pathlib.Path(args[args.index("--export") + 1]).write_text("report")
"""
REFUSING = f"""#!{sys.executable}
print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters")
raise SystemExit(1)
"""
SLEEPING = f"""#!{sys.executable}
import time
time.sleep(60)
"""


def install(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    tool = folder / "ncu"
    tool.write_text(text)
    tool.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(tool))
    return tool


LAUNCH = jobs.Launch(shape={"M": 1}, plans=({"symbol": "k"},))


def test_counters_are_read_in_one_run_of_a_job_that_only_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, NCU, monkeypatch)
    found = gpu_profile.counters(make("profile", watch_stdin=True), LAUNCH)
    assert found["metrics"]["tensor"]["value"] == pytest.approx(90.01, abs=0.01)
    assert found["instructions"][0]["executed"] == 1584
    inner = jobs.parse(json.loads((tmp_path / "job.json").read_text()))
    assert inner.kind == "launch" and not inner.watch_stdin and inner.launches == (LAUNCH,)
    args = json.loads((tmp_path / "args.json").read_text())
    assert args[args.index("--kernel-name") + 1] == "k" and args.count("--section") == len(gpu_profile.SECTIONS)
    assert args[-3:] == [sys.executable, "-m", "corpus.gpu_main"]


def test_counters_that_cannot_be_had_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make("profile")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(gpu_profile, "_installed", lambda: None)
    assert "not installed" in gpu_profile.counters(job, LAUNCH)["unavailable"]
    tool = install(tmp_path, REFUSING, monkeypatch)
    assert "RestrictProfilingToAdminUsers" in gpu_profile.counters(job, LAUNCH)["unavailable"]
    install(tmp_path, SLEEPING, monkeypatch)
    monkeypatch.setattr(gpu_profile, "TIMEOUT_S", 0.2)
    assert "did not end within 0.2 s" in gpu_profile.counters(job, LAUNCH)["unavailable"]
    tool.chmod(0o644)
    assert "cannot be started" in gpu_profile.counters(job, LAUNCH)["unavailable"]
    install(tmp_path, NCU.replace('".csv"', '".log"'), monkeypatch)
    assert "too old" in gpu_profile.counters(job, LAUNCH)["unavailable"]


def profiled(
    monkeypatch: pytest.MonkeyPatch, shape: jobs.BenchShape, timeline: Any, read: dict[str, Any]
) -> jobs.Profile:
    def timed(env: Any, job: jobs.Job, contract: Any, secret: int, progress: Any) -> jobs.Bench:
        assert job.kind == "bench" and job.modes == ("warm",) and job.baselines == () and len(job.launches) == 1
        return jobs.Bench(
            contract=contract.name, contract_digest=contract.digest, kernel="k", passed=True, summary="", seed=0,
            secret="0", device={}, shapes=(shape,), rule="", seconds=0.0,
        )  # fmt: skip

    monkeypatch.setattr(gpu_bench, "run_bench", timed)
    monkeypatch.setattr(gpu_profile, "_timeline", timeline)
    monkeypatch.setattr(gpu_profile, "counters", lambda job, launch: read)
    return run_profile(env_for(right), make("profile"), GEMM, 5, lambda *a: None)


TIMED = jobs.BenchShape(
    shape=SHAPE, mode="warm", verdict="measured",
    candidate=jobs.Timing(name="candidate", median_us=10.0, mad_us=0.1, samples_us=(10.0,) * 5, batch=4),
)  # fmt: skip
WRONG = jobs.BenchShape(shape=SHAPE, mode="warm", verdict="error", message="illegal address")


def test_a_profile_holds_timing_timeline_and_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    got = profiled(monkeypatch, TIMED, lambda *a: {"kernel": "k"}, {"metrics": {}, "instructions": []})
    assert got.passed and got.shape == TIMED and got.summary == "10 us" and got.secret == f"{5:032x}"
    assert got.timeline == {"kernel": "k"} and got.counters["metrics"] == {}
    assert jobs.Profile.model_validate(json.loads(got.model_dump_json())) == got


def test_a_missing_part_does_not_cost_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*a: Any) -> dict[str, Any]:
        raise CakeError(error("lowering/out-of-memory", "hardware", "no room for the marks"))

    got = profiled(monkeypatch, TIMED, refuse, {"unavailable": "not installed"})
    assert got.passed and got.timeline == {"unavailable": "no room for the marks"}
    assert got.summary == "10 us; no timeline: no room for the marks; no counters: not installed"


def test_a_kernel_that_cannot_be_timed_is_not_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    got = profiled(monkeypatch, WRONG, lambda *a: pytest.fail("not to be taken"), {"metrics": {}})
    assert not got.passed and got.summary == "error: illegal address"
    assert "could not be timed" in got.timeline["unavailable"] and got.counters == got.timeline
