"""The table, its fixtures, the page that shows it, and the committed run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from corpus import jobs
from corpus.contract import contracts
from corpus.evidence import DIRECTORY
from lowering.compile import compile_cuda
from lowering.plan import LaunchPlan
from tests.adversarial import report
from tests.adversarial.bodies import BODIES
from tests.adversarial.cases import ALL, CHEATS, GEMM, KMEANS, ROWS, Cheat, outcome, row
from tests.adversarial.fixtures import CUDA, TARGET, TOO_MUCH_SMEM, plan, source
from tests.adversarial.gpu import runs

ASKED = {
    "writes nothing": "writes_nothing", "first tile only": "first_tile_only", "zeros": "zeros", "copy of an input": "copies_input",
    "correct only at first call": "first_call_only", "depends on poison": "reads_output", "mutates inputs": "mutates_input",
    "writes past the end": "past_the_end", "racy with sparse errors": "sparse_race", "flaky": "flaky",
    "too-low accumulation precision": "bf16_accumulation", "over-requested shared memory": "asks_for_too_much",
    "infinite spin": "spins", "wrong once in hundreds": "rare", "sub-floor time": "too_fast",
}  # fmt: skip


def test_every_row_has_its_fixture_and_every_fixture_a_row() -> None:
    assert len({c.name for c in ROWS}) == len(ROWS) and set(ASKED.values()) <= {c.name for c in CHEATS}
    assert {c.source for c in ROWS} == {p.stem for p in CUDA.glob("*.cu")}
    assert {c.source for c in ROWS if c.cpu} == set(BODIES)


@pytest.mark.parametrize("contract", ALL)
def test_fixtures_compile_and_their_plans_are_legal(contract: str) -> None:
    of = contracts()[contract]
    done = compile_cuda(source("stale_by_bytes", of, 64), TARGET)
    assert done.cubin and done.arch == TARGET
    for shape in of.shapes["boundary"]:
        made = plan(of, shape, done.sha256)
        assert LaunchPlan.from_json(made.to_json()) == made
        assert set(made.tensors) == {t.name for t in of.tensors} and made.args[4].value == next(iter(shape.values()))
    assert plan(of, of.shapes["boundary"][0], done.sha256, TOO_MUCH_SMEM).smem_bytes > 227 << 10


def test_expectations_tell_outcomes_apart() -> None:
    cheat = row("zeros")
    assert cheat.caught(GEMM, "failed", "mismatch", "") and cheat.caught(KMEANS, "failed", "label", "")
    assert not cheat.caught(KMEANS, "failed", "mismatch", "") and not cheat.caught(GEMM, "failed", "unwritten", "")
    assert not cheat.caught(GEMM, "passed", "ok", "") and not cheat.honest and row("right").honest
    floor = row("too_fast")
    both = "25 µs, below its physical floor of 72 µs: it cannot; a launch on fresh input bytes took 9 µs"
    assert floor.caught(GEMM, "invalid", "", both) and not floor.caught(GEMM, "invalid", "", "throttled")
    assert not floor.caught(GEMM, "invalid", "", both.split("; ")[1]), "the floor is a reason of its own"
    slow = row("twice_the_work")
    assert slow.caught(GEMM, "slower", "", "") and not slow.caught(GEMM, "incorrect", "", "")
    itself = next(r.cheat for r in runs(["corpus_against_itself"]))
    assert itself.caught(GEMM, "inconclusive", "", "") and not itself.caught(GEMM, "faster", "", "")


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ({"error": {"code": "worker/hung", "message": "m"}}, ("error", "worker/hung", "m")),
        ({"result": {"passed": True, "summary": "s", "cases": []}}, ("passed", "ok", "s")),
        ({"result": {"passed": False, "summary": "s", "cases": [{"verdict": "skipped"}]}}, ("skipped", "", "s")),
        ({"result": {"passed": False, "summary": "s", "cases": [
            {"verdict": "passed"}, {"verdict": "failed", "cause": "repeat", "message": "m"}]}}, ("failed", "repeat", "m")),
        ({"result": {"shapes": [{"verdict": "incorrect", "message": "m", "checks": [
            {"verdict": "passed", "cause": "ok"}, {"verdict": "failed", "cause": "label"}]}]}}, ("incorrect", "label", "m")),
        ({"result": {"shapes": [{"verdict": "invalid", "message": "floor"}]}}, ("invalid", "", "floor")),
    ],
)  # fmt: skip
def test_outcomes_of_answers(answer: dict[str, Any], wanted: tuple[str, str, str]) -> None:
    assert outcome(answer) == wanted


def test_jobs_for_a_gpu_cover_every_row_and_the_controls() -> None:
    found = list(runs())
    assert len({r.id for r in found}) == len(found)
    assert {r.cheat.name for r in found} == {c.name for c in ROWS} | {
        "corpus_check",
        "corpus_against_itself",
        "corpus_twice",
    }
    kinds = [r.cheat.kind for r in found]
    assert kinds == sorted(kinds, reverse=True) == sorted(kinds, key=lambda k: k == "bench"), (
        "timings run alone, at the end"
    )


def test_the_page_shows_the_table() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    assert report.put(page, report.table()) == page, "run python -m tests.adversarial.report"


def test_a_record_says_what_passed(tmp_path: Path) -> None:
    from tests.adversarial.gpu import report as make

    (tmp_path / "commit").write_text("c0\n")
    cheat, honest = (
        next(r for r in runs() if r.id == "zeros-gemm_bf16"),
        next(r for r in runs() if r.id == "right-gemm_bf16"),
    )
    answers = {}
    for r in (cheat, honest):
        of = contracts()[r.contract]
        job = jobs.job(
            "check", of, [jobs.Launch(shape={"M": 1, "N": 8, "K": 8}, plans=())], [b"x"], compiler="NVRTC 13"
        )
        (tmp_path / f"{r.id}.json").write_text(job.model_dump_json())
        passed = {"result": {"passed": True, "summary": "s", "cases": []}, "seconds": 1.0, "date": "2026-01-01"}
        answers[r.id] = passed
    (tmp_path / "answers.json").write_text(json.dumps({"device": {}, "answers": answers, "seconds": 2.0}))
    rec = make([(tmp_path, tmp_path)])
    assert rec["totals"] == {
        "cheats": 1,
        "cheat_jobs": 1,
        "caught": 0,
        "passed_the_gates": 1,
        "controls": 1,
        "controls_flagged": 0,
    }
    assert [r["as_expected"] for r in rec["rows"]] == [False, True] and rec["commits"] == ["c0"]
    again = tmp_path / "again"
    again.mkdir()
    (again / "commit").write_text("c1\n")
    (again / f"{cheat.id}.json").write_bytes((tmp_path / f"{cheat.id}.json").read_bytes())
    bad = {"verdict": "failed", "cause": "mismatch", "message": "m"}
    answer = {"result": {"passed": False, "summary": "s", "cases": [bad]}, "seconds": 1.0, "date": "2026-01-02"}
    (again / "answers.json").write_text(json.dumps({"device": {}, "answers": {cheat.id: answer}, "seconds": 1.0}))
    merged = make([(tmp_path, tmp_path), (again, again)])
    assert [(r["as_expected"], r["commit"], r["date"]) for r in merged["rows"]] == [
        (True, "c1", "2026-01-02"),
        (True, "c0", "2026-01-01"),
    ]
    assert merged["totals"]["caught"] == 1 and merged["seconds"] == 3.0
    other = {"device": {"result": {"device": {"name": "other"}}}, "answers": {}, "seconds": 1.0}
    (again / "answers.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match="different devices"):
        make([(tmp_path, tmp_path), (again, again)])


def test_the_committed_run_caught_everything() -> None:
    rec = json.loads((DIRECTORY / "adversarial.json").read_text())
    totals = rec["totals"]
    assert totals["caught"] == totals["cheat_jobs"] > 100 and totals["passed_the_gates"] == 0
    assert totals["controls"] > 10 and totals["controls_flagged"] == 0
    assert {r["id"] for r in rec["rows"]} == {r.id for r in runs()}
    checked = [r for r in rec["rows"] if r["kind"] == "check" and r["verdict"] == "passed"]
    assert checked and all("back to back, none differed" in r["soak"] for r in checked)
    assert {r["commit"] for r in rec["rows"]} == set(rec["commits"])
    for r in rec["rows"]:
        known: Cheat | None = row(r["cheat"]) if r["cheat"] else None
        if "fixture_sha256" in r:
            text = (CUDA / f"{r['kernel']}.cu").read_bytes()
            assert hashlib.sha256(text).hexdigest() == r["fixture_sha256"], (
                f"{r['kernel']}.cu has changed since it was run"
            )
        assert known is None or known.caught(r["contract"], r["verdict"], r["cause"], r["message"]), r["id"]
