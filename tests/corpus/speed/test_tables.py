"""The speed tables: their records, their page, and what recording refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cake_ir.diagnostics import CakeError
from corpus import rebuild
from corpus.speed import model, ours, page, record, shapes, timing
from corpus.speed.run import FILE
from corpus.speed.tables import CUBLAS, TRITON

ROOT = Path(__file__).resolve().parents[3]
VERDICTS = {0.9: "slower", 1.0: "inconclusive", 1.5: "faster"}


def row(ratio: float | None, **more: Any) -> dict[str, Any]:
    ours_time = {"name": timing.OURS, "us": 10.0, "samples_us": [10.0] * 9, "sm_mhz": 1700.0,
                 "checked": {"rows": 8, "unwritten": 0, "outside": 0, "wrong": 0, "ties": 1, "worst": 0.25, "ok": True}}  # fmt: skip
    program = {"kernel": "kmeans_packed", "content_id": "ir_x", "variant_id": "v_x", "contract": "kmeans_assign", "contract_digest": "ct_x",
               "target": "sm_90a", "bindings": {}, "compiler": "NVRTC 13.5", "cubin_sha256": "0" * 64}  # fmt: skip
    shape = {"B": 1, "N": 128, "C": len(str(ratio)), "D": int(100 * (ratio or 9))}
    if ratio is None:
        return {
            "shape": shape,
            "refused": "D is too wide",
            "against": [{"name": TRITON[0], "us": 5.0, "samples_us": [5.0]}],
        }
    peers = [
        {"name": name, "us": 10.0 * ratio * slower, "samples_us": [1.0], "ratio": ratio * slower, "verdict": VERDICTS[ratio],
         "ratio_interval": [ratio * slower, ratio * slower], "versions": {"triton": "3.6.0"}}
        for name, slower in zip(TRITON, (1.0, 2.0), strict=True)
    ]  # fmt: skip
    return {"shape": shape, "flops": 1e9, "ours": ours_time, "programs": [program], "against": peers, **more}


def answer(*rows: dict[str, Any], quick: bool = False) -> dict[str, Any]:
    return {
        "device": {"name": "NVIDIA H200", "driver": "580"}, "conditions": {"driver": "580.1"}, "rule": "r", "quick": quick,
        "date": "2026-11-30T00:00:00+00:00", "torch": "2.11", "commit": "c" * 40,
        "tables": {"contract": {"rows": list(rows), "facts": {"seconds": 1.0}}},
    }  # fmt: skip


def recorded(tmp_path: Path, raw: dict[str, Any]) -> str:
    (tmp_path / FILE).write_text(json.dumps(raw))
    record.record(tmp_path, tmp_path / "speed", tmp_path / "speed.md")
    return (tmp_path / "speed.md").read_text(encoding="utf-8")


def test_losses_come_first_and_shapes_that_are_not_served_before_them(tmp_path: Path) -> None:
    text = recorded(tmp_path, answer(row(1.5), row(0.9), row(None), row(1.0)))
    lines = [line for line in text.splitlines() if line.startswith("| B1")]
    assert [
        "not served" in lines[0],
        *(f"{r:.3f}" in line for r, line in zip((0.9, 1.0, 1.5), lines[1:], strict=True)),
    ] == [True] * 4
    assert "geometric mean 1.105, median 1.000, 0.900 to 1.500 over 3 shapes" in text
    assert "1 slower, 1 undecided, 1 faster. 1 of 4 shapes are not served." in text
    assert "24 points against float64: 0 wrong, 0 unwritten, 3 ties" in text


def test_the_fastest_peer_is_the_baseline(tmp_path: Path) -> None:
    made = model.Row.model_validate(row(1.5))
    best = made.best(TRITON)
    assert best is not None and (best.name, best.ratio) == (TRITON[0], 1.5)
    assert made.best((CUBLAS,)) is None


def test_a_row_with_a_fault_stays_and_does_not_count(tmp_path: Path) -> None:
    text = recorded(tmp_path, answer(row(1.5), row(0.9, faults=["the outputs are wrong"])))
    assert "over 1 shapes" in text and "0.900" in text
    assert "the outputs are wrong" in text.split("Not counted")[1]


def test_a_record_reads_back_and_is_known_to_staleness(tmp_path: Path) -> None:
    recorded(tmp_path, answer(row(1.5)))
    table = model.read("contract", tmp_path / "speed")
    assert (
        table is not None and table.rows[0].counts() and table.driver == "580.1" and table.versions["triton"] == "3.6.0"
    )
    assert [r.row["kernel"] for r in rebuild.records(tmp_path / "speed")] == ["kmeans_packed"]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (answer(row(1.5), quick=True), "smoke run"),
        (answer({**row(1.5), "unknown": 1}), "unknown"),
        ({}, "KeyError"),
    ],
)
def test_what_is_no_whole_run_is_not_recorded(tmp_path: Path, raw: dict[str, Any], says: str) -> None:
    with pytest.raises(CakeError, match=says) as caught:
        recorded(tmp_path, raw)
    assert caught.value.diagnostic.rule == "speed/bad-run"
    assert not (tmp_path / "speed").exists()


def test_a_table_that_failed_keeps_no_other_from_being_recorded(tmp_path: Path) -> None:
    raw = answer(row(1.5))
    raw["tables"]["gemm"] = {"error": "gemm: RuntimeError: x"}
    with pytest.raises(CakeError, match="without what failed: gemm: RuntimeError: x"):
        recorded(tmp_path, raw)
    assert model.read("contract", tmp_path / "speed") is not None
    assert "1.500" in (tmp_path / "speed.md").read_text(encoding="utf-8")


def test_extents_are_shown_in_the_order_of_the_contract(tmp_path: Path) -> None:
    assert "| B1, N128, C3, D150 |" in recorded(tmp_path, answer(row(1.5)))


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "gemm.json").write_text('{"kind": "speed"}')
    with pytest.raises(CakeError, match=r"speed/gemm.json"):
        model.read("gemm", tmp_path)


def test_shapes_are_distinct_and_the_smoke_run_takes_some_of_them() -> None:
    for found in (shapes.GEMM, shapes.LARGE, shapes.contract(), shapes.small()):
        assert len({json.dumps(s) for s in found}) == len(found)
    assert len(shapes.contract()) >= 88 and len(shapes.small()) == shapes.SMALL_COUNT
    assert {layout for layout, _ in shapes.GEMM} == set(ours.LAYOUTS)
    assert len(shapes.quick_contract()) == 6


def test_the_page_is_that_of_the_committed_files() -> None:
    assert (ROOT / "docs" / "speed.md").read_text(encoding="utf-8") == page.document()
