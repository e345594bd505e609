"""The demo is the loop over a real client; it has to end well, quickly, over both transports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.conftest import ROOT


@pytest.mark.parametrize("transport", [[], ["--http"]], ids=["stdio", "http"])
def test_the_demo_shows_every_step(tmp_path: Path, transport: list[str]) -> None:
    argv = [sys.executable, "-m", "server.cli", "--no-gpu", "demo", *transport]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for step in range(1, 8):
        assert f"\n{step}. " in done.stdout
    assert "rejected: kmeans_assign is rejected" in done.stdout and "accepted: kmeans_assign is accepted" in done.stdout
    assert "HGMMA" in done.stdout and "not timed" in done.stdout and "seen 2 times" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert not list(tmp_path.iterdir()), "the demo leaves nothing behind"


@pytest.mark.parametrize("transport", [[], ["--http"]], ids=["stdio", "http"])
def test_a_server_that_breaks_is_one_message(tmp_path: Path, transport: list[str]) -> None:
    """A module in the working directory shadows a dependency of the server, which ends with a trace on its stderr."""
    (tmp_path / "structlog.py").write_text("raise RuntimeError('broken on purpose')\n")
    script = "import server.demo, sys; sys.exit(server.demo.run_demo(no_gpu=True, over_http=len(sys.argv) > 1))"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    argv = [sys.executable, "-c", script, *transport]
    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=60, cwd=tmp_path)
    assert done.returncode == 1 and "the demo failed: " in done.stdout, done.stdout + done.stderr
    assert "broken on purpose" in done.stdout and "Traceback" not in done.stdout + done.stderr
