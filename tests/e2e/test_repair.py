"""Single faults planted in corpus kernels are repaired by a client that only reads tool answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from server import gpu_work
from server.engine import Config, Engine
from server.mcp_server import CakeServer
from tests import compiled
from tests.disk import unsynced
from tests.e2e.faults import FAULTS
from tests.e2e.repair_client import Answer, RepairClient, caller, over_stdio
from tests.e2e.repair_table import DOCS, Row, plant_and_repair, render

CONCISE_BYTES = 4_000
MOST_BYTES = 6_000
"""Of answers per repair: a few thousand characters, less than the kernel and its reference pages."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Row]]:
    """Every planted fault, against one server and its CPU worker in this process."""
    patch = pytest.MonkeyPatch()
    patch.setattr(gpu_work, "run_worker", compiled.worker)
    unsynced(patch)
    engine = Engine(Config(tmp_path_factory.mktemp("repair") / "workspace", no_gpu=True))
    cake = CakeServer(engine)

    async def run() -> list[Row]:
        async with Client(cake.build()) as client:
            return await plant_and_repair(client)

    yield anyio.run(run)
    cake.close()
    engine.close()
    patch.undo()


def test_faults_are_single_and_different() -> None:
    assert len({(f.name, f.kernel) for f in FAULTS}) == len({f.broken for f in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        gone = len(fault.right.split("\n")) - len(fault.broken.split("\n"))
        assert 0 <= gone <= 3 and len(fault.lines) <= 2, fault


def test_planted_faults_are_repaired(rows: list[Row], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print("\n" + render(rows))
    assert len(rows) == len(FAULTS)
    repaired = [r for r in rows if r.outcome.repaired]
    assert len(repaired) >= 10
    assert {r.fault.kernel for r in repaired} == {"kmeans_assign", "gemm_sm90", "gemm_sm80", "softmax"}
    assert [r.fault for r in rows if not r.outcome.repaired] == [f for f in FAULTS if not (f.seen and f.repairable)]


def test_repairs_are_cheap(rows: list[Row]) -> None:
    for row in rows:
        outcome = row.outcome
        assert all(s.bytes <= CONCISE_BYTES for s in outcome.steps), row.fault
        assert outcome.repair_bytes <= MOST_BYTES, row.fault
        assert outcome.tries <= 2, row.fault


def test_a_repair_ends_with_a_passed_contract(rows: list[Row]) -> None:
    for row in rows:
        last = row.outcome.steps[-1]
        if row.outcome.repaired:
            assert (last.tool, last.status) == ("compile_and_bench", "passed"), row.fault
            assert len(row.outcome.titles) == row.outcome.tries >= 1, row.fault


def test_a_fault_of_the_numbers_alone_is_caught_by_the_contract(rows: list[Row]) -> None:
    """No rule can name the edit. The check fails, and its finding is at the op that wrote the wrong element, which is no
    repair and offers none."""
    wrong = [r.outcome for r in rows if not r.fault.seen]
    assert wrong
    for outcome in wrong:
        assert [(s.tool, s.status) for s in outcome.steps] == [
            ("propose_ir", "ok"), ("verify", "accepted"), ("compile_and_bench", "failed"),
        ]  # fmt: skip
        assert outcome.rule == "contract/wrong-result" and outcome.line and not outcome.repaired and not outcome.tries


def test_a_fault_that_only_its_author_can_repair_is_named(rows: list[Row]) -> None:
    named = [r.outcome for r in rows if r.fault.seen and not r.fault.repairable]
    assert [(o.rule.split("/")[0], o.repaired) for o in named] == [("data", False)]


def test_the_page_shows_what_is_measured(rows: list[Row]) -> None:
    """Which fault of which kernel, the rule that named it, and whether it was repaired. Bytes and the way of a repair (the
    original text or another correct one) depend on how far the search came in its processor time."""
    page = [
        line.strip("| ").split(" | ") for line in DOCS.read_text(encoding="utf-8").split("\n") if line.startswith("|")
    ]
    shown = [(*cells[:3], cells[6] in ("restored", "differently")) for cells in page[2:]]
    assert shown == [(*r.cells[:3], r.outcome.repaired) for r in rows], "run python -m tests.e2e.repair_client --docs"


def test_over_stdio(tmp_path: Path) -> None:
    fault = next(f for f in FAULTS if f.name == "dropped sync(rows)")

    async def run() -> Any:
        async with over_stdio(tmp_path / "workspace") as client:
            return await RepairClient(caller(client)).repair(fault.broken, fault.contract, fault.shapes)

    outcome = anyio.run(run)
    assert outcome.repaired and outcome.tries == 1
    assert fault.distance(outcome.line) <= 1


# ---- the client by itself, against scripted answers


class Script:
    """A server of four programs: `a` is rejected with the fixes to `b` and `c`; `b` is rejected with no fix, `c` is
    accepted and fails its contract; the detailed answer on `a` also offers `d`, which passes."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, tool: str, arguments: Mapping[str, Any]) -> Answer:
        program = "a" if "text" in arguments else arguments.get("ir_id", "")[-1:]
        if "edits" in arguments:
            program = arguments["edits"][0]["new"]
        detail = arguments.get("detail", "concise")
        self.asked.append((tool, program))
        ids = {"source_id": f"src_{program}", "ir_id": f"ir_{program}"}
        if tool == "propose_ir":
            return {"summary": "", "status": "ok", "ids": ids}
        if tool == "compile_and_bench":
            return {"summary": "", "status": "passed" if program == "d" else "failed", "ids": ids}
        if program in "cd":
            return {"summary": "", "status": "accepted", "ids": ids}
        to = {"a": "bc" if detail == "concise" else "bcd"}.get(program, "")
        fixes = [{"title": x, "verified": x != "b", "edits": [{"old": program, "new": x}]} for x in to]
        found = {"rule": f"x/{program}", "severity": "error", "line": 7, "col": 1, "message": "", "fixes": fixes}
        return {"summary": "", "status": "rejected", "ids": ids, "diagnostics": [found]}


def test_a_fix_that_leads_nowhere_is_taken_back() -> None:
    script = Script()
    outcome = anyio.run(RepairClient(script).repair, "a", "contract", "boundary")
    assert outcome.repaired and outcome.titles == ("d",)
    assert (outcome.rule, outcome.line, outcome.tries) == ("x/a", 7, 3)
    # the verified fix goes first, although the other one stands before it
    assert [p for tool, p in script.asked if tool == "propose_ir"] == ["a", "c", "b", "d"]


def test_tries_are_bounded() -> None:
    outcome = anyio.run(RepairClient(Script(), max_tries=2).repair, "a", "contract", "boundary")
    assert not outcome.repaired and outcome.tries == 2
