"""The run on a played device: what is written when, what a failing table and a short budget leave."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cake_ir.diagnostics import CakeError
from corpus import gpu_buffers
from corpus.speed import run as runner
from corpus.speed import tables, warm
from corpus.speed.model import Row
from corpus.speed.tables import MEASURED, OverBudget
from lowering.runtime import telemetry


class Played:
    """A session whose tables have a row each; `broken` fails, `slow` is still busy when the budget ends."""

    broken = slow = ""

    def __init__(self, env: Any, directory: Path, quick: bool) -> None:
        self.asked: list[str] = []

    def run(self, name: str, until: float) -> tuple[list[Row], dict[str, Any]]:
        if name == self.broken:
            raise RuntimeError("a library broke")
        if name == self.slow:
            raise OverBudget(f"{name}: the budget was over after 3 rows")
        return [Row(shape={"N": 1})], {"seconds": 1.0}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> type[Played]:
    info = SimpleNamespace(uuid="0", to_json=lambda: {"name": "played"})
    env = SimpleNamespace(torch=SimpleNamespace(__version__="2"), device=SimpleNamespace(info=lambda: info))
    monkeypatch.setattr(gpu_buffers, "open_env", lambda index: env)
    monkeypatch.setattr(telemetry, "snapshot", lambda uuid: {"driver": "1"})
    monkeypatch.setattr(warm, "compile_all", lambda quick: [])
    session = type("Session", (Played,), {})
    monkeypatch.setattr(runner, "Session", session)
    return session


def written(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return json.loads(runner.run(tmp_path, tmp_path / "out", **more).read_text())


def test_all_tables_are_written_in_their_order(played: type[Played], tmp_path: Path) -> None:
    raw = written(tmp_path)
    assert list(raw["tables"]) == list(MEASURED) and raw["left_out"] == []


def test_a_broken_table_is_named_and_the_others_are_written(played: type[Played], tmp_path: Path) -> None:
    played.broken = "gemm"
    with pytest.raises(CakeError, match="gemm: RuntimeError: a library broke"):
        runner.run(tmp_path, tmp_path)
    raw = json.loads((tmp_path / runner.FILE).read_text())
    assert "error" in raw["tables"]["gemm"] and all("rows" in raw["tables"][n] for n in MEASURED if n != "gemm")


def test_a_table_that_does_not_fit_the_budget_is_left_out_and_named(played: type[Played], tmp_path: Path) -> None:
    least = min(MEASURED, key=lambda name: MEASURED[name])
    raw = written(tmp_path, budget_s=MEASURED[least] + 1)
    assert list(raw["tables"]) == [least]
    assert [text.split(":")[0] for text in raw["left_out"]] == [n for n in MEASURED if n != least]


def test_half_a_table_is_none(played: type[Played], tmp_path: Path) -> None:
    played.slow = "contract"
    raw = written(tmp_path)
    assert "contract" not in raw["tables"] and raw["left_out"] == ["contract: the budget was over after 3 rows"]


def test_a_session_ends_a_table_when_the_budget_does(monkeypatch: pytest.MonkeyPatch) -> None:
    session = object.__new__(tables.Session)
    session.unavailable, session.torch = {}, SimpleNamespace(cuda=SimpleNamespace(empty_cache=lambda: None))
    monkeypatch.setattr(tables.Session, "large", lambda self: iter([Row(shape={"N": 1})] * 5))
    assert len(session.run("large")[0]) == 5
    with pytest.raises(OverBudget, match="after 1 rows"):
        session.run("large", until=time.monotonic() - 1.0)


def test_without_torch_nothing_is_measured(
    played: type[Played], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_buffers, "open_env", lambda index: SimpleNamespace(torch=None))
    with pytest.raises(CakeError, match="torch with CUDA is not installed"):
        runner.run(tmp_path, tmp_path)
