"""The profiler's table, and the answer without a profiler."""

from __future__ import annotations

import shutil

import pytest

from corpus import gpu_profile, jobs

TABLE = """==PROF== Connected to process 1
{"result":{"kind":"launch"}}
"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","k","GPU Speed Of Light Throughput","Duration","us","1,014.5"
"0","k","Occupancy","Theoretical Occupancy","%","25"
"0","k","Launch Statistics","Function Cache Configuration","","CachePreferNone"
"0","k","SpeedOfLight_Rule","","",""
"""


def test_the_table_becomes_sections() -> None:
    found = gpu_profile.parse(TABLE)
    assert found["GPU Speed Of Light Throughput"]["Duration"] == {"value": 1014.5, "unit": "us"}
    assert found["Launch Statistics"]["Function Cache Configuration"]["value"] == "CachePreferNone"
    assert set(found) == {"GPU Speed Of Light Throughput", "Occupancy", "Launch Statistics"}
    assert gpu_profile.parse("==ERROR== no permission") == {}


def test_without_a_profiler_the_reason_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(gpu_profile, "_installed", lambda: None)
    launch = jobs.Launch(shape={"M": 1}, plans=({"symbol": "k"},))
    assert "not installed" in gpu_profile.counters(jobs.Job(kind="profile"), launch)["unavailable"]
