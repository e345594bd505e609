"""Listings for people at several widths."""

from __future__ import annotations

import pytest

from server.results import Result
from server.terminal import print_rows

ROWS = [
    {
        "kernel": name, "bindings": {"STAGES": stages}, "shape": {"M": 8192 + stages, "K": 14336}, "device": "NVIDIA H200",
        "mode": "warm", "time_us": us, "baseline": "torch_matmul", "baseline_us": 1182.6, "ratio": 1182.6 / us, "verdict": verdict,
        "stale": None,
    }
    for name, stages, us, verdict in (
        ("gemm_sm90", 5, 1190.9, "inconclusive"), ("gemm_sm80", 3, 2600.0, "slower"), ("gemm_sm100", 6, 900.0, "faster"),
    )
]  # fmt: skip


def shown(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    print_rows(Result(summary="3 measurements", status="ok", data={"results": ROWS}), "results")
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_wide_terminal_shows_one_line_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(160, monkeypatch, capsys)
    assert "device NVIDIA H200, mode warm" in lines[0], "what all rows share is said once"
    row = next(line for line in lines if line.startswith("gemm_sm90 "))
    assert "1191" in row and len([line for line in lines if line.startswith("gemm")]) == 3


def test_a_narrow_terminal_breaks_no_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(60, monkeypatch, capsys)
    assert all(len(line) <= 60 for line in lines[1:]), lines
    assert any(line.strip() == "M=8197 K=14336" for line in lines), lines
    assert any(line.startswith("gemm_sm90") and line.endswith("inconclusive") for line in lines)
