"""What the verifier leaves undecided is said by every answer about the kernel and kept in every record."""

from __future__ import annotations

import json

import pytest

from analyses import verify_text
from analyses.verifier import render
from server.engine import Engine
from server.programs import Ref
from server.wording import undecided, undecided_words

LOOP = "        for i in range(0, 1000000000, 1):\n            sync(warp)\n"
SOFTMAX = """
@kernel(target="sm_90a")
def softmax(x: In[f32, M, N], y: Out[f32, M, N]):
    where(N % 4 == 0)
    launch(ctas=M)
    rows = role(warp, count=8)
    peak_s = smem(f32, 8)
    total_s = smem(f32, 8)
    with rows as w:
LOOP        peak = -inf
        total = 0.0
        for c in range(w * 1024, N, 8 * 1024):
            v = load(x[cta, c:], vec(4).cols[1024], fill=-inf)
            top = max(peak, row_max(v))
            base = select(top == -inf, 0.0, top)
            total = total * exp2(peak - base) + row_sum(exp2(v - base))
            peak = top
        store(peak_s[w], peak)
        store(total_s[w], total)
        SYNC
        store(y[cta, 4 * w:], load(peak_s, vec(1).cols[8]) + load(total_s, vec(1).cols[8]))
"""
RACE = SOFTMAX.replace("LOOP", LOOP).replace("        SYNC\n", "")
NAMES = ["progress", "data order", "global regions"]


def test_the_race_itself_is_found_when_a_shape_can_be_run() -> None:
    found = verify_text(RACE.replace(LOOP, ""))
    assert [d.rule for d in found.diagnostics if d.severity == "error"] == ["data/unsynchronised-read"]


def test_a_kernel_that_no_witness_can_run_is_undecided_and_names_the_loop() -> None:
    report = verify_text(RACE)
    assert report.accepted and [p.name for p in report.undecided] == NAMES
    (warning,) = [d for d in report.diagnostics if d.severity == "warning"]
    assert warning.rule == "derive/no-witness" and "in the loop of line 10" in warning.message
    assert [r.span.line for r in warning.related] == [10]
    assert all("loop of line 10" in p.reason for p in report.undecided)
    assert "accepted, but undecided and so not proved: progress, data order" in render(report)


def test_the_loop_with_the_most_rounds_is_named() -> None:
    nested = LOOP.replace("range(0, 1000000000, 1)", "range(3)").replace(
        "            sync(warp)\n", "            for j in range(100000):\n                sync(warp)\n"
    )
    (warning,) = verify_text(RACE.replace(LOOP, nested)).diagnostics
    assert "in the loop of line 11" in warning.message


def test_verify_says_what_is_undecided_in_its_sentence_and_as_a_member(engine: Engine) -> None:
    got = engine.verify(Ref(text=RACE))
    assert got.status == "accepted" and got.exit_code == 0
    assert "not proved, undecided: progress, data order, global regions" in got.summary and "line 10" in got.summary
    assert [u.split(": ")[0] for u in got.undecided] == NAMES == [u.split(": ")[0] for u in got.compact()["undecided"]]
    assert "undecided: data order: no witness shape could be run" in got.text()
    stored = engine.store.verdict(got.ids["variant_id"])
    assert stored is not None and stored["status"] == "accepted" and stored["rules"] == []
    assert stored["undecided"] == got.undecided


def test_build_and_the_whole_way_repeat_it_and_keep_it(engine: Engine) -> None:
    text = RACE.replace("y: Out", "out: Out").replace("y[", "out[")
    built = engine.evaluate.build(Ref(text=text))
    assert built.status == "passed" and built.exit_code == 0, built.summary
    assert "undecided: progress, data order" in built.summary and len(built.undecided) == 3
    row = engine.store.build(built.ids["build_id"])
    assert row is not None and row["record"]["undecided"] == built.undecided
    whole = engine.evaluate.compile_and_bench(Ref(text=text), None, None, until="compile")
    assert whole.undecided == built.undecided and whole.summary.count("not proved, undecided") == 1


def test_a_decided_kernel_carries_no_label(engine: Engine) -> None:
    text = RACE.replace(LOOP, "").replace("        store(y[", "        sync(rows)\n        store(y[")
    got = engine.verify(Ref(text=text))
    assert "undecided" not in json.dumps(got.compact()) and "undecided" not in got.summary
    assert engine.store.verdict(got.ids["variant_id"])["undecided"] == []  # type: ignore[index]


@pytest.mark.parametrize(
    ("properties", "items", "words"),
    [
        ([], [], ""),
        (
            [{"kernel": "k", "name": "progress", "verdict": "undecided", "reason": "a while polls"}],
            ["progress: a while polls"],
            "; not proved, undecided: progress (a while polls)",
        ),
        (
            [
                {"kernel": "a", "name": "progress", "verdict": "undecided", "reason": ""},
                {"kernel": "b", "name": "progress", "verdict": "checked", "reason": ""},
            ],
            ["progress of a"],
            "; not proved, undecided: progress of a",
        ),
    ],
)
def test_the_words(properties: list[dict[str, str]], items: list[str], words: str) -> None:
    assert undecided(properties) == items
    assert undecided_words(items) == words
