"""Every cheat on the machine without a GPU: real evaluation and runtime, Python bodies, time on a counter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from corpus import jobs
from corpus.contract import Contract, Shape, contracts
from corpus.gpu_bench import run_bench
from corpus.gpu_buffers import Env
from corpus.gpu_check import run_check
from tests.adversarial.cases import GEMM, KMEANS, LARGE, RMS, ROWS, SOAK, SOFTMAX, Cheat, outcome
from tests.adversarial.fixtures import plans
from tests.adversarial.machine import FULL_US, cubin, machine

TIMED: dict[str, Shape] = {
    GEMM: {"M": 17, "N": 24, "K": 16},
    KMEANS: {"B": 1, "N": 40, "C": 9, "D": 16},
    RMS: {"M": 5, "D": 40},
    SOFTMAX: {"M": 5, "N": 36},
}
QUICK = ("normal", "small_int")


@pytest.fixture
def env() -> Iterator[Env]:
    with machine() as found:
        yield found


def job(cheat: Cheat, contract: Contract, **more: Any) -> jobs.Job:
    """The job that the GPU would get, at sizes that Python can run."""
    image, sha = cubin(cheat.source, contract)
    shapes = [TIMED[contract.name]] if cheat.kind == "bench" else contract.shapes["boundary"]
    made = [jobs.Launch(shape=dict(s), plans=plans(contract, s, sha, cheat.refused)) for s in shapes]
    if cheat.kind == "check":
        special = [d for d in ("masked_rows", "nan_some", "inf_some") if d in contract.distributions]
        more = {"distributions": (*QUICK, *special), "stop_after": 1, "soak": 0, **more}
        if cheat.gate == SOAK:
            more |= {**cheat.job, "soak": 300}
    elif cheat.shapes is LARGE:
        more = {"peak_flops": contract.flops(shapes[0]) / (FULL_US * 1e-6), **more}
    return jobs.job(cheat.kind, contract, made, [image], kernel=cheat.name, seed=1, samples=16, baselines=(), warmup_ms=4.0,
                    sample_ms=FULL_US * 4e-3, **more)  # fmt: skip


def run(env: Env, cheat: Cheat, contract: Contract, **more: Any) -> Any:
    """The worker's answer."""
    asked = job(cheat, contract, **more)
    run_job: Any = run_check if asked.kind == "check" else run_bench
    return {"result": run_job(env, asked, contract, 7, lambda *a: None).model_dump(mode="json")}


@pytest.mark.parametrize(
    ("cheat", "contract"),
    [pytest.param(c, of, id=f"{c.name}-{of}") for c in ROWS if c.cpu for of in c.contracts],
)
def test_each_gets_its_verdict(env: Env, cheat: Cheat, contract: str) -> None:
    verdict, cause, message = outcome(run(env, cheat, contracts()[contract]))
    assert cheat.caught(contract, verdict, cause, message), (verdict, cause, message)
