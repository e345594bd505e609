"""check_cpu with interpreters that are right, or wrong in one way each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cake_ir.diagnostics import CakeError, error
from corpus.check import check_cpu
from corpus.contract import contracts
from tests.corpus.bound_fixture import divisible, gemm

GEMM = contracts()["gemm_bf16"]
Tensors = dict[str, np.ndarray]


def right(bound: Any, t: Tensors, scalars: dict, *, schedule: str = "greedy", sms: int = 4) -> Tensors:
    t["d"][...] = (t["a"].astype(np.float32) @ t["b"].astype(np.float32).T).astype(t["d"].dtype)
    return t


def check(interpret: Callable, **kw: Any) -> Any:
    kw.setdefault("shapes", "boundary")
    kw.setdefault("distributions", ("normal", "zeros"))
    return check_cpu(gemm(roles=("producer", "math")), GEMM, interpret=interpret, seed=1, secret=2, **kw)


def test_a_right_kernel_passes_under_every_schedule() -> None:
    seen: list[str] = []

    def spy(*a: Any, schedule: str, **kw: Any) -> Tensors:
        seen.append(schedule)
        return right(*a, schedule=schedule, **kw)

    r = check(spy, shapes=[{"M": 3, "N": 5, "K": 8}])
    assert r.passed and r.summary == "passed: 2 passed"
    assert seen == ["greedy", "greedy", "random:2", "starve:producer", "starve:math", "greedy", "greedy"]
    assert r.cases[0].schedules == ("greedy", "random:2", "starve:producer", "starve:math")
    assert r.secret == f"{2:032x}" and r.contract_digest == GEMM.digest


def wrong(how: str) -> Callable:
    def run(bound: Any, t: Tensors, scalars: dict, *, schedule: str, sms: int = 4) -> Tensors:
        d = t["d"].copy()
        right(bound, t, scalars)
        if how == "noop":
            t["d"][...] = d
        elif how == "skips a row":
            t["d"][-1] = d[-1]
        elif how == "nan":
            t["d"][0, 0] = np.nan
        elif how == "writes input":
            t["a"][0, 0] += 1
        elif how == "race" and schedule.startswith("starve:math"):
            t["d"][0, 0] = 77.0
        elif how == "deadlock":
            raise CakeError(error("sync/deadlock", "schedule", "nobody can step"))
        return t

    return run


@pytest.mark.parametrize(
    ("how", "verdict", "cause", "text"),
    [
        ("noop", "failed", "unwritten", "were never written"),
        ("skips a row", "failed", "unwritten", "first at [2, 0]"),
        ("nan", "failed", "nonfinite", "got nan"),
        ("writes input", "failed", "input-changed", "the input a was changed"),
        ("race", "failed", "mismatch", "under schedule starve:math"),
        ("deadlock", "error", "sync/deadlock", "nobody can step"),
    ],
)
def test_wrong_kernels_fail_with_their_cause(how: str, verdict: str, cause: str, text: str) -> None:
    r = check(wrong(how), shapes=[{"M": 3, "N": 5, "K": 8}], distributions=("normal",))
    assert not r.passed
    assert (r.cases[0].verdict, r.cases[0].cause) == (verdict, cause)
    assert text in r.cases[0].message and text in r.summary
    assert [d.rule for d in r.diagnostics] == (["sync/deadlock"] if how == "deadlock" else [])


def test_refused_shapes_are_skipped_and_nothing_run_is_no_pass() -> None:
    bound = gemm(where=divisible("Q", 16))
    r = check_cpu(bound, GEMM, [{"M": 1, "N": 1, "K": 8}], interpret=right, seed=0, secret=0)
    assert not r.passed and r.cases[0].verdict == "skipped" and "line 50" in r.summary


def test_check_stops_after_failures_and_reports_progress() -> None:
    steps: list[tuple[int, int, str]] = []
    r = check(wrong("noop"), stop_after=2, progress=lambda *a: steps.append(a))
    assert [c.verdict for c in r.cases[:3]] == ["failed", "failed", "skipped"]
    edges = [c for c in r.cases if c.edge]
    assert edges and len(r.cases) == len(GEMM.shapes["boundary"]) * 2 + len(edges) == len(steps)


def test_signature_mismatch_is_a_result_not_a_crash() -> None:
    r = check_cpu(gemm(), contracts()["softmax"], interpret=right)
    assert not r.passed and r.diagnostics and r.diagnostics[0].rule == "contract/signature-mismatch"


def test_shapes_that_would_take_too_long_are_skipped_with_numbers() -> None:
    import time

    def slow(*a: Any, **kw: Any) -> Tensors:
        time.sleep(0.02)
        return right(*a, **kw)

    steps: list[str] = []
    small, large = {"M": 3, "N": 5, "K": 8}, {"M": 8192, "N": 8192, "K": 4096}
    begin = time.monotonic()
    r = check(slow, shapes=[small, large], budget_s=60.0, progress=lambda at, total, what: steps.append(what))
    assert time.monotonic() - begin < 20, "the large shape was not run"
    assert [c.verdict for c in r.cases] == ["passed", "passed", "skipped", "skipped"]
    assert r.cases[2].cause == "too-large" and "at most 60 s" in r.cases[2].message
    assert r.passed and "2 skipped; skipped: too large: about" in r.summary
    assert steps[0].startswith("about ") and "of interpretation" in steps[0]
    assert not check(slow, shapes=[large], budget_s=60.0).passed


def test_durations_are_readable() -> None:
    from corpus.check import duration

    assert [duration(s) for s in (40, 540, 12_600)] == ["40 s", "9 min", "3.5 h"]


def test_a_quick_check_draws_what_the_contract_declares_beside_the_battery() -> None:
    r = check_cpu(gemm(), GEMM, [{"M": 3, "N": 5, "K": 8}], interpret=right, seed=1, secret=2)
    assert [c.distribution for c in r.cases] == [
        "normal",
        "small_int",
        "one_hot",
        "alternating",
        "nan_some",
        "inf_some",
    ]
    assert r.passed
