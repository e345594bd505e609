"""A/A pairs: jobs that time a kernel beside itself, and the rates made of their verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corpus import aa, evidence, jobs, rebuild
from lowering.runtime import stats


def shape(mode: str, verdict: str, ratio: float = 1.0, name: str = "") -> jobs.BenchShape:
    common: dict[str, Any] = {"mad_us": 0.0, "cv": 0.004, "samples_us": (10.0,) * 21, "batch": 8, "sm_mhz": 1980.0}
    versus: dict[str, Any] = {"ratio": ratio, "ratio_low": ratio - 0.001, "ratio_high": ratio + 0.001}
    timed = verdict != "error"
    return jobs.BenchShape(
        shape={"M": 4}, mode=mode, verdict=verdict, method="graph",  # type: ignore[arg-type]
        candidate=jobs.Timing(name="candidate", median_us=10.0, **common) if timed else None,
        baselines=(jobs.Timing(name="rival", median_us=10 * ratio, **common, **versus),) if timed else (),
        conditions={"settings": {"rounds": 21}, "telemetry": {"reasons": ["power cap"], "sm_mhz_min": 1700, "sm_mhz_max": 1980,
                                                              "ecc": "on", "power_w_max": 650.0}},
    )  # fmt: skip


def answer(*shapes: jobs.BenchShape) -> dict[str, Any]:
    bench = jobs.Bench(
        contract="rmsnorm", contract_digest="ct_1", kernel="rmsnorm", passed=True, summary="", seed=0, secret="00",
        device={"name": "H200", "driver": "13.0", "uuid": "secret"}, shapes=shapes, rule="the rule", seconds=1.0,
    )  # fmt: skip
    return {"result": bench.model_dump(mode="json")}


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> None:
    small = aa.Subject(
        "rmsnorm", ({"M": 4, "D": 512}, {"M": 64, "D": 512}), (("DMAX", 1024),), "M", (("M", 96), ("D", 512))
    )
    monkeypatch.setattr(aa, "SUBJECTS", (small,))


def test_prepared_jobs_time_a_kernel_beside_itself(one: None, tmp_path: Path) -> None:
    assert aa.main(["prepare", str(tmp_path), "--repeats", "2"]) == 0
    job = jobs.parse(json.loads((tmp_path / "rmsnorm.json").read_text()))
    assert [x.shape["M"] for x in job.launches] == [4, 4, 64, 64] and job.rivals == job.launches
    assert job.modes == ("warm", "cold") and job.samples == 21, "the rounds of any timing"
    power = jobs.parse(json.loads((tmp_path / "rmsnorm-power.json").read_text()))
    assert power.rivals[0].shape == power.launches[0].shape == {"M": 96, "D": 512}
    (plan,), (same, extra) = power.launches[0].plans, power.rivals[0].plans
    assert plan == same and extra["cubin_sha256"] == plan["cubin_sha256"] and extra["grid"] < plan["grid"]


def test_run_and_record(
    one: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert aa.main(["prepare", str(tmp_path)]) == 0
    equal = [shape("warm", "inconclusive", 1.002)] * 150 + [shape("cold", "inconclusive", 0.997)] * 48
    odd = [shape("cold", "faster", 1.02), shape("warm", "invalid"), shape("warm", "error")]
    told = {
        "rmsnorm": answer(*equal, *odd),
        "rmsnorm-power": answer(shape("warm", "faster", 1.04), shape("cold", "inconclusive")),
    }
    asked = iter(told.values())
    monkeypatch.setattr(aa, "ask", lambda job, limit_s: next(asked))
    assert aa.main(["run", str(tmp_path), str(tmp_path)]) == 0
    assert "1 false positives in 199 valid of 201 A/A pairs: 0.50%" in capsys.readouterr().out
    path = aa.record(tmp_path, tmp_path, tmp_path / "results")
    found = json.loads(path.read_text())
    s = found["summary"]
    assert (found["kind"], s["pairs"], s["valid"], s["false_positives"], s["rate"]) == ("aa", 201, 199, 1, 1 / 199)
    assert s["rate_interval"] == pytest.approx(list(stats.proportion_bound(1, 199)))
    assert s["verdicts"] == {"inconclusive": 198, "faster": 1, "invalid": 1, "error": 1}
    assert (s["warm"]["pairs"], s["warm"]["cv_p90"], s["cold"]["difference_max"]) == (150, 0.004, pytest.approx(0.02))
    assert (s["power"]["pairs"], s["power"]["found"], s["power"]["ratio_min"]) == (2, 1, 1.0)
    assert found["device"] == {"name": "H200", "driver": "13.0"}, "no identity of the machine"
    assert found["conditions"]["sm_mhz_min"] == 1700 and found["conditions"]["pairs_with_reason"]["power cap"] == 203
    assert [k["job"] for k in found["kernels"]] == ["rmsnorm", "rmsnorm-power"] and "NVRTC" in found["kernels"][0][
        "compiler"
    ]
    assert len(rebuild.records(tmp_path / "results")) == 2, "a rebuild sees when these rates are of other machine code"
    assert len(found["pairs"]) == 203 and "samples_us" not in json.dumps(found["pairs"])
    assert evidence.read_rows(path) == [], "a report is no timing row"


def test_a_job_without_a_result_is_said(one: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert aa.main(["prepare", str(tmp_path), "--only", "rmsnorm"]) == 0
    assert not (tmp_path / "rmsnorm-power.json").exists()
    monkeypatch.setattr(aa, "ask", lambda job, limit_s: {"error": {"code": "worker/timeout", "message": "no answer"}})
    assert aa.main(["run", str(tmp_path), str(tmp_path)]) == 1
    assert aa.main(["record", str(tmp_path), str(tmp_path)]) == 1


def test_percentiles() -> None:
    values = [float(v) for v in range(1, 11)]
    assert (aa.percentile(values, 0.9), aa.percentile(values, 0.91), aa.percentile([3.0], 0.9)) == (9, 10, 3)
