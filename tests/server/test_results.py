"""The envelope: cleaning, edits from spans, caps, byte budgets."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cake_ir.diagnostics import Diagnostic, Edit, Fix, Related, Span, Step, error
from server.errors import EngineError
from server.programs import apply_edits
from server.results import (
    CONCISE_BYTES,
    DETAILED_BYTES,
    EXIT_CODES,
    MAX_DIAGNOSTICS,
    Artifact,
    Result,
    add_diagnostics,
    clean,
    fit,
    plain,
    size_of,
    text_edits,
)

LONG = "expected 32768 B, copies deliver 16384 B; " * 40


def many(count: int, text: str = LONG) -> list[Diagnostic]:
    return [
        error(
            "data/race", "data", f"{i}: {text}", Span(line=i + 1, col=3), contract=text,
            related=tuple(Related(span=Span(line=1, col=1), message=text) for _ in range(9)),
            evidence=tuple(Step(text=text, span=Span(line=2, col=1)) for _ in range(20)),
            fixes=(Fix(title="f", edits=(Edit(span=Span(line=1, col=1, end_line=1, end_col=1), new="x"),)),),
        )
        for i in range(count)
    ]  # fmt: skip


def test_clean_removes_control_and_direction_characters_and_keeps_newlines_and_tabs() -> None:
    assert clean("a\x1b[31mb\x00\u202ec\td\ne") == "a [31mb  c\td\ne"
    assert clean("x" * 50, 10) == "x" * 9 + "…"
    assert clean("a\ud800b") == "a b", "half a character cannot be sent"


def test_plain_makes_json_of_awkward_values() -> None:
    got = plain({"inf": math.inf, "nan": math.nan, "b": b"abc", "s": {2, 1}, "d": Span(line=1, col=2)})
    assert got["inf"] == "inf" and got["nan"] == "nan" and got["b"] == "<3 bytes>" and got["s"] == [1, 2]
    assert got["d"] == {"line": 1, "col": 2, "end_line": 0, "end_col": 0}


def test_every_status_has_an_exit_code() -> None:
    statuses = set(Result.model_fields["status"].annotation.__args__)  # type: ignore[union-attr]
    assert statuses == set(EXIT_CODES)
    assert {s for s, code in EXIT_CODES.items() if code == 1} == {"rejected", "failed"}


@pytest.mark.parametrize(("detail", "budget"), [("concise", CONCISE_BYTES), ("detailed", DETAILED_BYTES)])
def test_a_flood_of_findings_fits_and_is_counted(detail: str, budget: int) -> None:
    empty = Result(summary="s", status="rejected")
    result = add_diagnostics(empty, many(200), "line\n" * 300, detail)  # type: ignore[arg-type]
    fit(result, detail)  # type: ignore[arg-type]
    assert size_of(result.compact()) <= budget
    assert result.total == 200 and len(result.diagnostics) <= MAX_DIAGNOSTICS
    assert len(result.diagnostics) + sum(result.omitted.values()) == 200
    assert result.diagnostics[0].line == 1, "the first finding stays"


def test_a_large_data_member_is_shortened_and_named() -> None:
    result = fit(Result(summary="s", status="ok", data={"rows": list(range(100_000)), "n": 3}), "detailed")
    assert size_of(result.compact()) <= DETAILED_BYTES
    assert result.data["n"] == 3 and result.data["left_out"] == ["rows"] and result.data["rows"][:3] == [0, 1, 2]


def test_rows_inside_a_member_are_halved_before_the_member_goes() -> None:
    rows = [{"shape": {"M": i}, "time_us": 1.5 * i, "baseline": "cublas"} for i in range(400)]
    result = fit(Result(summary="s", status="ok", data={"bench": {"rule": "r", "shapes": rows}, "n": 3}))
    assert size_of(result.compact()) <= CONCISE_BYTES
    assert result.data["bench"]["shapes"][0] == rows[0] and len(result.data["bench"]["shapes"]) > 20
    assert result.data["left_out"] == ["bench.shapes"] and result.data["bench"]["rule"] == "r"


def test_duplicates_are_one_finding_and_errors_come_first() -> None:
    warn = Diagnostic(rule="advice/x", family="advice", severity="warning", message="w", span=Span(line=1, col=1))
    bad = error("data/race", "data", "e", Span(line=9, col=1))
    result = add_diagnostics(Result(summary="s", status="rejected"), [warn, bad, bad], "a\n" * 9, "concise")
    assert [d.rule for d in result.diagnostics] == ["data/race", "advice/x"] and result.total == 2


def test_text_form_has_one_line_per_finding() -> None:
    result = add_diagnostics(Result(summary="s", status="rejected", ids={"ir_id": "ir_0"}), many(2, "m"), "", "concise")
    result.artifacts = [Artifact(uri="cake://artifact/v_0/ledger", kind="ledger", bytes=3, lines=1)]
    lines = result.text().split("\n")
    assert lines[1].startswith("1:3: error[data/race]: 0: m") and lines[2].startswith("2:3: ")
    assert "ids: ir_id=ir_0" in lines and any(line.startswith("artifact: cake://") for line in lines)


# ---- span edits to exact edits ------------------------------------------------------------------------------------


def spans(line: int, col: int, end_line: int, end_col: int, new: str) -> Edit:
    return Edit(span=Span(line=line, col=col, end_line=end_line, end_col=end_col), new=new)


def test_an_insertion_at_a_repeated_line_becomes_a_unique_edit() -> None:
    text = "a\nwait(x)\nb\nwait(x)\nc\n"
    edits = text_edits(text, Fix(title="", edits=(spans(4, 1, 4, 1, "new\n"),)))
    assert edits is not None and text.count(edits[0].old) == 1
    assert apply_edits(text, edits) == "a\nwait(x)\nb\nnew\nwait(x)\nc\n"


def test_edits_outside_the_text_are_not_offered() -> None:
    assert text_edits("a\n", Fix(title="", edits=(spans(9, 1, 9, 2, "x"),))) is None
    assert text_edits("a\n", Fix(title="", edits=(spans(1, 7, 1, 8, "x"),))) is None


@given(st.lists(st.sampled_from(["wait(f)", "", "load", "  x"]), min_size=1, max_size=8), st.data())
def test_exact_edits_do_what_the_spans_say(lines: list[str], data: st.DataObject) -> None:
    text = "\n".join(lines)
    line = data.draw(st.integers(1, len(lines)))
    start = data.draw(st.integers(0, len(lines[line - 1])))
    end = data.draw(st.integers(start, len(lines[line - 1])))
    new = data.draw(st.sampled_from(["", "y", "y\nz"]))
    edits = text_edits(text, Fix(title="", edits=(spans(line, start + 1, line, end + 1, new),)))
    assert edits is not None
    changed = list(lines)
    changed[line - 1] = lines[line - 1][:start] + new + lines[line - 1][end:]
    if text:
        assert apply_edits(text, edits) == "\n".join(changed)


def test_a_failed_step_stands_first_and_outlives_the_facts_of_the_build() -> None:
    from server.steps import joined

    build = Result(summary="compiled", status="passed")
    build.data = {"instructions": {f"OP{i}": i for i in range(300)}, "notes": ["x" * 900], "blocks_per_sm": 4}
    case = {"shape": {"M": 1}, "cause": "mismatch", "message": "m" * 300, "worst": {"index": [0], "got": 0.0}}
    part = Result(summary="wrong", status="failed", data={"counts": {"failed": 2}, "failed": [case, case]})
    got = fit(joined(build, "check-cpu", part), "concise")
    assert next(iter(got.data)) == "check_cpu" and got.data["check_cpu"]["failed"] == [case, case]
    assert size_of(got.compact()) <= CONCISE_BYTES and "instructions" in got.data["left_out"]


@pytest.mark.parametrize("letter", ["x", "é", "漢", "\u202e", "\ud800"])
def test_an_error_fits_whatever_it_carries(letter: str) -> None:
    stood = [letter * 260] * 50
    at = {"kernel": letter * 3_000, "shape": {f"{letter * 300}{i}": 2**40 for i in range(60)}}
    ids = {"failure_id": "f_" + "0" * 32}
    got = EngineError(
        "worker/hung", letter * 5_000, "report it " + letter * 5_000, ids, {"at": at, "stood": stood}
    ).result()
    assert size_of(got.compact()) <= CONCISE_BYTES and "\u202e" not in json.dumps(got.compact(), ensure_ascii=False)
    assert got.next.startswith("report it") and got.ids == ids
    assert got.data or letter == "漢", "evidence goes only where the sentences alone fill the answer"
