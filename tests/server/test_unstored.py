"""A workspace that cannot be opened or written costs only what has to be stored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from mcp import Client, StdioServerParameters

from server.cli import cli
from server.engine import Config, Engine
from server.errors import EngineError
from server.mcp_server import CakeServer
from server.programs import Ref
from server.store import StoreError
from tests.server.conftest import KMEANS, ROOT, call
from tests.server.test_stdio import SERVE


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A path at which no workspace can be made, since a file is in the way (root ignores modes)."""
    (tmp_path / "file").write_text("in the way")
    return tmp_path / "file" / "ws"


def test_verify_build_and_doctor_need_no_workspace(blocked: Path, tmp_path: Path) -> None:
    file = tmp_path / "k.cake"
    file.write_text(KMEANS)
    run = CliRunner()
    head = ["--workspace", str(blocked), "--no-gpu"]
    verified = run.invoke(cli, [*head, "verify", str(file)])
    assert verified.exit_code == 0 and "accepted" in verified.stdout
    built = run.invoke(cli, [*head, "build", str(file), "--json"])
    told = json.loads(built.stdout)
    assert built.exit_code == 0 and "nothing was stored (storage/unavailable" in told["summary"]
    emitted = run.invoke(cli, [*head, "build", str(file), "--emit", "ptx"])
    assert ".target sm_90a" in emitted.stdout
    shown = run.invoke(cli, [*head, "doctor"])
    assert shown.exit_code == 1 and "not writable" in shown.stdout and "NVRTC" in shown.stdout


def test_looking_makes_no_workspace(tmp_path: Path) -> None:
    file = tmp_path / "k.cake"
    file.write_text(KMEANS)
    for argv in (["verify", str(file)], ["doctor"]):
        got = CliRunner().invoke(cli, ["--workspace", str(tmp_path / "new"), "--no-gpu", *argv])
        assert got.exit_code == 0 and not (tmp_path / "new").exists()


def test_a_disk_that_fills_up_does_not_stop_verifying(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    ir_id = engine.propose(text=KMEANS).ids["ir_id"]

    def full(*_: object) -> None:
        raise StoreError("storage/full", "the workspace could not store the program: full", "free space")

    monkeypatch.setattr(engine.store, "_write", full)
    got = engine.verify(Ref(id=ir_id))
    assert got.status == "accepted" and "nothing was stored (storage/full" in got.summary and got.next == "free space"
    assert engine.artifact_text(got.artifacts[0].uri), "artifacts of the answer can still be read"
    with pytest.raises(EngineError, match="full"):
        engine.propose(text=KMEANS + "\n")


@pytest.mark.anyio
async def test_the_server_starts_answers_and_recovers(blocked: Path) -> None:
    server = StdioServerParameters(
        command=SERVE[0], args=[*SERVE[1:], "--workspace", str(blocked)], env={"PYTHONPATH": str(ROOT)}
    )
    async with Client(server) as client:
        assert (await call(client, "verify", text=KMEANS))["status"] == "accepted"
        for tool, arguments in (
            ("propose_ir", {"text": KMEANS}),
            ("compile_and_bench", {"ir_id": "ir_" + "0" * 32}),
            ("report_failure", {"symptom": "inexpressible"}),
            ("verify", {"ir_id": "ir_" + "0" * 32}),
        ):
            assert (await call(client, tool, **arguments))["code"] == "storage/unavailable", tool
        blocked.parent.unlink()
        assert (await call(client, "propose_ir", text=KMEANS))["status"] == "ok"


def test_all_files_of_the_store_are_private(workspace: Path) -> None:
    engine = Engine(Config(workspace, no_gpu=True))
    CakeServer(engine)
    engine.propose(text=KMEANS)
    modes = {p.name: p.stat().st_mode & 0o777 for p in workspace.iterdir() if p.is_file()}
    assert {"cake.db", "cake.db-wal", "cake.db-shm"} <= set(modes) and set(modes.values()) == {0o600}
    engine.close()
    shutil.rmtree(workspace)


def test_the_operator_is_told_what_is_wrong_at_the_start(blocked: Path, tmp_path: Path) -> None:
    from structlog.testing import capture_logs

    from server import serve

    (tmp_path / "c").mkdir()
    (tmp_path / "c/bad.py").write_text("x = 1 / 0\n")
    engine = Engine(Config(blocked, no_gpu=True, contracts_dir=tmp_path / "c"))
    with capture_logs() as logs:
        looking = serve.warn_of_problems(engine)
        assert looking is not None
        looking.join(30)
    said = [entry["event"] for entry in logs]
    assert said[0].startswith("workspace unusable") and said[1:] == ["contract file did not load", "contracts loaded"]
    assert "bad.py:1: failed to load: ZeroDivisionError" in logs[1]["problem"]
