"""Every bound class from one profile of chosen numbers, and what a summary says with more or less to go by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corpus.profiling import RULES, Summary, summarise
from tests.corpus.profiling.synthetic import FACTS, SASS, metrics, profile, rows, timeline

HALF = {"elapsed_cycles": 1000.0, "active_cycles": 950.0}
QUIET = metrics(tensor=30, alu=10, fma=5, issue=20, dram=30, l2=25, smem=20, occupancy=75, **HALF)
IDLE = (0, 0, 20, 5, 0, 0, 10, 0, 60, 5, 0, 0)


def counted(instructions: list[dict[str, Any]] | None = None, **values: float) -> dict[str, Any]:
    return {"metrics": {**QUIET, **metrics(**values)}, "instructions": instructions or rows(*IDLE, reason="wait")}


PROFILES: dict[str, tuple[dict[str, Any], str]] = {
    "launch": (profile(timeline=timeline(kernel_us=100.0, instrumented_us=160.0)), "no CTA runs for 38 % of the time"),
    "tail": (profile(counters=counted(active_cycles=600.0)), "SMs stand without a CTA for 40 %"),
    "tensor": (profile(counters=counted(tensor=86.0)), "tensor pipe busy 91 %"),
    "memory": (profile(counters=counted(dram=88.0)), "device memory busy 88 %"),
    "issue": (profile(counters=counted(alu=70.0)), "integer and logic pipe busy 74 %"),
    "barrier wait": (profile(counters=counted(), timeline=timeline(wait=38.0)), "math, which waits the least, waits 38 %"),
    "occupancy": (profile(counters=counted(rows(*IDLE), occupancy=18.0)), "18 % of the warps"),
    "latency": (profile(counters=counted()), "no unit is near its peak; the busiest: tensor pipe busy 32 %"),
}  # fmt: skip


@pytest.mark.parametrize("bound", PROFILES)
def test_each_class_is_reached_by_its_rule(bound: str) -> None:
    given, evidence = PROFILES[bound]
    found = summarise(given, SASS, FACTS)
    assert found.bound == bound and evidence in found.why and f"bound by {bound}" in found.sentence()


def test_the_classes_are_those_of_the_rules_and_each_is_documented() -> None:
    assert set(PROFILES) == {r.bound for r in RULES}
    page = (Path(__file__).parents[3] / "docs/measuring.md").read_text()
    missing = [r.bound for r in RULES if f"| {r.bound} | {r.text} |" not in page]
    assert not missing, "the table of docs/measuring.md says what corpus.profiling.limiters.RULES says"


def test_limiters_are_the_costliest_lines_of_the_role_that_waits_the_least() -> None:
    given = profile(counters=counted(tensor=86.0), timeline=timeline(wait=15.0))
    found = summarise(given, SASS, FACTS)
    assert found.basis == "counters and timeline" and found.overhead == 0.04
    assert [(x.line, x.op, x.role, x.us) for x in found.limiters] == [
        (5, "wgmma", "math", 65.0), (6, "elementwise", "math", 20.0), (4, "wait", "math", 15.0),
    ]  # fmt: skip
    assert found.limiters[0].evidence.startswith(
        "math spends 65 % of its time at line 5 product; tensor pipe busy 91 %"
    )
    assert "100 % of 60 samples wait for a fixed latency" in found.limiters[0].evidence
    assert found.limiters[2].evidence.startswith("math waits 15 % of its time at line 4 math waits")
    assert sum(x.share for x in found.limiters) == pytest.approx(1.0)


def test_a_span_over_several_lines_is_named_by_the_line_with_most_samples() -> None:
    spans = timeline(wait=15.0)
    spans["lines"] = [x for x in spans["lines"] if x["line"] not in (5, 6)]
    spans["lines"].insert(0, {"line": 4, "end_line": 6, "role": "math", "kind": "compute", "ops": ["arrive", "wgmma", "elementwise"],
                              "mark": 9, "us": 85.0, "share": 0.85})  # fmt: skip
    found = summarise(profile(counters=counted(tensor=86.0), timeline=spans), SASS, FACTS).limiters[0]
    assert (found.line, found.op, found.us) == (5, "wgmma", 85.0)
    assert found.evidence.startswith(
        "math spends 85 % of its time at lines 4-6, most at 5 product; tensor pipe busy 91 %; 100 % of 65"
    )
    unsampled = summarise(profile(timeline=spans), None, FACTS).limiters[0]
    assert unsampled.line == 4, "without samples the first line that is more than bookkeeping"


def test_samples_behind_a_loop_belong_to_the_span_that_names_their_op() -> None:
    spans = timeline(wait=15.0)
    for x in spans["lines"]:
        if x["line"] == 6:
            x |= {"line": 7, "end_line": 8}  # the span of line 6 begins later in the loop and runs across its end
    found = summarise(profile(counters=counted(), timeline=spans), SASS, FACTS)
    row = next(x for x in found.by_line if x.get("kind") == "compute" and x["line"] == 7)
    assert row["samples"] == 5 and row["site"] == 6 and row["what"] == "arithmetic"


def test_evidence_names_the_unit_that_does_the_work() -> None:
    read = counted(alu=66.0, dram=60.0)
    said = {
        x.line: x.evidence
        for x in summarise(profile(counters=read, timeline=timeline(wait=10.0)), SASS, FACTS).limiters
    }
    assert (
        "integer and logic pipe busy 69 %" in said[6] and "tensor pipe busy 32 %" in said[5] and "busy" not in said[4]
    )
    idle = timeline(wait=95.0, kernel_us=200.0)
    idle["lines"] = [{**x, "us": 1.0} if x["line"] == 2 else x for x in idle["lines"]]
    copies = {x.line: x.evidence for x in summarise(profile(counters=read, timeline=idle), SASS, FACTS).limiters}
    assert "device memory busy 60 %" in copies[3]


def test_lines_and_roles_hold_time_and_samples() -> None:
    given = profile(counters=counted(), timeline=timeline(wait=15.0))
    found = summarise(given, SASS, FACTS)
    line = next(x for x in found.by_line if x["line"] == 5)
    assert line["us"] == 65.0 and line["samples"] == 60 and line["stalls"] == {"wait": 60} and line["what"] == "product"
    math = next(r for r in found.by_role if r["role"] == "math")
    assert math["us"]["wait"] == 15.0 and math["waiting"] == pytest.approx(0.15) and math["samples"] == 75
    assert sum(x.get("samples", 0) for x in found.by_line) == sum(IDLE) and found.unattributed == 0
    assert {(x["line"], x["role"]): x["samples"] for x in found.samples} == {
        (5, "math"): 60, (2, "producer"): 20, (4, "math"): 10, (3, "producer"): 5, (6, "math"): 5,
    }  # fmt: skip


def test_a_low_clock_is_named_with_its_reason() -> None:
    given = profile(counters=counted(tensor=86.0))
    given["shape"]["conditions"] = {"telemetry": {"sm_mhz_mean": 1410.0, "reasons": ["idle", "power cap"]}}
    assert summarise(given, SASS, FACTS).limiters[0].evidence.endswith("SM clock 1.41 GHz of 1.98 under the power cap")
    given["shape"]["conditions"]["telemetry"]["sm_mhz_mean"] = 1965.0
    assert "SM clock" not in summarise(given, SASS, FACTS).sentence()


def test_a_timeline_alone_answers_from_spans_and_the_model() -> None:
    found = summarise(profile(timeline=timeline(wait=40.0)), None, FACTS)
    assert (found.bound, found.basis, found.units_from) == ("barrier wait", "timeline", "model")
    assert found.limiters[0].line in (4, 5) and found.brief == {} and found.notes == ("no counters: no ncu",)
    used = timeline(wait=5.0)
    used["roles"] = [{**r, "busy": 0.6} for r in used["roles"]]
    assert summarise(profile(timeline=used), None, FACTS).bound == "tail"
    few = timeline(wait=5.0, grid=66, slots=66)
    assert summarise(profile(timeline=few), None, FACTS).why == "SMs stand without a CTA for 50 % of the kernel's time"


def test_event_times_alone_are_set_against_the_model_and_say_so() -> None:
    found = summarise(profile(time_us=50.0), None, FACTS)
    assert found.bound == "tensor" and found.why == "tensor pipe needs 40 us of the 50 us measured, by the model"
    assert found.basis == "event times against the model's bounds, no profiler"
    assert [(x.line, x.role) for x in found.limiters] == [(5, "math")] and "predicted, not profiled" in found.limiters[
        0
    ].evidence
    assert summarise(profile(time_us=5.0), None, FACTS).bound == "launch"
    assert summarise(profile(time_us=500.0), None, FACTS).bound == "latency"
    assert found.notes == ("no timeline: not taken", "no counters: no ncu")


def test_a_profile_without_a_time_has_no_summary() -> None:
    given = profile()
    given["shape"] |= {"candidate": None, "verdict": "error"}
    with pytest.raises(ValueError, match="could not be timed"):
        summarise(given, None, FACTS)


def test_the_summary_is_plain_json() -> None:
    import json

    found = summarise(profile(counters=counted(), timeline=timeline()), SASS, FACTS)
    again = json.loads(json.dumps(found.to_json()))
    assert again["sentence"] == found.sentence() and again["limiters"][0]["line"] == 5
    assert set(again) == {*Summary.__dataclass_fields__, "sentence"}
