"""Long work: progress, a handle after a bounded wait, joining instead of repeating, cancelling, surviving a restart."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from server import worker
from server.engine import Config, Engine
from server.errors import EngineError
from server.jobs import Jobs
from server.mcp_server import CakeServer
from server.results import Result
from server.worker import Control
from tests.server.conftest import KMEANS, call

pytestmark = pytest.mark.anyio
SLOW = [{"B": 1, "N": 4096 + i, "C": 1024, "D": 128} for i in range(50)]


async def slow_call(client: Client, wait_s: float, **more: Any) -> dict[str, Any]:
    ir = (await call(client, "propose_ir", text=KMEANS))["ids"]["ir_id"]
    return await call(
        client,
        "compile_and_bench",
        ir_id=ir,
        contract="kmeans_assign",
        shapes=SLOW,
        until="check",
        wait_s=wait_s,
        **more,
    )


async def until_idle() -> None:
    with anyio.fail_after(10):
        while worker._live:
            await anyio.sleep(0.02)


async def test_a_bounded_wait_gives_a_handle_that_joins_the_same_work(client: Client, cake: CakeServer) -> None:
    first = await slow_call(client, 0.3)
    assert first["status"] == "running" and first["ids"]["job_id"] in first["next"]
    again = await slow_call(client, 0.1)
    assert again["ids"]["job_id"] == first["ids"]["job_id"], "the same request joins the running job"
    asked = await call(client, "compile_and_bench", job_id=first["ids"]["job_id"], wait_s=0.1)
    assert asked["status"] == "running"
    assert (await call(client, "profile", job_id=first["ids"]["job_id"]))["status"] == "error", "another tool's job"
    cake.close()
    await until_idle()
    ended = await call(client, "compile_and_bench", job_id=first["ids"]["job_id"])
    assert ended["status"] == "cancelled" and ended["code"] == "job/cancelled"


async def test_progress_rises_strictly_and_is_rate_limited(client: Client, cake: CakeServer) -> None:
    ir = (await call(client, "propose_ir", text=KMEANS))["ids"]["ir_id"]
    seen: list[tuple[float, str | None, float]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message, time.monotonic()))

    arguments = {"ir_id": ir, "contract": "kmeans_assign", "shapes": SLOW, "until": "check", "wait_s": 2.2}
    await client.call_tool("compile_and_bench", arguments, progress_callback=note)
    cake.close()
    await until_idle()
    values = [s[0] for s in seen]
    assert 2 <= len(values) <= 5 and values == sorted(set(values))
    assert all(s[1] and len(s[1]) <= 200 for s in seen)


async def test_cancelling_the_call_ends_the_child(client: Client) -> None:
    begin = time.monotonic()
    with anyio.move_on_after(1.0) as scope:
        await slow_call(client, 300)
    assert scope.cancelled_caught and time.monotonic() - begin < 30
    await until_idle()


async def test_a_cancelled_waiter_leaves_the_work_of_another(client: Client, cake: CakeServer) -> None:
    running = await slow_call(client, 0.2)
    with anyio.move_on_after(0.5):
        await slow_call(client, 300)
    await anyio.sleep(0.5)
    asked = await call(client, "compile_and_bench", job_id=running["ids"]["job_id"], wait_s=0)
    assert asked["status"] == "running"
    cake.close()
    await until_idle()


# ---- the manager by itself ---------------------------------------------------------------------------------------------


def finished(jobs: Jobs, work: Any, kind: str = "k", request: dict[str, Any] | None = None) -> Result:
    job = jobs.start(kind, request or {}, work)
    assert job.done.wait(10) and job.result is not None
    return job.result


async def test_faults_of_a_job_are_answers(engine: Engine) -> None:
    jobs = Jobs(engine.store)

    def coded(control: Control) -> Result:
        raise EngineError("gpu/busy", "taken", "later")

    def crash(control: Control) -> Result:
        raise ZeroDivisionError("inside")

    assert finished(jobs, coded).code == "gpu/busy"
    got = finished(jobs, crash, "other")
    assert got.code == "internal/unexpected" and "inside" not in got.summary and got.ids["job_id"] in got.summary


async def test_a_finished_job_can_be_done_again_but_not_at_the_same_time(engine: Engine) -> None:
    jobs = Jobs(engine.store)
    count, gate = [], threading.Event()

    def work(control: Control) -> Result:
        count.append(1)
        gate.wait(5)
        return Result(summary="done", status="ok")

    a, b = jobs.start("k", {"x": 1}, work), jobs.start("k", {"x": 1}, work)
    assert a is b
    gate.set()
    assert a.done.wait(5) and len(count) == 1
    assert finished(jobs, work, "k", {"x": 1}).status == "ok" and len(count) == 2


async def test_the_outcome_outlives_the_server_and_a_lost_job_says_so(engine: Engine, workspace: Path) -> None:
    jobs = Jobs(engine.store)
    done = finished(jobs, lambda control: Result(summary="done", status="passed", data={"t": 1}))
    engine.store.put_job("job_" + "a" * 32, "compile_and_bench", "running", {})
    again = CakeServer(Engine(Config(workspace, no_gpu=True)))
    async with Client(again.build()) as client:
        got = await call(client, "compile_and_bench", job_id=done.ids["job_id"])
        assert got["status"] == "passed" and got["data"] == {"t": 1}
        lost = await call(client, "compile_and_bench", job_id="job_" + "a" * 32)
        assert lost["code"] == "job/lost"


async def test_a_job_that_could_not_be_stored_starts_afresh_when_there_is_space(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(engine.store)

    def full(*_: object, **__: object) -> None:
        raise EngineError("storage/full", "no space", "free some")

    with monkeypatch.context() as patch:
        patch.setattr(engine.store, "put_job", full)
        with pytest.raises(EngineError, match="no space"):
            jobs.start("k", {"x": 1}, lambda control: Result(summary="done", status="ok"))
    got = finished(jobs, lambda control: Result(summary="done", status="ok"), "k", {"x": 1})
    assert got.status == "ok"
