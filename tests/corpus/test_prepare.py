"""Jobs built without a GPU, and results turned into rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cake_ir.diagnostics import CakeError
from corpus import evidence, export, jobs
from corpus.kernels import kernel
from corpus.prepare import binding, main, prepare, shape_list


def test_a_job_is_self_contained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "job.json"
    assert main(["rmsnorm", "--shapes", "M=4,D=64;M=1,D=12", "--set", "DMAX=256", "--out", str(out)]) == 0
    assert "skipped M=1 D=12: `where` on line" in capsys.readouterr().err
    job = jobs.parse(json.loads(out.read_text()))
    assert (job.kernel, job.target, job.bindings["DMAX"]) == ("rmsnorm", "sm_90a", 256)
    assert job.content_id.startswith("ir_") and job.variant_id.startswith("v_") and "NVRTC" in job.compiler
    (launch,) = job.launches
    assert launch.shape == {"M": 4, "D": 64} and launch.dtypes == {"DT": "bf16"}
    (plan,) = launch.plans
    assert job.cubin(plan["cubin_sha256"])[:4] == b"\x7fELF"
    assert {a.get("name") for a in plan["args"]} >= {"x", "gain", "y"}


def test_faults_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CakeError, match="contract/signature-mismatch"):
        prepare(kernel("rmsnorm").text(), "softmax", "check", "boundary", target="sm_90a")
    with pytest.raises(CakeError, match="job/bad-contract"):
        prepare(kernel("rmsnorm").text(), "nope", "check", "boundary", target="sm_90a")
    assert main(["nowhere.cake", "--contract", "softmax", "--out", str(tmp_path / "x")]) == 2
    (tmp_path / "bad.cake").write_text("def f(:\n")
    assert main([str(tmp_path / "bad.cake"), "--contract", "softmax", "--out", str(tmp_path / "x")]) == 1
    assert "nowhere.cake" in capsys.readouterr().err


def test_words_of_the_command_line() -> None:
    assert shape_list("tuning") == "tuning"
    assert shape_list("M=1,N=8;M=2,N=9") == [{"M": 1, "N": 8}, {"M": 2, "N": 9}]
    assert [binding(t)[1] for t in ("A=1", "A=0.5", "A=true", "A=f16")] == [1, 0.5, True, "f16"]


def test_export_needs_a_bench_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "DIRECTORY", tmp_path)
    result, job = tmp_path / "r.jsonl", tmp_path / "j.json"
    job.write_text(jobs.Job(kind="bench", contract="softmax", kernel="k", content_id="ir_1").model_dump_json())
    result.write_text('{"progress": 1}\n{"error": {"code": "lowering/no-gpu", "message": "none"}}\n')
    assert export.main([str(result), "--job", str(job), "--name", "x"]) == 1
    timing = {"name": "candidate", "median_us": 2.0, "mad_us": 0.1, "samples_us": [2.0], "batch": 1}
    versus = {**timing, "name": "b", "median_us": 3.0, "ratio": 1.5, "ratio_low": 1.4, "ratio_high": 1.6,
              "comparison": "faster"}  # fmt: skip
    shape = {
        "shape": {"M": 1, "N": 4},
        "mode": "warm",
        "verdict": "measured",
        "candidate": timing,
        "baselines": [versus],
    }
    bench = {"kind": "bench", "contract": "softmax", "contract_digest": "ct_1", "kernel": "k", "shapes": [shape]}
    rows = export.export(bench, jobs.parse(json.loads(job.read_text())), command="c", date="d", commit="e")
    assert [(r.baseline, r.ratio, r.content_id) for r in rows] == [("b", 1.5, "ir_1")]
    other = rows[0].model_copy(update={"shape": {"M": 2, "N": 4}})
    newer = rows[0].model_copy(update={"time_us": 1.0})
    assert [r.time_us for r in evidence.merged([rows[0], other], [newer])] == [2.0, 1.0]
