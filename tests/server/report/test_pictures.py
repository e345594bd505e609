"""Plots and timeline pictures: the same bytes twice, every value there, sizes bounded, nothing active in them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from corpus.contract import contracts
from server.report import collect, picture, plots, profiles, svg
from server.report.model import Timing
from tests.server.report.samples import GEMM, HOSTILE, line_of, profile

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def timings() -> tuple[Timing, ...]:
    return collect.committed(contracts(), generated="now").timings


def test_plots_are_the_same_bytes_twice_and_carry_no_date(timings: tuple[Timing, ...]) -> None:
    for draw in (lambda: plots.roofline(timings), lambda: plots.spread(timings, "s", "all")):
        first, second = draw(), draw()
        assert first is not None and second is not None and first.svg == second.svg
        assert not re.search(r"style=|<style|<metadata|xmlns:dc|matplotlib\.org|https?://(?!www\.w3\.org/)", first.svg)


def test_the_roofline_names_every_point_and_its_roofs(timings: tuple[Timing, ...]) -> None:
    drawn = plots.roofline(timings)
    assert drawn is not None and len(drawn.points) == len(timings)
    text = " ".join(e.text or "" for e in ET.fromstring(drawn.svg).iter(f"{SVG}text"))
    assert "bf16 989.4 TFLOP/s" in text and "memory 4.8 TB/s" in text
    assert drawn.svg.count("<title>") == len(timings) and "of its roof" in drawn.points[0][1]


def test_wrong_results_have_no_point_and_neighbours_share_a_label(timings: tuple[Timing, ...]) -> None:
    one = next(t for t in timings if t.subject.kernel == "softmax")
    assert plots.roofline([replace(one, verdict="incorrect"), replace(one, verdict="invalid")]) is None
    drawn = plots.roofline([one] * 5)
    assert drawn is not None
    assert [e.text for e in ET.fromstring(drawn.svg).iter(f"{SVG}text") if e.text == "1 to 5"] == ["1 to 5"]
    assert "mathdefault" not in drawn.svg


def test_roofs_are_the_data_sheets() -> None:
    found = plots.roofs("sm_90a", ["bf16", "f32"])
    assert found is not None and found.bytes_per_s == 4.8e12
    assert found.flops_per_s["bf16"] == pytest.approx(989.4e12, rel=1e-3)
    assert found.flops_per_s["f32"] == pytest.approx(132 * 128 * 2 * 1.83e9)
    assert plots.roofs("sm_1", ["bf16"]) is None and plots.roofline([]) is None and plots.spread([], "s", "x") is None


def test_every_sample_is_drawn(timings: tuple[Timing, ...]) -> None:
    one = [t for t in timings if t.subject.kernel == "softmax"]
    drawn = plots.spread(one, "s", "softmax")
    assert drawn is not None
    contenders = [c for t in one if t.candidate for c in (t.candidate, *(x.baseline for x in t.comparisons))]
    groups = {g.get("id"): g for g in ET.fromstring(drawn.svg).iter(f"{SVG}g")}
    for n, c in enumerate(contenders):
        assert len(list(groups[f"s-row{n}"].iter(f"{SVG}use"))) == len(c.samples_us)


def timeline(**more: Any) -> dict[str, Any]:
    return profile(**more)["timeline"]


def test_the_overview_shows_representative_ctas_and_every_span() -> None:
    t = timeline(ctas=8, steps=10)
    chosen = picture.choose(t["tracks"])
    starts = {c: min(x["start_us"] for x in t["tracks"] if x["cta"] == c) for c in range(8)}
    ends = {c: max(x["end_us"] for x in t["tracks"] if x["cta"] == c) for c in range(8)}
    assert (
        len(chosen) == 3
        and min(starts, key=lambda c: starts[c]) in chosen
        and max(ends, key=lambda c: ends[c]) in chosen
    )
    drawn = picture.overview(t)
    assert drawn is not None and (drawn.lanes, drawn.recorded) == (9, 24)
    root = ET.fromstring(drawn.svg)
    rects = [r for g in root.iter(f"{SVG}g") if g.get("class") == "spans" for r in g]
    assert len(rects) == sum(len(x["spans"]) for x in t["tracks"] if x["cta"] in chosen)
    title = rects[0].find(f"{SVG}title")
    assert title is not None and re.match(r"\w+, line \d+: \w+, [\d.]+ us \(", title.text or "")


def test_narrow_spans_are_put_together_without_losing_time() -> None:
    t = timeline(ctas=2, steps=3000)
    whole = t["kernel_us"]
    lanes = picture.lanes(t, [0], (0.0, whole), whole / 500)
    track = next(x for x in t["tracks"] if x["cta"] == 0 and x["role"] == "math" and x["instance"] == 0)
    lane = next(x for x in lanes if x.role == "math" and x.instance == 0)
    assert len(lane.spans) < 1100 < len(track["spans"])
    assert sum(us for s in lane.spans for _, us in s.parts) == pytest.approx(sum(b - a for _, a, b in track["spans"]))
    assert sum(s.count for s in lane.spans) == len(track["spans"])
    drawn = picture.overview(t, budget=900)
    assert drawn is not None and drawn.svg.count("<rect") <= 900 and "drawn together" in drawn.caption


def test_a_long_timeline_has_a_window_with_every_span() -> None:
    drawn = picture.detail(timeline(steps=400))
    assert drawn is not None and "every span" in drawn.caption and 60 < drawn.svg.count("<rect") <= 900
    assert picture.detail(timeline(steps=20)) is None


def test_hostile_names_in_a_timeline_are_escaped() -> None:
    t = timeline(steps=2)
    for x in (*t["tracks"], *t["marks"], *t["roles"], *t["lines"]):
        x["role"] = HOSTILE
    for m in t["marks"]:
        m["ops"] = [HOSTILE]
    drawn = picture.overview(t)
    assert drawn is not None
    for text in (drawn.svg, picture.role_bars(t["roles"], whole_us=t["kernel_us"])):
        tags = {e.tag for e in ET.fromstring(text).iter()}
        assert not tags & {f"{SVG}script", f"{SVG}image", f"{SVG}foreignObject"} and "<img" not in text


def test_axis_ticks_are_round() -> None:
    drawn = picture.overview(timeline(steps=40))
    assert drawn is not None
    ticks = [
        float(e.text or "x") for e in ET.fromstring(drawn.svg).iter(f"{SVG}text") if "tick" in (e.get("class") or "")
    ]
    assert ticks == sorted(ticks) and len(ticks) >= 3 and all((x * 1000) % 1 == 0 for x in ticks)


def test_lines_get_time_samples_and_heat() -> None:
    p = profile()
    found = {x.number: x for x in profiles.source_lines(GEMM, p["timeline"], p["summary"])}
    hot = found[line_of("wgmma(acc, a_s[n]")]
    assert (
        hot.heat == 1.0
        and hot.samples == 420
        and hot.stalls == "math pipe 400, wait 20"
        and hot.kind == "compute (math)"
    )
    assert found[1].us is None and found[1].heat == 0 and len(found) == len(GEMM.rstrip().split("\n"))


def test_samples_of_several_roles_at_one_line_add_up() -> None:
    rows = [{"line": 3, "role": r, "samples": 5, "stalls": {"wait": 5}} for r in "ab"] + [
        {"line": 4, "us": 1.0},
        {"line": "x"},
        None,
    ]
    assert profiles.stalls_by_line(rows) == {3: (10, "wait 10")} and profiles.stalls_by_line("no") == {}


def test_profiles_are_compared_by_what_lines_say() -> None:
    moved = "\n\n" + GEMM
    slow = profile(slow=1.6, seed=1)
    for e in slow["timeline"]["lines"]:
        e["line"] += 2
    a, b = profiles.view(profile(), GEMM), profiles.view(slow, moved)
    first = profiles.line_changes(a, b)[0]
    at = line_of("wait(free[n - STAGES])")
    assert (first.text, first.first_line, first.second_line) == ("wait(free[n - STAGES])", at, at + 2)
    assert first.delta > 0 and first.relative == pytest.approx(0.6, abs=0.1)
    assert profiles.role_changes(a, b)[0].what == "producer: wait"


def test_what_a_profile_lacks_is_said() -> None:
    p = {
        **profile(),
        "timeline": {"unavailable": "no marks"},
        "counters": {"unavailable": "ncu: no permission"},
        "summary": "said",
    }
    v = profiles.view(p, "")
    assert (v.no_timeline, v.no_counters, v.sentence, v.lines, v.bound) == (
        "no marks",
        "ncu: no permission",
        "said",
        (),
        "",
    )
    with pytest.raises(ValueError, match="not of the form"):
        profiles.view({"timeline": {"tracks": [{}]}}, "")


def test_inlined_figures_are_passive_and_prefixed() -> None:
    raw = (
        '<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="9"><metadata/>'
        '<style>*{}</style><g id="g1"><path clip-path="url(#c)" style="fill: #0072b2; stroke: #123456; opacity: 0.123456"/>'
        '<use xlink:href="#c" style="stroke: #000000"/></g></svg>'
    )
    out = svg.inline(raw, prefix="p", label='a "b"', titles={"g1": "<t>"})
    assert (
        "style" not in out
        and "metadata" not in out
        and 'id="p-g1"' in out
        and "url(#p-c)" in out
        and 'href="#p-c"' in out
    )
    assert (
        'class="f-c0"' in out
        and 'stroke="#123456"' in out
        and 'opacity="0.12"' in out
        and "<title>&lt;t&gt;</title>" in out
    )
