"""Two profiles side by side."""

from __future__ import annotations

from typing import Any

import pytest

from cake_ir.diagnostics import CakeError
from corpus.profiling import compare, summarise
from corpus.profiling.compare import words
from tests.corpus.profiling.synthetic import FACTS, SASS, metrics, profile, rows, timeline

SOME = rows(0, 0, 20, 5, 0, 0, 10, 0, 60, 5, 0, 0)


def side(**more: Any) -> dict[str, Any]:
    given = profile(**more)
    return {**given, "summary": summarise(given, SASS, FACTS).to_json()}


def counted(**values: float) -> dict[str, Any]:
    return {"metrics": metrics(**values), "instructions": SOME}


def test_a_faster_second_has_a_ratio_above_one_and_its_lines_largest_first() -> None:
    a = side(timeline=timeline(wait=40.0), counters=counted(tensor=50.0, dram=20.0, duration=100.0))
    b = side(
        time_us=80.0,
        timeline=timeline(wait=12.0, kernel_us=80.0),
        counters=counted(tensor=62.0, dram=21.0, duration=80.0),
    )
    found = compare(a, b, name="m_1")
    assert found["ratio"] == pytest.approx(1.25) and found["verdict"] == "faster" and found["reference"] == "m_1"
    low, high = found["ratio_interval"]
    assert low < 1.25 < high and high - low < 0.02
    assert [(x["line"], x["us"], x["delta_us"]) for x in found["lines"][:2]] == [
        ([4, 4], [40.0, 12.0], -28.0), ([2, 2], [90.0, 72.0], -18.0),
    ]  # fmt: skip
    assert found["roles"][0]["role"] == "math" and found["roles"][0]["us"]["wait"] == [40.0, 12.0]
    assert [(m["name"], m["values"]) for m in found["metrics"]] == [
        ("duration", [100.0, 80.0]),
        ("tensor", [50.0, 62.0]),
    ]
    assert words(found).startswith("1.250 x the reference") and "most at math line 4 wait: -28 us" in words(found)


def test_equal_profiles_are_inconclusive() -> None:
    a = side(timeline=timeline())
    found = compare(a, a)
    assert found["ratio"] == 1 and found["verdict"] == "inconclusive" and found["metrics"] == [] == found["notes"]
    assert all(x["delta_us"] == 0 for x in found["lines"]) and "most at" not in words(found)


def test_lines_are_matched_by_role_and_ops_when_numbers_differ() -> None:
    moved = timeline(wait=30.0)
    for x in moved["lines"]:
        x["line"] += 10
    moved["lines"].append(
        {
            "line": 40,
            "end_line": 40,
            "role": "math",
            "kind": "wait",
            "ops": ["wait"],
            "mark": 9,
            "us": 3.0,
            "share": 0.03,
        }
    )
    found = compare(side(timeline=timeline(wait=10.0)), side(timeline=moved))
    pairs = {(x["role"], *x["ops"], x["line"][0]): x["line"][1] for x in found["lines"]}
    assert pairs["math", "wait", 4] == 14 and pairs["producer", "tma_load", 3] == 13
    assert pairs["math", "wait", None] == 40, "the second wait has no partner"
    alone = next(x for x in found["lines"] if x["line"] == [None, 40])
    assert alone["us"] == [None, 3.0] and alone["delta_us"] == 3.0
    assert "line 4 -> 14 wait: +20 us" in words({**found, "lines": [x for x in found["lines"] if x["line"] == [4, 14]]})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"device": {"name": "B200", "sms": 148}}, "device H200 and B200"),
        ({"contract": "other"}, "contract c and other"),
        ({"contract_digest": "ct_2"}, "contract version ct_1 and ct_2"),
    ],
)
def test_nonsense_is_refused_unless_asked_for(change: dict[str, Any], says: str) -> None:
    a, b = side(), side(**change)
    with pytest.raises(CakeError, match=says) as caught:
        compare(a, b)
    assert caught.value.diagnostic.rule == "profile/not-comparable"
    assert compare(a, b, force=True)["notes"] == [says]


def test_another_shape_or_element_type_is_refused() -> None:
    a, b = side(), side()
    b["shape"].update(shape={"M": 16}, dtypes={"a": "f16"})
    with pytest.raises(CakeError, match="shape M=8 and M=16; element types a=bf16 and a=f16"):
        compare(a, b)


def test_a_side_without_a_valid_time_is_refused_whatever_is_asked() -> None:
    bad = side(passed=False)
    bad["shape"] |= {"verdict": "invalid", "message": "throttled"}
    with pytest.raises(CakeError, match="the profile has no valid time or no summary: throttled"):
        compare(side(), bad, force=True)


def test_clocks_that_explain_the_ratio_are_named() -> None:
    a, b = side(), side(time_us=95.0)
    for given, mhz in ((a, 1800.0), (b, 1900.0)):
        given["shape"]["conditions"] = {"telemetry": {"sm_mhz_mean": mhz}}
    assert compare(a, b)["notes"] == ["mean SM clocks differ: 1800 and 1900 MHz explain a ratio of 1.056"]
