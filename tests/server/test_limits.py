"""One program cannot keep the server busy for ever."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from server.engine import Engine
from server.errors import EngineError
from server.limits import TooComplex, computation_limit
from server.programs import Ref
from tests.server.conftest import KMEANS, ROOT, call
from tests.server.test_stdio import SERVE


def spin(seconds: float) -> int:
    end, n = time.thread_time() + seconds, 0
    while time.thread_time() < end:
        try:
            n += 1
        except Exception:
            n = 0
    return n


def test_a_runaway_computation_is_ended_and_the_thread_goes_on() -> None:
    begin = time.thread_time()
    with pytest.raises(TooComplex) as caught, computation_limit("verifying", 0.3):
        spin(30)
    assert caught.value.code == "program/too-complex" and time.thread_time() - begin < 3
    spin(0.5)


def test_short_work_is_left_alone() -> None:
    for _ in range(50):
        with computation_limit("verifying", 5):
            assert spin(0.001) > 0
    assert not [t for t in threading.enumerate() if t.name == "computation-limit" and not t.daemon]


def test_waiting_is_not_computing() -> None:
    with computation_limit("verifying", 0.3):
        time.sleep(0.9)


def test_running_out_of_memory_is_coded() -> None:
    with pytest.raises(TooComplex), computation_limit("typing", 5):
        raise MemoryError


def test_a_verification_that_runs_away_leaves_the_engine_usable(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    import analyses

    monkeypatch.setattr("server.engine.VERIFY_S", 0.3)
    monkeypatch.setattr(analyses, "verify", lambda bound, prove: spin(30), raising=False)
    with pytest.raises(TooComplex):
        engine.verify(Ref(text=KMEANS))
    monkeypatch.undo()
    assert engine.verify(Ref(text=KMEANS)).status == "accepted"


def test_a_crash_of_an_analysis_is_evidence_against_the_verifier(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    import analyses

    def crash(bound: object, prove: bool) -> None:
        raise KeyError("acc")

    monkeypatch.setattr(analyses, "verify", crash, raising=False)
    for _ in range(2):
        with pytest.raises(EngineError) as caught:
            engine.verify(Ref(text=KMEANS))
    assert caught.value.code == "internal/verifier-crashed"
    assert [(f["owner"], f["symptom"], f["count"]) for f in engine.store.failures()] == [("verifier", "crash", 2)]


@pytest.mark.anyio
async def test_huge_numbers_and_long_unrolls_are_answered_by_a_live_server(workspace: Path) -> None:
    server = StdioServerParameters(
        command=SERVE[0], args=[*SERVE[1:], "--workspace", str(workspace)], env={"PYTHONPATH": str(ROOT)}
    )
    head = KMEANS[: KMEANS.index("    b, tile = tiles.at(cta)")]
    async with Client(server) as client:
        for line in ("    Z = 1 << 100000000000000\n", "    Z = 99999999999 * (1 << 40000000000)\n"):
            got = await call(client, "propose_ir", text=head + line)
            assert got["status"] in ("rejected", "error") and got.get("code", "") != "internal/unexpected"
        unrolled = KMEANS.replace("unroll(BC // 8)", "unroll(1000000)")
        assert (await call(client, "propose_ir", text=unrolled))["status"] == "rejected"
        assert (await call(client, "verify", text=KMEANS))["status"] == "accepted"
