"""A GPU played over host memory at the boundary of the worker: rmsnorm is really checked, its timing is made up.

`PlayedGpu` stands in for `server.worker.run_worker`. Jobs are really prepared (bound, compiled, planned); check jobs run the
real gate over tests/corpus/fake_device.py with a numpy rmsnorm; bench jobs answer samples drawn from a seed, judged by
the real rule.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from cake_ir.diagnostics import CakeError
from corpus.check import CaseResult
from corpus.contract import contracts
from corpus.gpu_bench import rule
from corpus.gpu_buffers import Env
from corpus.gpu_check import run_check
from corpus.jobs import Bench, BenchShape, Job, Timing
from lowering.runtime import stats
from server import cpu_main
from server.errors import EngineError
from tests import compiled
from tests.corpus.fake_device import FakeDevice, at

BF16 = np.dtype(ml_dtypes.bfloat16)
DEVICE = {
    "index": 0, "name": "Test H200", "uuid": "1234", "compute_capability": [9, 0], "sms": 132, "driver": "13.0",
}  # fmt: skip


def rmsnorm(plan: Mapping[str, Any], pointers: Mapping[str, int]) -> None:
    """What the kernel does, from its launch plan: a CTA per row, D and eps as arguments."""
    rows, (d, eps) = plan["grid"], [a["value"] for a in plan["args"] if "value" in a]
    x, y = (at(pointers[n], 2 * rows * d).view(BF16).reshape(rows, d) for n in "xy")
    gain = at(pointers["gain"], 2 * d).view(BF16).astype(np.float32)
    wide = x.astype(np.float32)
    scale = 1 / np.sqrt(np.mean(wide * wide, axis=1, keepdims=True, dtype=np.float32) + np.float32(eps))
    y[...] = (wide * scale * gain).astype(BF16)


def timing(name: str, us: float, seed: int, **more: Any) -> Timing:
    source = random.Random(seed)
    samples = tuple(us * (1 + source.gauss(0, 0.002)) for _ in range(12))
    found = stats.summarise(samples)
    return Timing(
        name=name, median_us=found.median, mad_us=found.mad, cv=found.cv, samples_us=samples, batch=8, sm_mhz=1980.0, **more
    )  # fmt: skip


def bench(job: Job) -> Bench:
    """Samples of a candidate at 10 us and of a baseline at 12 us, judged by the rule."""
    rows = []
    for n, launch in enumerate(job.launches):
        for mode in job.modes:
            mine, theirs = timing("candidate", 10.0, n), timing("torch_rms_norm", 12.0, n + 100)
            c = stats.compare(theirs.name, theirs.samples_us, mine.samples_us, 1.0)
            theirs = theirs.model_copy(
                update={"ratio": c.ratio, "ratio_low": c.low, "ratio_high": c.high, "clock_ratio": 1.0, "comparison": c.verdict}
            )  # fmt: skip
            ok = CaseResult(shape=launch.shape, distribution="normal", verdict="passed", message="before timing: fine")
            rows.append(
                BenchShape(
                    shape=launch.shape, dtypes=launch.dtypes, mode=mode, method="graph", verdict=c.verdict, candidate=mine,
                    baselines=(theirs,), baseline=theirs.name, ratio=c.ratio, floor_us=5.0, checks=(ok,),
                    conditions={"notes": []},
                )
            )  # fmt: skip
    return Bench(
        contract=job.contract, contract_digest=job.contract_digest, kernel=job.kernel, passed=True, summary="fine", seed=0,
        secret="00", device=DEVICE, shapes=tuple(rows), rule=rule(), seconds=0.1,
    )  # fmt: skip


class PlayedGpu:
    """Replaces `run_worker`. `faults`: what the GPU worker ends with, by (kernel, kind); `answers`: of the health probe."""

    def __init__(self) -> None:
        self.faults: dict[tuple[str, str], EngineError] = {}
        self.body = rmsnorm
        self.answers = True
        self.jobs: list[Job] = []

    def __call__(self, module: str, job: dict[str, Any], **more: Any) -> dict[str, Any]:
        if module == "server.cpu_main":
            try:
                return cpu_main.prepare({**job, "more": {**job["more"], "cache_dir": str(compiled.cubins())}})
            except CakeError as exc:
                return {"diagnostic": exc.diagnostic.model_dump(mode="json")}
        if job["kind"] == "probe":
            if job.get("use_torch") is False and not self.answers:
                raise EngineError("worker/timeout", "no answer in 20 s")
            return {"kind": "probe", "device": DEVICE, "packages": {"torch": "2.11.0"}}
        made = Job.model_validate(job)
        self.jobs.append(made)
        fault = self.faults.get((made.kernel, made.kind))
        if fault is not None:
            raise fault
        if made.kind == "bench":
            return bench(made).model_dump(mode="json")
        env = Env(FakeDevice(), None, lambda cubin, plan, pointers: lambda stream: self.body(plan, pointers))
        return run_check(env, made, contracts()[made.contract], 5, lambda *a: None).model_dump(mode="json")
