"""A profile job and its result become a committed file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corpus import evidence, export
from corpus.jobs import Job
from corpus.kernels import kernels
from corpus.prepare import prepare
from corpus.profiling import record
from lowering.sass import disassemble, parse_sass
from tests.compiled import cubins
from tests.corpus.profiling.synthetic import metrics, profile

SHAPE = {"M": 512, "N": 512, "K": 512}


@pytest.fixture(scope="module")
def job() -> Job:
    entry = next(k for k in kernels() if k.name == "gemm_sm90")
    made, _ = prepare(
        entry.text(), entry.contract, "profile", [SHAPE], target="sm_90a", name=entry.name, cache_dir=cubins()
    )
    return made


@pytest.fixture
def result(job: Job) -> dict[str, Any]:
    code = parse_sass(
        disassemble(job.cubin(str(job.launches[0].plans[0]["cubin_sha256"])), cache_dir=cubins())
    ).instructions
    rows = [{"offset": i.offset, "samples": 2, "stalls": {"wait": 2}, "executed": 4} for i in code]
    spans = [[1, float(n), n + 0.5] for n in range(4000)]
    tracks = [
        {"cta": c, "sm": c, "role": r, "instance": 0, "start_us": 0.0, "end_us": 4000.0, "spans": spans, "dropped": 0}
        for c in (0, 1, 5)
        for r in ("producer", "math")
    ]
    lines = [
        {
            "line": 39,
            "end_line": 39,
            "role": "math",
            "kind": "wait",
            "ops": ["wait"],
            "mark": 1,
            "us": 60.0,
            "share": 0.6,
        }
    ]
    roles = [
        {
            "role": "math",
            "instances": 2,
            "mean_us": 100.0,
            "covered": 1.0,
            "us": {"wait": 60.0, "issue": 0, "compute": 40.0, "store": 0},
        }
    ]
    timeline = {
        "kernel": "gemm_sm90", "file": "gemm_sm90.cake", "grid": 132, "recorded_ctas": 132, "kernel_us": 100.0, "plain_us": 100.0,
        "instrumented_us": 103.0, "overhead": 0.03, "marks": [], "roles": roles, "lines": lines, "tracks": tracks, "slots": 132,
    }  # fmt: skip
    out = profile(counters={"metrics": metrics(tensor=80.0), "instructions": rows}, timeline=timeline)
    out["shape"]["shape"] = SHAPE
    return out | {"contract": job.contract, "contract_digest": job.contract_digest, "kernel": job.kernel}


def test_a_profile_is_committed_with_its_summary_and_what_ran(
    job: Job, result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.setattr(
        record, "write", lambda name, made, write=record.write: write(name, made, tmp_path / "profiles")
    )
    (tmp_path / "job.json").write_text(job.model_dump_json())
    (tmp_path / "result.jsonl").write_text('{"progress": 1}\n' + json.dumps({"result": result}) + "\n")
    argv = [
        str(tmp_path / "result.jsonl"),
        "--job",
        str(tmp_path / "job.json"),
        "--name",
        "gemm-h200",
        "--date",
        "2026-11-30T00:00:00Z",
    ]
    assert export.main(argv) == 0
    assert "bound by tensor" in capsys.readouterr().out
    path = tmp_path / "profiles" / "gemm-h200.json"
    made = json.loads(path.read_text())
    assert path.stat().st_size < record.MAX_BYTES and made["kind"] == "profile"
    assert made["summary"]["limiters"][0]["line"] == 39 and made["summary"]["unattributed"] < 0.5
    plan = job.launches[0].plans[0]
    assert made["cubin_sha256"] == plan["cubin_sha256"] == made["cubins"]["plain"] != made["cubins"]["timeline"]
    assert (
        made["content_id"] == job.content_id
        and made["compiler"].startswith("NVRTC")
        and made["device"]["name"] == "H200"
    )
    assert made["evidence"]["date"] == "2026-11-30T00:00:00Z" and len(made["evidence"]["commit"]) in (0, 40)
    assert evidence.results(tmp_path) == [] == evidence.results(path.parent), "no timing rows"


def test_a_long_timeline_keeps_its_first_and_last_cta_and_counts_what_is_left_out(result: dict[str, Any]) -> None:
    whole = len(record.text_of(result))
    two = record.fitted(result, whole - 1000)
    assert {t["cta"] for t in two["timeline"]["tracks"]} == {0, 5} and two["timeline"]["tracks"][0]["dropped"] == 0
    little = record.fitted(result, whole // 8)
    assert len(record.text_of(little)) <= whole // 8 and {t["cta"] for t in little["timeline"]["tracks"]} == {0}
    assert all(len(t["spans"]) + t["dropped"] == 4000 for t in little["timeline"]["tracks"])
    assert len(result["timeline"]["tracks"]) == 6, "the profile itself is left as it is"
    assert json.loads(record.text_of(result)) == result


@pytest.mark.parametrize(
    ("change", "says"),
    [({"kernel": "mine"}, "only profiles of corpus kernels"), ({"content_id": "ir_0"}, "another text of gemm_sm90")],
)
def test_only_a_corpus_kernel_as_it_is_now_is_committed(
    job: Job, result: dict[str, Any], change: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        record.record(result, job.model_copy(update=change), command="", date="", commit="")


@pytest.mark.parametrize(("field", "value"), [("contract_digest", "ct_0"), ("kernel", "other")])
def test_a_result_of_another_job_is_refused(job: Job, result: dict[str, Any], field: str, value: str) -> None:
    with pytest.raises(ValueError, match="not of this job"):
        record.record({**result, field: value}, job, command="", date="", commit="")
    moved = {**result, "shape": {**result["shape"], "shape": {**SHAPE, "M": 1024}}}
    with pytest.raises(ValueError, match="not of this job: shape"):
        record.record(moved, job, command="", date="", commit="")


def test_a_name_that_is_a_path_is_refused(result: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a plain file name"):
        record.write("../x", result, tmp_path)
