"""Many launches of one small shape: what is compared, what is said, and when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from corpus import gpu_soak
from corpus.contract import Contract
from corpus.gpu_check import run_check
from tests.corpus.fake_device import FakeDevice, at, env_for
from tests.corpus.test_gpu_jobs import GEMM, make, right, tensors


def checked(body: Any, contract: Contract = GEMM, **more: Any) -> Any:
    """The result of a check of one shape and distribution."""
    asked = make(**{"distributions": ("normal",), "soak": 64, **more})
    return run_check(env_for(body), asked, contract, 5, lambda *a: None)


class Nth:
    """Right, but for what `spoil` does in some launches."""

    def __init__(self, wrong: Any, spoil: Any) -> None:
        self.wrong, self.spoil, self.count = wrong, spoil, 0

    def __call__(self, device: FakeDevice, pointers: Mapping[str, int]) -> None:
        self.count += 1
        right(device, pointers)
        if self.wrong(self.count):
            self.spoil(pointers)


def flip(pointers: Mapping[str, int]) -> None:
    at(pointers["d"], 1)[0] ^= 1


def test_launches_that_agree_bound_the_error_rate() -> None:
    body = Nth(lambda n: False, flip)
    result = checked(body)
    assert result.passed and "64 launches of" in result.soak and "none differed" in result.soak
    assert "an error in more than 4.7 % of launches would have been seen with 95 %" in result.soak  # 3 / 64
    assert body.count >= 64


def test_one_wrong_launch_fails_the_check_and_is_located() -> None:
    result = checked(Nth(lambda n: n == 40, flip))
    assert not result.passed and result.soak == ""
    bad = result.cases[-1]
    assert bad.verdict == "failed" and bad.cause == "repeat" and bad.at == {"tensor": "d", "index": [0, 0]}
    assert bad.message.startswith("1 of ") and "launches back to back gave another result: d[0, 0]" in bad.message
    assert all(c.verdict == "passed" for c in result.cases[:-1]), "three repeats of a case did not see it"


def test_a_launch_that_writes_nothing_leaves_poison_not_the_last_result() -> None:
    body = Nth(lambda n: False, flip)

    def idle(device: FakeDevice, pointers: Mapping[str, int]) -> None:
        body.count += 1
        if body.count != 45:
            right(device, pointers)

    assert checked(idle).cases[-1].cause == "repeat"


@pytest.mark.parametrize(("place", "cause"), [("behind", "out-of-bounds"), ("a", "input-changed")])
def test_memory_is_looked_at_afterwards(place: str, cause: str) -> None:
    def spoil(pointers: Mapping[str, int]) -> None:
        if place == "a":
            at(pointers["a"], 1)[0] ^= 1
        else:
            at(pointers["d"] - 1, 1)[0] ^= 1

    bad = checked(Nth(lambda n: n == 60, spoil)).cases[-1]
    assert bad.cause == cause and "launches back to back" in bad.message


def test_sums_in_any_order_are_judged_within_the_tolerance() -> None:
    def all_of(job: Any) -> Any:
        unordered = tuple(x.model_copy(update={"unordered": ("atomic_add in line 3",)}) for x in job.launches)
        return job.model_copy(update={"launches": unordered})

    def run(body: Any) -> Any:
        job = all_of(make(distributions=("normal",), soak=64))
        return run_check(env_for(body), job, GEMM, 5, lambda *a: None)

    def round_the_other_way(pointers: Mapping[str, int]) -> None:
        t = tensors(pointers)
        exact = t["a"].astype(np.float32) @ t["b"].astype(np.float32).T
        off = (exact - t["d"].astype(np.float32)) / np.abs(exact)
        i = np.unravel_index(np.argmax(np.where(off * exact > 0, np.abs(off), 0)), off.shape)
        t["d"].view(np.uint16)[i] += 1  # the next larger magnitude, which the exact value is about as near to

    result = run(Nth(lambda n: n > 20 and n % 9 == 0, round_the_other_way))
    assert result.passed and "all within the tolerance" in result.soak and "atomic_add in line 3 allows" in result.soak

    def ruin(pointers: Mapping[str, int]) -> None:
        at(pointers["d"], 2).view(np.uint16)[:] = 0x4700

    bad = run(Nth(lambda n: n == 50, ruin)).cases[-1]
    assert bad.cause == "mismatch" and "launches back to back" in bad.message


def test_time_ends_it_and_zero_launches_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(float(n) for n in range(10_000))
    monkeypatch.setattr(gpu_soak.time, "monotonic", lambda: next(clock))
    assert f"{gpu_soak.FIRST} launches of" in checked(right, soak=10_000).soak
    assert checked(right, soak=0).soak == ""


def test_large_outputs_are_not_soaked(monkeypatch: pytest.MonkeyPatch) -> None:
    from corpus import gpu_check

    monkeypatch.setattr(gpu_check, "LARGEST", 1)
    monkeypatch.setattr(gpu_check, "ASIDE_BYTES", 1)
    assert checked(right).soak == "not launched back to back: no shape is small enough"
