"""The GPU worker's answer when the device does not answer: real worker processes around a device that hangs, faults or refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cake_ir.diagnostics import CakeError, error
from corpus import jobs
from corpus.gpu_buffers import Env
from corpus.gpu_check import run_check
from corpus.gpu_watch import LEAST_S, Watch, limit_s
from lowering.runtime.patience import Patience
from tests.corpus.fake_device import FakeDevice
from tests.corpus.test_gpu_jobs import CUBIN, GEMM, PLAN, SHAPE, make, right

ROOT = Path(__file__).resolve().parents[2]

WORKER = """
    import sys, time
    sys.path.insert(0, {root!r})
    from corpus import gpu_buffers
    from lowering.runtime.patience import Patience
    from tests.corpus.fake_device import FakeDevice
    from tests.corpus.test_gpu_jobs import right
    from cake_ir.diagnostics import CakeError, error

    class Device(FakeDevice):
        def __init__(self):
            super().__init__()
            self.patience, self.launches = Patience(), 0

        def synchronize(self):
            with self.patience.waiting():
                if {how!r} == "hang" and self.launches == {at}:
                    time.sleep(600)
                if {how!r} == "fault" and self.launches == {at}:
                    self.break_context()
                super().synchronize()

    def open_env(index, use_torch=True):
        device = Device()
        def launch(pointers):
            def run(stream):
                device.launches += 1
                if {how!r} == "sleep":
                    time.sleep(600)
                right(device, pointers)
                device.patience.pending.append("gemm_x")
            return run
        return gpu_buffers.Env(device, None, lambda cubin, plan, pointers: launch(pointers))

    gpu_buffers.open_env = open_env
    from corpus import gpu_main
    import os
    os._exit(gpu_main.main())
"""


def worker(how: str, at: int, **more: Any) -> tuple[int, dict[str, Any], float]:
    """(exit code, last answer, seconds) of a worker whose device misbehaves at its launch number `at`."""
    job = make(distributions=("normal", "small_int"), secret="5", **more)
    script = textwrap.dedent(WORKER.format(root=str(ROOT), how=how, at=at))
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script], input=job.model_dump_json() + "\n", capture_output=True, text=True, timeout=60
    )
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    return done.returncode, json.loads(lines[-1]), time.monotonic() - begin


def test_a_hung_launch_is_answered_with_kernel_shape_case_and_launch() -> None:
    code, answer, seconds = worker("hang", 2, launch_timeout_s=0.3)
    found = answer["error"]
    assert code == jobs.EXIT_WATCHDOG and found["code"] == "worker/hung" and seconds < 30
    at = found["at"]
    assert at["kernel"] == "gemm_x" and at["shape"] == SHAPE and at["launch"] == 2 and at["job"] == "check"
    assert at["case"].startswith("M=17 N=24 K=16 normal") and at["limit_s"] == 0.3
    assert "launch 2 of M=17 N=24 K=16 normal" in found["message"] and "report_failure" in found["next"]


def test_a_job_past_its_time_says_where_it_was() -> None:
    code, answer, _ = worker("sleep", 1, timeout_s=1.5)
    assert code == jobs.EXIT_WATCHDOG and answer["error"]["code"] == "worker/timeout"
    assert answer["error"]["at"]["shape"] == SHAPE


def test_a_fault_is_a_verdict_and_ends_the_use_of_the_device() -> None:
    code, answer, _ = worker("fault", 1)
    cases = answer["result"]["cases"]
    assert code == jobs.EXIT_OK and answer["result"]["passed"] is False
    assert cases[0]["cause"] == "lowering/device-fault" and cases[1]["verdict"] == "skipped"


def test_the_limit_grows_with_the_work_and_stays_within_the_job() -> None:
    def job(m: int, **more: Any) -> jobs.Job:
        return jobs.job(
            "check", GEMM, [jobs.Launch(shape={"M": m, "N": 8192, "K": 8192}, plans=(PLAN,))], [CUBIN], **more
        )

    assert limit_s(job(1), GEMM) == LEAST_S
    assert LEAST_S < limit_s(job(1 << 17), GEMM) < 540
    assert limit_s(job(1 << 17, timeout_s=10.0), GEMM) == 10.0
    assert limit_s(job(1 << 17, launch_timeout_s=2.5), GEMM) == 2.5


def test_a_hang_without_a_launch_of_ours_is_not_laid_to_the_kernel() -> None:
    watch = Watch(make())
    watch.device = FakeDevice()
    watch.device.patience = Patience()
    said = watch.hung(3)["error"]
    assert "no launch of the kernel was pending" in said["message"] and said["at"]["launch"] is None


def test_the_longest_shape_that_a_case_names_is_the_shape() -> None:
    shapes = [{"M": 1, "N": 8, "K": 8}, {"M": 1, "N": 8, "K": 80}]
    watch = Watch(jobs.job("check", GEMM, [jobs.Launch(shape=s, plans=(PLAN,)) for s in shapes], [CUBIN]))
    watch.begin("timing M=1 N=8 K=80 warm")
    assert watch.at()["shape"] == shapes[1]
    watch.begin("M=1 N=8 K=8 normal")
    assert watch.at()["shape"] == shapes[0]


class StaleDevice(FakeDevice):
    """Poisoning does nothing: memory keeps the right results of an earlier launch."""

    def alloc(self, nbytes: int, **more: Any) -> Any:
        buffer = super().alloc(nbytes, **more)
        buffer.poison = lambda *a, **k: None  # type: ignore[method-assign]
        return buffer


@pytest.mark.parametrize("refused_from", [1, 2, 3])
def test_a_refused_launch_never_passes_although_stale_memory_is_right(refused_from: int) -> None:
    device, calls = StaleDevice(), []

    def prepare(cubin: bytes, plan: Mapping[str, Any], pointers: Mapping[str, int]) -> Any:
        def run(stream: int) -> None:
            calls.append(1)
            right(device, pointers)  # what an earlier launch left behind
            if len(calls) >= refused_from:
                raise CakeError(error("lowering/launch-refused", "hardware", "launch k: CUDA_ERROR_INVALID_VALUE"))

        return run

    got = run_check(Env(device, None, prepare), make(distributions=("normal",)), GEMM, 5, lambda *a: None)
    assert not got.passed and got.cases[0].verdict == "error" and got.cases[0].cause == "lowering/launch-refused"
