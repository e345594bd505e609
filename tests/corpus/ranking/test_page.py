"""Page and pictures say what the figures say, the same each time, and the committed ones follow from the committed points."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest

from corpus.ranking import figures, page, plots, points
from corpus.ranking import statistics as stats
from corpus.ranking.points import Point
from corpus.ranking.predict import ROOFLINE, WHOLE, Prediction


def made() -> tuple[dict[str, Any], list[figures.At], dict[Any, float]]:
    """Figures of two shapes of one workload."""
    rows = []
    for n, times in ((64, (10.0, 11.0, 14.0, 9.0)), (128, (30.0, 20.0, 25.0, 41.0))):
        shape = (("M", n), ("N", 8))
        kept = tuple(Point("gemm", shape, f"g<{i}>", "gemm_sm90", {"BN": i}, us, i) for i, us in enumerate(times))
        rows.append(figures.At("gemm", shape, kept, (), 0.01))
    said = {
        p.key: Prediction(p.us * (1.1 if i else 1.25), p.us, 2 * p.us, "hbm")
        for i, r in enumerate(rows)
        for p in r.points
    }
    ablated = {a: figures._ablation(rows, said) for a in (WHOLE, "ring", ROOFLINE)}
    whole = figures.summary(rows, said)
    found = {
        **whole, "device": "NVIDIA H200", "driver": "580", "compiler": "NVRTC 13.5", "date": "2026-11-30T12:00:00Z", "seed": 6,
        "l2": "warm", "source": "corpus/results/ranking/test.json",
        "workloads": {"gemm": whole}, "per_shape": [figures.at_shape(r, said) for r in rows],
        "left_out": [], "neighbours": figures.neighbours(rows, said), "ablation": ablated,
    }  # fmt: skip
    return found, rows, {k: q.us for k, q in said.items()}


def test_the_page_holds_the_figures() -> None:
    found, _rows, _times = made()
    assert (
        found["error_median"] == pytest.approx(0.175) and found["coverage"] == 1.0 and found["spearman_median"] == 1.0
    )
    # four candidates that differ in BN alone: six pairs a shape
    assert found["neighbours"] == {"pairs": 12, "right": 12, "apart": 0.03}
    text = page.section(found)
    assert "| gemm | 8 | 2 | 1.000 (1.000) | 0.0 % (0.0 %) | 100 % | 17.5 % (25.0 %) | 100 % |" in text
    assert text == page.section(made()[0]) and "everything but the rates" in text
    assert "No test set" in page.section(None)


def test_pictures_are_whole_and_the_same_each_time() -> None:
    found, rows, times = made()
    for draw in (plots.error, plots.ranking):
        svg = draw(rows, times, ["gemm"], "a < b")
        assert svg == draw(rows, times, ["gemm"], "a < b")
        assert (
            sum(e.tag.endswith("circle") and e.get("fill-opacity") is not None for e in ET.fromstring(svg).iter()) == 8
        )
    bars = plots.ablation(found["ablation"], "terms")
    assert sum(e.tag.endswith("rect") for e in ET.fromstring(bars).iter()) == 1 + 2 * 3 and "without ring" in bars


def test_an_axis_keeps_what_lies_outside_on_its_edge() -> None:
    axis = plots.Axis(1, 100, 0, 200, log=True)
    assert [axis.at(v) for v in (0.5, 1, 10, 100, 1000)] == pytest.approx([0, 0, 100, 200, 200])


def test_the_committed_figures_follow_from_the_committed_points() -> None:
    assert figures.held() == []


@pytest.mark.parametrize("name", ["development", "test"])
def test_committed_points_are_compact_and_each_shape_has_enough_of_them(name: str) -> None:
    assert points.path(name).stat().st_size < 1_500_000
    found = points.read(name)
    near = [r for r in figures.shapes(found) if r.points]
    assert len(near) >= 0.8 * len(found.shapes)
    for r in near:
        us = [p.us for p in r.points]
        assert len(us) >= stats.LEAST and sum(t <= stats.NEAR * min(us) for t in us) * 2 >= len(us)
