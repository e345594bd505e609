"""`cake serve` as a client starts it: pure stdout, quick, ends promptly and takes its children along."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from server.processes import descendants
from tests.server.conftest import KMEANS, ROOT, call, running

SERVE = [sys.executable, "-m", "server.cli", "serve", "--no-gpu"]
ENV = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
INITIALIZE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}  # fmt: skip


class Wire:
    """Raw JSON-RPC over a child's pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.next_id = 1

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def start(self) -> dict[str, Any]:
        self.send(INITIALIZE)
        first = self.read()
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return first

    def call(self, tool: str, **arguments: Any) -> int:
        self.next_id += 1
        self.send(
            {
                "jsonrpc": "2.0",
                "id": self.next_id,
                "method": "tools/call",
                "params": {"name": tool, "arguments": arguments},
            }
        )
        return self.next_id


@contextmanager
def serving(workspace: Path) -> Iterator[Wire]:
    with running([*SERVE, "--workspace", str(workspace)], ENV) as process:
        yield Wire(process)


def wait_for(what: Any, seconds: float = 10) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("did not happen in time")


def test_the_first_reply_and_the_end_come_quickly(workspace: Path) -> None:
    begin = time.monotonic()
    with serving(workspace) as wire:
        first = wire.start()
        assert first["result"]["serverInfo"]["name"] == "cake"
        assert time.monotonic() - begin < 20, "1.5 s on an idle machine"
        assert wire.process.stdin
        begin = time.monotonic()
        wire.process.stdin.close()
        assert wire.process.wait(timeout=20) == 0 and time.monotonic() - begin < 20


def test_every_line_on_stdout_is_protocol(workspace: Path) -> None:
    with serving(workspace) as wire:
        wire.start()
        asked = [
            wire.call("propose_ir", text=KMEANS), wire.call("propose_ir", text="def f(:"), wire.call("verify", nope=1),
            wire.call("verify", text=KMEANS), wire.call("read_artifact", uri="cake://ops/index"), wire.call("no_such_tool"),
        ]  # fmt: skip
        got = {wire.read()["id"] for _ in asked}
        assert got == set(asked)
        assert wire.process.stdin
        wire.process.stdin.close()
        assert wire.process.stdout
        assert wire.process.stdout.read() == b""


def long_job(wire: Wire, ir_id: str = "") -> list[int]:
    """Start a check that takes long; the processes it runs in."""
    wire.start()
    number = wire.call("propose_ir", text=KMEANS)
    reply = wire.read()
    assert reply["id"] == number
    ir = reply["result"]["structuredContent"]["ids"]["ir_id"]
    shapes = [{"B": 1, "N": 4096 + i, "C": 1024, "D": 128} for i in range(50)]
    wire.call("compile_and_bench", ir_id=ir, contract="kmeans_assign", shapes=shapes, until="check", wait_s=300)
    return wait_for(lambda: descendants(wire.process.pid))


def test_children_end_with_the_server(workspace: Path) -> None:
    """A worker that computes. Every other end of a server, with children of children: test_orphans.py."""
    with serving(workspace) as wire:
        children = long_job(wire)
        wire.process.send_signal(signal.SIGTERM)
        assert wire.process.wait(timeout=10) == 0
        wait_for(lambda: not any(Path("/proc", str(pid)).exists() and alive(pid) for pid in children))


def alive(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_session_in_both_eras(workspace: Path, mode: str) -> None:
    server = StdioServerParameters(
        command=SERVE[0], args=[*SERVE[1:], "--workspace", str(workspace)], env={"PYTHONPATH": str(ROOT)}
    )
    async with Client(server, mode=mode) as client:
        got = await call(client, "propose_ir", text=KMEANS)
        assert got["status"] == "ok"
        again = await call(client, "propose_ir", base_id=got["ids"]["ir_id"], bindings={"STAGES": 2})
        assert again["ids"]["ir_id"] == got["ids"]["ir_id"]
        assert "free" in (await client.read_resource("cake://corpus/kmeans_assign")).contents[0].text


def test_a_restarted_server_knows_its_programs(workspace: Path) -> None:
    with serving(workspace) as wire:
        wire.start()
        wire.call("propose_ir", text=KMEANS)
        ir = wire.read()["result"]["structuredContent"]["ids"]["ir_id"]
        wire.process.kill()
    with serving(workspace) as wire:
        wire.start()
        wire.call("propose_ir", base_id=ir)
        assert wire.read()["result"]["structuredContent"]["ids"]["ir_id"] == ir
