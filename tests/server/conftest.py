"""Shared fixtures: a fresh workspace, an engine, a server, clients of both protocol eras."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from server import gpu_work
from server.engine import Config, Engine
from server.logs import log_to_stderr
from server.mcp_server import CakeServer
from tests.disk import unsynced

log_to_stderr()  # as a server does

ROOT = Path(__file__).resolve().parents[2]
KMEANS = (Path(__file__).parent / "data/kmeans.cake").read_text()
"""A k-means kernel of the tests' own: the corpus kernel is tuned and changes."""
WAIT = "            wait(free[n - STAGES])\n"
BROKEN = KMEANS.replace(WAIT, "")
LEFT_OUT_AT = KMEANS[: KMEANS.index(WAIT)].count("\n") + 1
"""The line at which the producer's wait stood."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path / "workspace"


@pytest.fixture
def engine(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    unsynced(monkeypatch)
    made = Engine(Config(workspace, no_gpu=True))
    yield made
    made.close()


@pytest.fixture
def cake(engine: Engine) -> Iterator[CakeServer]:
    made = CakeServer(engine)
    yield made
    made.close()


@pytest.fixture(params=["auto", "legacy"])
async def client(request: pytest.FixtureRequest, cake: CakeServer) -> AsyncIterator[Client]:
    """An in-process client, once per protocol era."""
    async with Client(cake.build(), mode=request.param) as made:
        yield made


def play_gpu(engine: Engine, monkeypatch: pytest.MonkeyPatch, worker: Any) -> None:
    """Give the engine GPU 0, whose worker processes `worker` plays (called as `server.worker.run_worker` is)."""
    monkeypatch.setattr(gpu_work, "run_worker", worker)
    monkeypatch.setattr(engine.catalog, "gpu_indices", lambda: [0])


@contextmanager
def running(argv: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process with pipes, killed at the end."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream
            stream.close()


Call = Callable[..., Any]


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool and return its structured content, having checked what holds for every answer."""
    reply = await client.call_tool(tool, arguments)
    got = reply.structured_content
    assert isinstance(got, dict), reply
    assert list(got)[:2] == ["summary", "status"]
    assert reply.is_error == (got["status"] in ("error", "cancelled"))
    text = reply.content[0].text
    assert got["summary"] in text and "Traceback" not in text and "Error executing tool" not in text
    uris = {a["uri"] for a in got.get("artifacts", [])}
    assert {str(c.uri) for c in reply.content if c.type == "resource_link"} == uris
    return got
