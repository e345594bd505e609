"""GPU evaluation over a device in host memory, and the worker's protocol where there is no GPU."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cake_ir.diagnostics import CakeError
from corpus import jobs
from corpus.contract import contracts
from corpus.gpu_check import run_check
from tests.corpus.fake_device import FakeDevice, at, env_for

GEMM = contracts()["gemm_bf16"]
SHAPE = {"M": 17, "N": 24, "K": 16}
CUBIN = b"not a real cubin"
SHA = hashlib.sha256(CUBIN).hexdigest()
PLAN = {
    "symbol": "k", "cubin_sha256": SHA, "grid": 1, "cluster": 1, "threads": 128, "smem_bytes": 0, "pdl": False,
    "cooperative": False, "args": [{"kind": "tensor", "name": t} for t in "abd"], "tensor_maps": {},
}  # fmt: skip
BF16 = np.dtype(ml_dtypes.bfloat16)


def tensors(pointers: Mapping[str, int]) -> dict[str, np.ndarray]:
    m, n, k = SHAPE["M"], SHAPE["N"], SHAPE["K"]
    sizes = {"a": (m, k), "b": (n, k), "d": (m, n)}
    return {t: at(pointers[t], 2 * r * c).view(BF16).reshape(r, c) for t, (r, c) in sizes.items()}


def right(device: FakeDevice, pointers: Mapping[str, int]) -> None:
    t = tensors(pointers)
    t["d"][...] = (t["a"].astype(np.float32) @ t["b"].astype(np.float32).T).astype(BF16)


def make(kind: str = "check", **more: Any) -> jobs.Job:
    launch = jobs.Launch(shape=SHAPE, plans=(PLAN,))
    return jobs.job(kind, GEMM, [launch], [CUBIN], kernel="k", **more)  # type: ignore[arg-type]


def check(body: Any, **more: Any) -> Any:
    job = make(distributions=("normal", "small_int"), **more)
    return run_check(env_for(body), job, GEMM, 5, lambda *a: None)


def test_a_right_kernel_passes_and_the_judge_is_tried_on_the_device() -> None:
    r = check(right)
    assert r.passed and r.on == "gpu" and r.summary == "passed: 2 passed"
    assert "on the device it rejects" in r.judge_selftest


def spoil_output(d: FakeDevice, p: Mapping[str, int]) -> None:
    right(d, p)
    tensors(p)["d"][3, 4] = 99


def spoil_nothing(d: FakeDevice, p: Mapping[str, int]) -> None:
    return None


def overrun(d: FakeDevice, p: Mapping[str, int]) -> None:
    right(d, p)
    at(p["d"] + 2 * 17 * 24 + 32, 16)[:] = 1


def underrun(d: FakeDevice, p: Mapping[str, int]) -> None:
    right(d, p)
    at(p["d"] - 4, 4)[:] = 1


def eat_input(d: FakeDevice, p: Mapping[str, int]) -> None:
    right(d, p)
    tensors(p)["b"][0, 0] += 1


def forget_row(d: FakeDevice, p: Mapping[str, int]) -> None:
    kept = tensors(p)["d"][16].copy()
    right(d, p)
    tensors(p)["d"][16] = kept


CALLS = {"n": 0}


def flicker(d: FakeDevice, p: Mapping[str, int]) -> None:
    right(d, p)
    CALLS["n"] += 1
    if CALLS["n"] % 3 == 0:
        tensors(p)["d"].view(np.uint16)[0, 0] ^= 1


@pytest.mark.parametrize(
    ("body", "cause", "text"),
    [
        (spoil_output, "mismatch", "d[3, 4]"),
        (spoil_nothing, "unwritten", "408 of 408 elements of d were never written (dim 0: all 17; dim 1: all 24)"),
        (overrun, "out-of-bounds", "16 bytes outside d were written, from 32 bytes behind its end"),
        (underrun, "out-of-bounds", "before its start"),
        (eat_input, "input-changed", "the input b was changed"),
        (forget_row, "unwritten", "first at [16, 0]"),
        (flicker, "repeat", "run 3 gives another result: d[0, 0]"),
    ],
)
def test_faulty_kernels_fail_with_their_cause(body: Any, cause: str, text: str) -> None:
    CALLS["n"] = 0
    r = check(body)
    assert not r.passed and r.cases[0].cause == cause, r.cases[0]
    assert text in r.cases[0].message


def test_a_device_fault_is_the_verdict_and_ends_the_job() -> None:
    r = check(lambda device, pointers: device.break_context())
    assert [c.verdict for c in r.cases] == ["error", "skipped"]
    assert r.cases[0].cause == "lowering/device-fault" and "did not survive" in r.cases[1].message


def test_buffers_are_freed_whatever_happens() -> None:
    env = env_for(spoil_output)
    run_check(env, make(distributions=("normal",)), GEMM, 5, lambda *a: None)
    assert env.device.buffers and all(b.freed for b in env.device.buffers)


# ---- the job protocol ----------------------------------------------------------------------------------------------


def worker(payload: bytes, **kw: Any) -> tuple[int, list[dict[str, Any]]]:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "corpus.gpu_main"], input=payload, capture_output=True, cwd=root, timeout=60, check=False
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("payload", "code", "rule", "text"),
    [
        (b"", jobs.EXIT_BAD_JOB, "job/bad", "no JSON object"),
        (b'{"a":' * 100_000, jobs.EXIT_BAD_JOB, "job/bad", "no JSON object"),
        (b"[1]\n", jobs.EXIT_BAD_JOB, "job/bad", "job"),
        (b'{"kind": "run"}\n', jobs.EXIT_BAD_JOB, "job/bad", "kind"),
        (b'{"kind": "check", "contract": "nope"}\n', jobs.EXIT_BAD_JOB, "job/bad-contract", "no contract 'nope'"),
        (b'{"kind": "check", "contract": "softmax"}\n', jobs.EXIT_BAD_JOB, "job/bad", "at least one shape"),
    ],
)
def test_bad_jobs_get_a_coded_answer(payload: bytes, code: int, rule: str, text: str) -> None:
    got, lines = worker(payload)
    assert got == code and len(lines) == 1
    assert lines[0]["error"]["code"] == rule and text in lines[0]["error"]["message"]


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="this machine has a GPU")
def test_without_a_gpu_the_answer_says_so() -> None:
    got, lines = worker(json.dumps(make().model_dump(mode="json")).encode() + b"\n")
    assert got == jobs.EXIT_NO_GPU
    assert lines[-1]["error"]["code"] == "lowering/no-gpu"


def test_jobs_verify_contract_and_cubin() -> None:
    assert make().find_contract() is not None and make().cubin(SHA) == CUBIN
    with pytest.raises(CakeError, match="job/bad-contract"):
        make().model_copy(update={"contract_digest": "ct_0"}).find_contract()
    with pytest.raises(CakeError, match="carries no cubin"):
        make().cubin("0" * 64)
    with pytest.raises(CakeError, match="do not have that SHA-256"):
        make().model_copy(update={"cubins": {"0" * 64: "AAAA"}}).cubin("0" * 64)
    again = jobs.parse(json.loads(make().model_dump_json()))
    assert again == make()
