"""The GPU check of the judge, as far as it needs no GPU: the draw, the delays, the outcomes, the processes, the record."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.mutants import Entry
from tests.mutation.silicon import report, runner
from tests.mutation.silicon.build import class_of, launches, make, verdict
from tests.mutation.silicon.delays import with_delays
from tests.mutation.silicon.draw import CLASSES, draw, order, spread
from tests.mutation.silicon.outcome import OUTCOMES, agrees, sanitizer, series, worst
from tests.mutation.silicon.programs import SMS, dims_of, program, programs

ROOT = Path(__file__).parents[2]
KINDS = {"drop": 60, "move": 900, "swap": 30, "box": 7}


def _plan() -> list[Entry]:
    found = []
    for kind, number in KINDS.items():
        for i in range(number):
            name = hashlib.sha256(f"{kind} {i}".encode()).hexdigest()[:32]
            found.append(Entry(f"program {i % 3}", i, f"ir_{name}", kind, "op", True, f"{kind} {i}"))
    return found


def _look(group: Any) -> list[str]:
    """A third refuted, a third accepted, the rest of all sorts, by id."""
    words = (
        "refuted",
        "accepted",
        "other function",
        "unfit",
        "refuted",
        "accepted",
        "unfit",
        "false accept",
        "accepted",
    )
    return [words[int(e.id[3:11], 16) % len(words)] for e in group]


WANTED = {"refuted": 24, "accepted": 24, "other function": 6}


def test_the_draw_depends_on_the_seed_alone() -> None:
    first = draw(_plan(), 5, WANTED, _look)
    again = draw(list(reversed(_plan())), 5, WANTED, _look)
    assert {c: [e.id for e in m] for c, m in first.items()} == {c: [e.id for e in m] for c, m in again.items()}
    other = draw(_plan(), 6, WANTED, _look)
    assert {e.id for e in first["refuted"]} != {e.id for e in other["refuted"]}


def test_the_draw_fills_every_class_evenly_over_the_kinds() -> None:
    drawn = draw(_plan(), 5, WANTED, _look)
    for c, number in WANTED.items():
        assert len(drawn[c]) == number
        assert all(_look([e]) == [c] for e in drawn[c])
        assert len({e.id for e in drawn[c]}) == number
    kinds = Counter(e.kind for e in drawn["refuted"])
    # seven box mutants cannot give a share of six refuted ones; the others make up for it
    assert set(kinds) == set(KINDS) and kinds["box"] < 6
    assert max(kinds.values()) - min(n for k, n in kinds.items() if k != "box") <= 6
    assert {e.subject for e in drawn["refuted"]} == {"program 0", "program 1", "program 2"}


def test_kinds_that_give_little_do_not_end_the_draw() -> None:
    def only_moves(group: Any) -> list[str]:
        return ["refuted" if e.kind == "move" else "unfit" for e in group]

    drawn = draw(_plan(), 1, {"refuted": 50}, only_moves)
    assert len(drawn["refuted"]) == 50
    assert draw(_plan(), 1, {"accepted": 3}, only_moves)["accepted"] == []


def test_kinds_and_programs_take_turns() -> None:
    first = order(_plan(), 2)[:12]
    assert [e.kind for e in first[:4]] == sorted(KINDS)
    assert {e.subject for e in first if e.kind == "move"} == {"program 0", "program 1", "program 2"}
    assert len(set(spread(_plan(), 20, 1))) == 20


# ---- programs ------------------------------------------------------------------------------------------------------------


def test_every_program_has_a_launch_on_the_whole_device() -> None:
    assert {s.target for s in programs()} == {"sm_90a"}
    assert len(programs()) >= 16
    for s in programs():
        assert s.launches[-1].sms == SMS, s.name
        assert any(x.sms <= 4 for x in s.launches), s.name


def test_extents_are_solved_from_the_arrays() -> None:
    s = program("sketch/09_moe_fp8_sm90/moe_up")
    problem = s.launches[0].problem()
    assert dims_of(s.bound(s.bindings[0]), problem) == {"TS": 200, "K": 256, "E": 3, "I": 128}
    other = program("corpus/rmsnorm").bound(program("corpus/rmsnorm").bindings[0])
    with pytest.raises(ValueError):
        dims_of(other, problem)


def test_a_refuted_mutant_lowers_past_the_verifier_and_others_are_unfit(tmp_path: Path) -> None:
    s = program("corpus/softmax")
    from cake_ir import print_file
    from tests.mutation.tree import alone

    text = print_file(alone(s.tree))
    lines = text.splitlines(keepends=True)
    sync = next(i for i, line in enumerate(lines) if line.strip().startswith("sync("))
    raced = "".join(lines[:sync] + lines[sync + 1 :])
    said = verdict(s.name, raced)
    assert said["class"] == "refuted" and said["rules"]
    assert verdict(s.name, text)["class"] == "accepted"
    assert verdict(s.name, text.replace("sync(", "syncc("))["class"] == "unfit"
    made = make(s.name, raced, tmp_path)
    for sha in made["cubins"].values():
        data = (tmp_path / f"{sha}.cubin").read_bytes()
        assert data[:4] == b"\x7fELF" and hashlib.sha256(data).hexdigest() == sha
    assert [x["plan"]["grid"] for x in made["launches"]][-1] > SMS
    assert made["cubins"]["plain"] != make(s.name, None, tmp_path)["cubins"]["plain"]


def test_a_tensor_of_another_type_is_not_launched() -> None:
    from lowering import emit
    from tests.mutation.silicon.build import Unfit, bound_of

    s = program("corpus/rmsnorm")
    bound = bound_of(s, None)
    problem = s.launches[0].problem()
    assert launches(s, emit(bound))[0]["problem"] == 0
    wide = {n: a.astype("float64") for n, a in problem.tensors.items()}
    from dataclasses import replace

    from tests.mutation.subjects import Launch

    changed = replace(s, launches=(Launch(lambda: replace(problem, tensors=wide)),))
    with pytest.raises(Unfit, match="elements"):
        launches(changed, emit(bound))


@pytest.mark.parametrize("state,expected", [("passed", "accepted"), ("wrong", "other function"), ("fault", "false accept"),
                                            ("schedule", "false accept"), ("declined", "unfit"), ("crash", "unfit")])  # fmt: skip
def test_classes_of_accepted_mutants(state: str, expected: str) -> None:
    assert class_of(state) == expected


# ---- delays --------------------------------------------------------------------------------------------------------------

KERNEL = """namespace cake { void mbar_wait(int, int); }
extern "C" __global__ void k() {
  cake::mbar_wait(a, 0);
  cake::wgmma_fence();
  cake::bar_sync<1, 128>();
  cake::wgmma_commit();
  __syncthreads();
    cake::mbar_arrive(a);
  x = cake::mbar_wait_count;
}
"""


def test_delays_follow_waits_precede_releases_and_leave_wgmma_sequences_alone() -> None:
    body = with_delays(KERNEL).partition("__global__")[2].splitlines()
    assert body[1:] == [
        "  cake::mbar_wait(a, 0);", "  cake::delay(1u);", "  cake::wgmma_fence();", "  cake::bar_sync<1, 128>();",
        "  cake::wgmma_commit();", "  __syncthreads();", "  cake::delay(2u);", "    cake::delay(3u);",
        "    cake::mbar_arrive(a);", "  x = cake::mbar_wait_count;", "}",
    ]  # fmt: skip
    with pytest.raises(ValueError):
        with_delays("int f();")


# ---- outcomes --------------------------------------------------------------------------------------------------------------


def _ran(bits: str, right: bool = True, group: int = 0) -> dict[str, Any]:
    return {"state": "ran", "bits": bits, "right": right, "says": "" if right else "y: wrong", "group": group}


@pytest.mark.parametrize("ran,ordered,expected", [
    ([_ran("a"), _ran("a")], True, "ok"),
    ([_ran("a"), _ran("b")], True, "differs"),
    ([_ran("a"), _ran("b")], False, "ok"),
    ([_ran("a", group=0), _ran("b", group=1), _ran("a", group=0)], True, "ok"),
    ([_ran("a", False), _ran("a", False)], True, "wrong"),
    ([_ran("a"), _ran("b", False)], False, "differs"),
    ([_ran("a"), {"state": "hang", "says": "no end"}], True, "hang"),
    ([_ran("a", False), {"state": "fault", "says": "CUDA_ERROR_ILLEGAL_ADDRESS"}], True, "fault"),
    ([{"state": "refused", "says": "no"}], True, "refused"),
    ([_ran("a"), {"state": "outside", "says": "4 bytes"}], True, "outside"),
])  # fmt: skip
def test_a_series_has_the_outcome_of_its_launches(ran: list[dict[str, Any]], ordered: bool, expected: str) -> None:
    end = series(ran, ordered)
    assert end["outcome"] == expected
    assert end["launches"] == len(ran)
    assert (expected == "ok") == (end["says"] == "")


def test_the_worst_series_names_the_mutant() -> None:
    assert worst(["ok", "differs", "wrong"]) == "differs"
    assert worst(["ok", "refused"]) == "refused"
    assert worst(OUTCOMES) == "hang"
    assert worst([]) == "refused"


@pytest.mark.parametrize("kind", ("control", *CLASSES))
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_what_a_class_promises(kind: str, outcome: str) -> None:
    promised = {"control": {"ok"}, "accepted": {"ok"}, "other function": {"ok", "wrong"}}.get(kind, set(OUTCOMES))
    assert agrees(kind, outcome) == (outcome in promised)


MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at softmax+0x510 in softmax.cake:31
=========     by thread (96,0,0) in block (1,0,0)
=========     Access at 0x7f3ade200400 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: [0x2c1a1e] in libcuda.so.1
=========
========= Invalid __global__ write of size 4 bytes
=========     at softmax+0x510 in softmax.cake:31
=========     by thread (97,0,0) in block (1,0,0)
LAUNCH run the kernel: CUDA_ERROR_LAUNCH_FAILED
========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) due to "unspecified launch failure" on CUDA API call to cuCtxSynchronize.
=========     Saved host backtrace up to driver entry point at error
========= ERROR SUMMARY: 3 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at gemm+0x1230 in gemm.cake:30
=========     and Read access at gemm+0x13f0 in gemm.cake:36 [8192 hazards]
=========
LAUNCH ok
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_sanitizer_reports_are_read() -> None:
    assert sanitizer(MEMCHECK) == {"errors": 3, "findings": [
        "Invalid __global__ write of size 4 bytes at softmax+0x510 in softmax.cake:31",
        'Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) due to "unspecified launch failure" on CUDA API call to cuCtxSynchronize.',
    ]}  # fmt: skip
    raced = sanitizer(RACECHECK)
    assert raced["errors"] == 1
    assert raced["findings"] == ["Error: Race reported between Write access at gemm+0x1230 in gemm.cake:30"]
    assert sanitizer("========= COMPUTE-SANITIZER\nLAUNCH ok\n========= ERROR SUMMARY: 0 errors\n") == {
        "errors": 0,
        "findings": [],
    }
    assert sanitizer("killed") == {"errors": None, "findings": []}


# ---- processes -------------------------------------------------------------------------------------------------------------


def _job(name: str, kind: str = "accepted") -> dict[str, Any]:
    return {"id": name, "class": kind}


def test_a_child_that_faults_hangs_or_dies_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SILENCE_S", 0.5)

    def fine(say: Any) -> None:
        say({"outcome": "ok", "says": ""})
        say({"outcome": "differs", "says": "2 results"})

    def raises(say: Any) -> None:
        raise RuntimeError("no device")

    def hangs(say: Any) -> None:
        say({"outcome": "ok", "says": ""})
        time.sleep(60)

    def dies(say: Any) -> None:
        say({"outcome": "wrong", "says": "y"})
        os.kill(os.getpid(), signal.SIGKILL)

    found: dict[str, dict[str, Any]] = {}
    works = {"fine": fine, "raises": raises, "hangs": hangs, "dies": dies}
    assert runner.in_parallel([(_job(n), f) for n, f in works.items()], 3, lambda r: found.update({r["id"]: r}))
    assert found["fine"]["outcome"] == "differs" and len(found["fine"]["series"]) == 2
    assert "no device" in found["raises"]["error"] and "outcome" not in found["raises"]
    assert found["hangs"]["outcome"] == "hang"
    assert found["dies"]["error"] == "the process died"


def test_a_device_that_stops_answering_ends_the_run() -> None:
    def raises(say: Any) -> None:
        raise RuntimeError("no device")

    found: list[dict[str, Any]] = []
    assert not runner.in_parallel([(_job(str(i)), raises) for i in range(40)], 2, found.append)
    assert runner.BROKEN <= len(found) < 40


# ---- record ------------------------------------------------------------------------------------------------------------


def _written(tmp_path: Path, outcomes: dict[str, tuple[str, str]]) -> tuple[runner.Package, Path]:
    """A package and a run with a job of (class, outcome) each."""
    (tmp_path / "in").mkdir()
    out = tmp_path / "out"
    out.mkdir()
    jobs, ran = [], []
    for name, (c, outcome) in outcomes.items():
        rules = ["data/slot-reuse-without-wait"] if c == "refuted" else []
        about = {
            "id": name,
            "subject": "corpus/softmax",
            "kind": "drop",
            "what": f"drop {name}",
            "class": c,
            "rules": rules,
        }
        state = "fault" if c == "refuted" else "passed"
        jobs.append({**about, "message": "", "judge": {"state": state}, "cubins": {"plain": "ab"}})
        if outcome:
            one = {
                "variant": "plain",
                "problem": 0,
                "outcome": outcome,
                "says": "" if outcome == "ok" else "seen | so",
                "launches": 12,
            }
            ran.append({"id": name, "class": c, "outcome": outcome, "series": [one], "seconds": 1.0})
    meta = {
        "seed": 4,
        "commit": "abc",
        "compiler": "NVRTC 13.0",
        "command": "prepare",
        "programs": ["corpus/softmax"],
        "planned": 9,
    }
    (tmp_path / "in" / "meta.json").write_text(json.dumps(meta))
    (tmp_path / "in" / "jobs.jsonl").write_text("".join(json.dumps(j) + "\n" for j in jobs))
    (out / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ran) + '{"id": "torn')
    (out / "device.json").write_text(json.dumps({"name": "NVIDIA H200", "driver": "13.0"}))
    checked = [
        {"id": "r1", "tool": "memcheck", "errors": 2, "findings": ["Invalid read"], "launch": "ok", "seconds": 3}
    ]
    (out / "sanitizer.jsonl").write_text("".join(json.dumps(c) + "\n" for c in checked))
    return runner.Package(tmp_path / "in"), out


def test_the_record_counts_and_names_what_no_class_promises(tmp_path: Path) -> None:
    run = {"c": ("control", "ok"), "a1": ("accepted", "ok"), "a2": ("accepted", "differs"), "o": ("other function", "wrong"),
           "r1": ("refuted", "hang"), "r2": ("refuted", "ok"), "r3": ("refuted", "")}  # fmt: skip
    package, out = _written(tmp_path, run)
    rec = report.record(package, out)
    assert rec["kind"] == "mutation-gpu" and rec["seed"] == 4 and rec["not_run"] == 1
    assert [r["id"] for r in report.disagreements(rec)] == ["a2"]
    lines = report.table(rec["rows"], "kind")
    assert "| refuted | drop | 2 | 1 |  |  | 1 |" in lines
    assert report.by_rule(rec["rows"])[-1] == "| data/slot-reuse-without-wait | 2 | 1 |  | 2 |  |"
    assert report.sanitizers(rec)[-1] == "| memcheck | refuted | 1 | 1 | 0 | 0 |"
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    result = tmp_path / "mutation-gpu.json"
    path, summary = report.write(package.directory, out, result=result, page=page)
    assert json.loads(path.read_text()) == rec
    assert "NOT PROMISED: accepted a2" in summary and "not run: 1" in summary
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text and "seen \\| so" in text
    with pytest.raises(ValueError):
        report.put("no place", "")


def test_results_of_the_corpus_skip_the_record(tmp_path: Path) -> None:
    from corpus.evidence import read_rows

    path = tmp_path / "mutation-gpu.json"
    path.write_text(json.dumps({"kind": "mutation-gpu", "rows": [{"id": "x"}]}))
    assert read_rows(path) == []


def test_the_page_shows_the_committed_record() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    assert page.count(report.BEGIN) == 1 and page.count(report.END) == 1
    if report.RESULT.exists():
        assert report.section(json.loads(report.RESULT.read_text(encoding="utf-8"))) in page


def test_the_product_has_no_path_to_this_tool() -> None:
    for part in ("cake_ir", "analyses", "lowering", "corpus", "server"):
        for path in (ROOT / part).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert "mutation.silicon" not in text and "gpu_mutants" not in text, path
