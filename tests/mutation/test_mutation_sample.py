"""The mutation engine itself, a seeded sample of its run, and the judge judged. The full run is `python3 dev.py mutation`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from analyses import verify
from cake_ir import content_id, parse, print_file
from cake_ir.diagnostics import Diagnostic, Span, Subject
from tests.mutation import run
from tests.mutation.corrupt import BLIND, try_value, try_verifier, users
from tests.mutation.evaluate import evaluate, outcome, placed, subject_named
from tests.mutation.explained import EDIT_LAWS, LAWS, law
from tests.mutation.judge import judge
from tests.mutation.mutants import Entry, entries, file_of, mutations, text_of
from tests.mutation.operators import KINDS, SYNC_OPS, Editor, relocated
from tests.mutation.report import by_kind, summary, table
from tests.mutation.subjects import subjects
from tests.mutation.tree import get, nodes, places, plus, put

SEED = 20
CHEAP = ("corpus/gemm_sm80", "corpus/softmax", "sketch/02_kmeans_sm90/kmeans_assign")


@pytest.fixture(scope="module")
def plan() -> list[Entry]:
    """All mutants of three cheap subjects."""
    return [e for name in CHEAP for e in entries(subject_named(name))]


# ---- the edits -------------------------------------------------------------------------------------------------------


def test_ids_are_unique_and_not_the_original(plan: list[Entry]) -> None:
    assert len({e.id for e in plan}) == len(plan) > 1000
    assert not {e.id for e in plan} & {s.id for s in subjects()}


def test_the_kinds_are_all_there(plan: list[Entry]) -> None:
    assert {e.kind for e in plan} == set(KINDS)
    assert {e.op for e in plan if e.kind == "drop"} >= {
        "wait",
        "arrive",
        "expect",
        "sync",
        "cp_async_wait",
        "wgmma_wait",
    }


@pytest.mark.parametrize("name", CHEAP)
def test_mutants_print_and_parse_to_the_edited_tree(name: str) -> None:
    for m in list(mutations(subject_named(name)))[::37]:
        parsed = parse(text_of(m))
        assert parsed.file == file_of(m), m.what
        for path in m.marks:
            assert get(m.kernel, path) is not None, m.what


def test_moves_keep_every_statement() -> None:
    kernel = subject_named("corpus/gemm_sm90").tree
    before = Counter(repr(p.node) for p in places(kernel) if not hasattr(p.node, "body"))
    moves = [m for m in mutations(subject_named("corpus/gemm_sm90")) if m.kind == "move"]
    assert len(moves) > 300
    for m in moves[::29]:
        after = Counter(repr(p.node) for p in places(m.kernel) if not hasattr(p.node, "body"))
        assert after == before, m.what


def test_relocation_across_blocks_gives_the_new_path() -> None:
    ed = Editor(subject_named("corpus/gemm_sm90").tree)
    wait = next(p for p in ed.places if print_of(p.node) == "wait(full)")
    kernel, now, gap = relocated(ed.kernel, wait.path, ("body",), 0)
    assert get(kernel, now) == wait.node and now == ("body", 0)
    assert get(kernel, gap) != wait.node
    kernel, now, _ = relocated(ed.kernel, wait.path, wait.block, len(get(ed.kernel, wait.block)))
    assert get(kernel, now) == wait.node


def print_of(s: object) -> str:
    """A call statement in short form."""
    from tests.mutation.operators import short

    return short(s)


@pytest.mark.parametrize(("text", "by", "want"), [
    ("n", 1, "n + 1"), ("n - S", 1, "n - S + 1"), ("n + 1", -1, "n"), ("n - 1", -1, "n - 2"), ("0", -1, "-1"), ("3", 1, "4"),
])  # fmt: skip
def test_plus_folds(text: str, by: int, want: str) -> None:
    head = "@kernel(target='sm_90a')\ndef f():\n    x = "
    file = parse(head.replace("'", '"') + text + "\n").file
    assert file is not None
    value = file.kernels[0].body[0].value  # type: ignore[union-attr]
    edited = put(file, ("kernels", 0, "body", 0, "value"), plus(value, by))
    assert print_file(edited).rstrip().endswith(f"x = {want}")


# ---- a sample of the run ---------------------------------------------------------------------------------------------


def test_sample_has_no_false_accept(plan: list[Entry]) -> None:
    chosen = run.sample([e for e in plan if e.sync], 14, SEED)
    records = [evaluate(e.subject, e.index, e.id, fixes=False) for e in chosen]
    bad = [r for r in records if r.outcome in ("false accept", "unexplained reject", "verifier crash", "undecided")]
    assert not bad, [(r.subject, r.what, r.outcome, r.rules, r.judge_message) for r in bad]
    assert sum(r.outcome == "true reject" for r in records) >= 5
    assert all(r.findings and r.at for r in records if r.rules)


def test_unmutated_subjects_pass_verifier_and_judge() -> None:
    for name in CHEAP:
        s = subject_named(name)
        bound = s.bound(s.bindings[0])
        assert verify(bound).accepted
        j = judge(bound, s.launches, ordered=s.ordered)
        assert j.state == "passed" and j.runs >= 7, j


def test_a_dropped_wait_is_a_true_reject_at_its_place(plan: list[Entry]) -> None:
    e = next(e for e in plan if e.what == "drop wait(full)")
    r = evaluate(e.subject, e.index, e.id, fixes=False)
    assert r.outcome == "true reject" and r.where in ("edit", "counterpart") and r.sync
    assert r.judge in ("fault", "schedule", "wrong") and r.judge_message


def test_sample_is_stratified_and_seeded(plan: list[Entry]) -> None:
    a, b = run.sample(plan, 60, 3), run.sample(plan, 60, 3)
    assert a == b and a != run.sample(plan, 60, 4)
    assert sum(e.sync for e in a) >= 30
    assert len({e.kind for e in a}) >= 15
    assert run.sample(plan, 0, 3) == plan


def test_shards_cover_the_plan_once(plan: list[Entry]) -> None:
    parts = [run.shard(plan, f"{i}/3") for i in (1, 2, 3)]
    assert sorted(e.id for p in parts for e in p) == sorted(e.id for e in plan)
    assert all(parts)
    with pytest.raises(ValueError, match="I/N"):
        run.shard(plan, "4/3")


def test_run_resumes_from_its_log_and_writes_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], plan: list[Entry]
) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "mutation.json"
    argv = [
        "--jobs",
        "1",
        "--kernel",
        "corpus/softmax",
        "--limit",
        "6",
        "--log",
        str(log),
        "--no-fixes",
        "--no-judge-test",
    ]
    run.main([*argv, "--write", str(out)])
    lines = log.read_text().splitlines()
    assert len(lines) == 6
    log.write_text("\n".join(lines) + '\n{"id": "torn')
    capsys.readouterr()
    run.main(argv)
    assert "6 already logged" in capsys.readouterr().err
    written = json.loads(out.read_text())
    assert written["kind"] == "mutation" and written["commit"] and written["seed"] == 1
    records = [json.loads(x) for x in lines]
    assert written["mutants"] == sum(r["outcome"] != "refused" for r in records)
    assert {r["id"] for r in records} <= {e.id for e in plan}


# ---- where a finding is ----------------------------------------------------------------------------------------------


def test_placing_of_findings(plan: list[Entry]) -> None:
    m = next(m for m in mutations(subject_named("corpus/gemm_sm90")) if m.what == "drop wait(full)")
    file = parse(text_of(m)).file
    assert file is not None
    wgmma = next(p.node for p in places(file.kernels[0]) if print_of(p.node).startswith("wgmma("))
    load = next(p.node for p in places(file.kernels[0]) if print_of(p.node).startswith("role("))

    def finding(span: Span, resource: str | None = None) -> Diagnostic:
        return Diagnostic(
            rule="x/y", family="safety", severity="error", message="", span=span, subject=Subject(resource=resource)
        )

    assert placed(finding(wgmma.span), m, file) == "edit"  # it stands where the wait stood
    assert placed(finding(load.span), m, file) == "elsewhere"
    assert placed(finding(load.span, resource="full"), m, file) == "counterpart"


def test_outcome_table() -> None:
    assert outcome(True, "passed") == "true accept"
    assert outcome(True, "fault") == "false accept"
    assert outcome(True, "wrong") == "other function"
    assert outcome(False, "timeout") == "true reject"
    assert outcome(False, "passed") == "unexplained reject"
    assert outcome(False, "passed", "hardware/tma-box") == "explained reject"
    assert outcome(False, "crash") == "undecided"


def test_laws_explain_only_what_they_name() -> None:
    assert law(["a/b", "hardware/tma-box"]) == "hardware/tma-box"
    assert law(["data/read-before-arrival"]) is None
    assert law(["data/read-before-arrival"], "role", "wait", "wait(full) by one thread") == "wait by one thread"
    assert law(["data/read-before-arrival"], "drop", "wait", "drop wait(full)") is None
    assert law(["sync/deadlock"], "role", "wait", "wait(full) by one thread") is None


def test_laws_name_rules_and_sources() -> None:
    from analyses.rules import registry

    unknown = (set(LAWS) | {r for e in EDIT_LAWS.values() for r in e.rules}) - set(registry())
    assert not unknown
    assert all(entry.source and entry.why for entry in (*LAWS.values(), *EDIT_LAWS.values()))


def test_report_counts() -> None:
    base = {
        "id": "ir_1", "subject": "s", "kind": "drop", "op": "wait", "sync": True, "outcome": "true reject", "rules": ["a/b"],
        "findings": 2, "where": "edit", "fix": True, "law": "", "verify_ms": 3.0,
    }  # fmt: skip
    records = [
        base,
        {**base, "id": "ir_2", "where": "elsewhere", "fix": False},
        {**base, "id": "ir_3", "outcome": "refused", "rules": []},
        {**base, "id": "ir_4", "outcome": "false accept", "rules": []},
    ]
    s = summary(records)
    assert (s["mutants"], s["refused_by_binder"], s["false_accepts"], s["true_rejects"]) == (3, 1, 1, 2)
    assert (s["median_findings"], s["span_on_edit"], s["fix_offered"]) == (2, 0.5, 0.5)
    assert by_kind(records)["drop"]["mutants"] == 3
    assert "drop" in table(records)


# ---- the judge judged ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["wait", "cp_async_wait", "sync", "wgmma_wait", "bulk_wait_read", "fence_async"])
def test_an_op_without_effect_in_the_value_machine_is_a_false_accept(op: str) -> None:
    trial = try_value(op)
    assert trial.found, trial


@pytest.mark.parametrize("op", ["wait", "cp_async_wait", "expect"])
def test_a_blind_verifier_gives_false_accepts(op: str) -> None:
    trial = try_verifier(op)
    assert trial.found, trial


def test_every_synchronisation_op_is_used_or_listed_as_blind() -> None:
    assert {op for op in SYNC_OPS if not users(op)} <= set(BLIND)


def test_content_ids_are_those_of_the_text() -> None:
    m = next(mutations(subject_named("corpus/softmax")))
    file = parse(text_of(m)).file
    assert file is not None and content_id(file) == content_id(file_of(m))
    assert sum(1 for _ in nodes(file)) > 50
