"""The pages name what exists: every tool argument, status, error code, flag and command."""

from __future__ import annotations

import re
from typing import get_args

from server.cli import cli
from server.engine import Engine
from server.mcp_server import CakeServer
from server.results import Status
from tests.server.conftest import ROOT

SERVER = (ROOT / "docs/server.md").read_text()
CLI = (ROOT / "docs/cli.md").read_text()


def test_every_tool_and_argument_is_in_the_table(engine: Engine) -> None:
    for tool in CakeServer(engine).tools():
        row = next(line for line in SERVER.split("\n") if line.startswith(f"| `{tool.name}` |"))
        for name in tool.parameters["properties"]:
            assert f"`{name}`" in row, (tool.name, name)


def test_every_status_and_error_code_is_listed() -> None:
    assert all(f"`{status}`" in SERVER for status in get_args(Status))
    sources = "\n".join(p.read_text() for p in sorted((ROOT / "server").glob("*.py")))
    pattern = r'"((?:args|storage|gpu|worker|job|server|internal|program)/[a-z-]+)"'
    assert {c for c in re.findall(pattern, sources) if f"`{c}`" not in SERVER} == set()


def test_every_command_and_flag_is_described() -> None:
    assert {name for name in cli.commands if f"cake {name}" not in CLI} == set()
    flags = [option for p in cli.commands["serve"].params for option in p.opts]
    assert {f for f in flags if f"`{f}" not in SERVER} == set()


def test_the_pages_say_how_to_connect_over_http() -> None:
    for page in (SERVER, (ROOT / "README.md").read_text()):
        assert "http://127.0.0.1:8765/mcp" in page and "Authorization" in page and "http-token" in page
