"""However a server ends, none of the processes that its workers have started stays.

Real servers; the worker's module is replaced by one that starts a child in a session of its own, as profilers and
compilers do, and then sleeps.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from server.processes import descendants
from tests.server.conftest import KMEANS, ROOT, call, running
from tests.server.test_stdio import Wire, alive, wait_for

SLEEPER = """
    import runpy, subprocess, sys, time
    from pathlib import Path

    def run_module(name, **more):
        child = subprocess.Popen(["sleep", "120"], start_new_session=True)
        Path({pids!r}, str(child.pid)).touch()
        time.sleep({seconds})
        print('{{"result": {{}}}}', file=sys.__stdout__, flush=True)

    if "server.guard" in sys.orig_argv:
        runpy.run_module = run_module
"""


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    """A directory in which the children of sleeping workers leave their process ids."""
    (tmp_path / "pids").mkdir()
    return tmp_path / "pids"


def environment(tmp_path: Path, pids: Path, seconds: float = 120) -> dict[str, str]:
    """For a server whose workers sleep: Python loads the module of this name at every start."""
    hook = tmp_path / "hook" / "sitecustomize.py"
    hook.parent.mkdir()
    hook.write_text(textwrap.dedent(SLEEPER.format(pids=str(pids), seconds=seconds)))
    path = os.pathsep.join([str(hook.parent), str(ROOT)])
    return {"PYTHONPATH": path, "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}


@contextmanager
def server(tmp_path: Path, pids: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "server.cli", "serve", "--no-gpu", "--workspace", str(tmp_path / "ws"), *more]
    with running(argv, environment(tmp_path, pids)) as process:
        yield process


def started(process: subprocess.Popen[bytes], pids: Path) -> list[int]:
    """Guard, worker and the worker's child, once they run."""
    wait_for(lambda: list(pids.iterdir()), 30)
    found = descendants(process.pid)
    child = int(next(pids.iterdir()).name)
    assert len(found) >= 3 and child in found and os.getsid(child) == child
    return found


def end(process: subprocess.Popen[bytes], how: str) -> None:
    if how == "eof":
        assert process.stdin
        process.stdin.close()
    else:
        process.send_signal(getattr(signal, how.upper()))


ENDS = {"sigterm": 0, "sigint": 130, "sighup": 0, "eof": 0, "sigkill": -9}


@pytest.mark.parametrize("how", ENDS)
def test_a_stdio_server_leaves_no_process(tmp_path: Path, pids: Path, how: str) -> None:
    with server(tmp_path, pids) as process:
        wire = Wire(process)
        wire.start()
        wire.call("propose_ir", text=KMEANS)
        ir = wire.read()["result"]["structuredContent"]["ids"]["ir_id"]
        wire.call("compile_and_bench", ir_id=ir, contract="kmeans_assign", until="compile", wait_s=300)
        found = started(process, pids)
        end(process, how)
        assert process.wait(timeout=10) == ENDS[how]
        wait_for(lambda: not any(alive(pid) for pid in found))


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["sigterm", "sigkill"])
async def test_an_http_server_leaves_no_process(tmp_path: Path, pids: Path, how: str) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("test-token-0123456789abcdef\n")
    with server(tmp_path, pids, "--http", "0", "--token-file", str(token)) as process:
        assert process.stderr
        found = re.search(rb"http://127\.0\.0\.1:\d+/mcp", process.stderr.readline())
        assert found
        headers = {"authorization": f"Bearer {token.read_text().strip()}"}
        seen: list[int] = []

        async def ask() -> None:
            http = httpx2.AsyncClient(headers=headers, timeout=60)
            transport = streamable_http_client(found.group().decode(), http_client=http)
            async with Client(transport) as client:
                ir = (await call(client, "propose_ir", text=KMEANS))["ids"]["ir_id"]
                await call(client, "compile_and_bench", ir_id=ir, contract="kmeans_assign", until="compile", wait_s=300)

        async def stop() -> None:
            seen.extend(await anyio.to_thread.run_sync(started, process, pids))
            end(process, how)
            code = await anyio.to_thread.run_sync(lambda: process.wait(timeout=10))
            assert code == ENDS[how]
            raise Done

        with pytest.raises(BaseExceptionGroup) as caught:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                tasks.start_soon(stop)
        assert not caught.group_contains(AssertionError) and seen
        await anyio.to_thread.run_sync(wait_for, lambda: not any(alive(pid) for pid in seen))


class Done(Exception):
    """The server has ended."""


@pytest.mark.parametrize(("worker_s", "limit_s", "says"), [(0.0, 20.0, "result"), (60.0, 1.0, "worker/timeout")])
def test_a_worker_leaves_no_process_when_it_answers_or_is_late(
    tmp_path: Path, pids: Path, worker_s: float, limit_s: float, says: str
) -> None:
    script = f"""
        from server.errors import EngineError
        from server.worker import Control, run_worker
        try:
            print("result", run_worker("server.cpu_main", {{}}, timeout_s={limit_s}, control=Control()))
        except EngineError as exc:
            print(exc.code)
    """
    env = environment(tmp_path, pids, worker_s)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, env=env, timeout=60
    )
    assert done.stdout.startswith(says), done.stderr
    children = [int(p.name) for p in pids.iterdir()]
    assert children
    wait_for(lambda: not any(alive(pid) for pid in children))
