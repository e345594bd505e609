"""Whether spans add up, on made-up timelines and on the committed profiles of the H200."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corpus.evidence import DIRECTORY
from corpus.profiling.closure import CYCLES, EVENTS, closure

PROFILES = sorted((DIRECTORY / "profiles").glob("*.json"))


def timeline(**more: Any) -> dict[str, Any]:
    roles = [
        {"role": "a", "us": {"wait": 4.0, "compute": 5.0, "idle": 1.0}},
        {"role": "b", "us": {"compute": 9.5, "idle": 0.0}},
    ]
    return {"roles": roles, "kernel_us": 10.0, "clock_ghz": 1.5, "overhead": 0.05, **more}


def test_the_role_that_accounts_for_least_counts() -> None:
    found = closure(timeline(recorded_us=10.0), {})
    assert found is not None and found.against == EVENTS and found.share == pytest.approx(0.95)


def test_without_an_event_time_cycles_are_compared() -> None:
    found = closure(timeline(), {"elapsed_cycles": 14_000.0})
    assert found is not None and found.against == CYCLES and found.share == pytest.approx(9.5 * 1500 / (14_000 * 1.05))


def test_nothing_to_hold_it_against_is_no_answer() -> None:
    assert closure(timeline(), {}) is None and closure({"unavailable": "no"}, {"elapsed_cycles": 1.0}) is None


@pytest.mark.parametrize("path", PROFILES, ids=lambda p: p.stem)
def test_spans_of_committed_profiles_add_up_and_recording_is_cheap(path: Path) -> None:
    profile = json.loads(path.read_text(encoding="utf-8"))
    metrics = {k: m["value"] for k, m in profile["counters"]["metrics"].items()}
    found = closure(profile["timeline"], metrics)
    assert found is not None and 0.95 <= found.share <= 1.05, found
    assert profile["timeline"]["overhead"] <= 0.10 and profile["timeline"]["dropped"] == 0


def test_gemm_and_kmeans_are_among_them() -> None:
    assert {"gemm", "kmeans"} <= {p.stem.split("_")[0] for p in PROFILES}
