"""Streamable HTTP: a token, loopback names only, and the same tools in both eras."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from server.errors import BadArgument
from server.serve import read_token
from tests.server.conftest import KMEANS, ROOT, call

TOKEN = "test-token-0123456789abcdef"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("http")
    token = home / "token"
    token.touch(0o600)
    token.write_text(TOKEN + "\n")
    argv = [
        sys.executable,
        "-m",
        "server.cli",
        "serve",
        "--no-gpu",
        "--workspace",
        str(home / "ws"),
        "--http",
        "0",
        "--token-file",
        str(token),
    ]
    process = subprocess.Popen(
        argv, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert process.stderr
    found = re.search(rb"http://127\.0\.0\.1:\d+/mcp", process.stderr.readline())
    assert found
    yield found.group().decode()
    process.terminate()
    assert process.wait(timeout=10) == 0
    process.stderr.close()


def post(url: str, **headers: str) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    base = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    return httpx2.post(url, content=json.dumps(body), headers={**base, **headers}, timeout=20)


@pytest.mark.parametrize("header", [None, "Bearer wrong-token-0123456789abcdef", f"bearer {TOKEN}x", TOKEN, "Basic x"])
def test_a_missing_or_wrong_token_is_401(url: str, header: str | None) -> None:
    got = post(url, **({"authorization": header} if header else {}))
    assert got.status_code == 401 and got.headers["www-authenticate"].startswith("Bearer")


def test_foreign_hosts_and_origins_are_refused(url: str) -> None:
    token = f"Bearer {TOKEN}"
    assert post(url, authorization=token, host="evil.example").status_code == 421
    assert post(url, authorization=token, host="127.0.0.1:1").status_code == 421
    assert post(url, authorization=token, origin="https://evil.example").status_code == 403
    assert post(url, authorization=token, origin="http://localhost:1").status_code == 403


def test_the_token_is_asked_for_before_anything_else(url: str) -> None:
    assert post(url, host="evil.example").status_code == 401
    assert httpx2.get(url.replace("/mcp", "/anything"), timeout=20).status_code == 401


def test_a_large_body_is_refused(url: str) -> None:
    got = httpx2.post(
        url,
        content=b"x" * (5 << 20),
        timeout=20,
        headers={"authorization": f"Bearer {TOKEN}", "content-type": "application/json", "accept": "application/json"},
    )
    assert got.status_code == 413


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_session_in_both_eras(url: str, mode: str) -> None:
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        got = await call(client, "propose_ir", text=KMEANS)
        assert got["status"] == "ok"
        edit = await call(client, "propose_ir", base_id=got["ids"]["ir_id"], bindings={"STAGES": 3})
        assert edit["ids"]["ir_id"] == got["ids"]["ir_id"]
        assert (await call(client, "verify", ir_id="ir_" + "0" * 32))["code"] == "args/unknown-id"


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_long_calls_do_not_run_into_a_short_read_timeout(url: str, mode: str) -> None:
    shapes = [{"B": 1, "N": 4096 + i, "C": 1024, "D": 128} for i in range(50)]
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}, timeout=3.5) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        ir_id = (await call(client, "propose_ir", text=KMEANS))["ids"]["ir_id"]
        work = {"ir_id": ir_id, "contract": "kmeans_assign", "shapes": shapes, "until": "check"}
        got = await call(client, "compile_and_bench", **work, wait_s=4.5)
        assert got["status"] == "running", got


@pytest.mark.parametrize(
    ("text", "mode", "says"), [("short", 0o600, "16"), (TOKEN, 0o644, "others"), ("a b" * 9, 0o600, "spaces")]
)
def test_unfit_token_files_are_refused(tmp_path: Path, text: str, mode: int, says: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(BadArgument, match=says):
        read_token(path)
    with pytest.raises(BadArgument, match="cannot be read"):
        read_token(tmp_path / "missing")


def test_a_port_that_is_taken_is_a_coded_answer(url: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    port = url.split(":")[2].split("/")[0]
    argv = [
        sys.executable,
        "-m",
        "server.cli",
        "serve",
        "--workspace",
        str(tmp_path / "ws"),
        "--http",
        port,
        "--token-file",
        str(token),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=30)
    assert done.returncode == 2 and "cannot be used" in done.stderr and "Traceback" not in done.stderr
