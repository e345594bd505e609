"""The checks of a shape where a kernel updates its output in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from corpus.contract import Case, contracts
from corpus.tuning import measure
from corpus.tuning.campaign import Settings
from corpus.tuning.measure import Contender
from lowering.recipe import Concrete
from tests.corpus.fake_device import at, env_for

ROWS, COLUMNS = 33, 64
Pointers = Mapping[str, int]


def sums(pointers: Pointers) -> tuple[np.ndarray, np.ndarray]:
    """(the column sums, y itself) in the memory of the played device."""
    x = at(pointers["x"], 2 * ROWS * COLUMNS).view(ml_dtypes.bfloat16).reshape(ROWS, COLUMNS)
    return x.astype(np.float32).sum(0), at(pointers["y"], 4 * COLUMNS).view(np.float32)


def adds(pointers: Pointers) -> None:
    found, y = sums(pointers)
    y += found


def writes(pointers: Pointers) -> None:
    found, y = sums(pointers)
    y[:] = found


class Forgets:
    """Right the first time only."""

    calls = 0

    def __call__(self, pointers: Pointers) -> None:
        self.calls += 1
        (adds if self.calls == 1 else writes)(pointers)


def test_what_is_updated_in_place_starts_anew_before_each_judged_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: dict[str, Callable[[Pointers], None]] = {
        "first": adds,
        "writes": writes,
        "second": adds,
        "forgets": Forgets(),
    }

    def runner(env: Any, contender: Contender, pointers: Pointers) -> Callable[[int], None]:
        return lambda stream: bodies[contender.id](pointers)

    def timed(env: Any, runs: Mapping[str, Callable[[int], None]], *more: Any) -> dict[str, Any]:
        for run in [*runs.values()] * 3:
            run(0)
        return {}

    monkeypatch.setattr(measure, "runner", runner)
    monkeypatch.setattr(measure, "_time", timed)
    contract = contracts()["col_sums"]
    case = Case({"M": ROWS, "N": COLUMNS}, "normal", 1, 2, {"DT": "bf16"})
    call = Concrete({}, {}, 0, ())
    found = measure.measure(
        env_for(lambda device, pointers: None), contract, case, [Contender(n, call, {}) for n in bodies], Settings()
    )
    assert {n: e["check"] for n, e in found["contenders"].items()} == {
        "first": "passed", "writes": "failed", "second": "passed", "forgets": "failed",
    }  # fmt: skip
    assert "after timing" in found["contenders"]["forgets"]["message"]
