"""Shapes that were asked for are looked at, refused, or named as not looked at."""

from __future__ import annotations

from pathlib import Path

import pytest
from mcp import Client

from server import gpu_work
from server.cli import cli
from server.engine import Engine
from server.programs import Ref
from server.shapes import interpretable, unchecked
from tests import compiled
from tests.server.conftest import KMEANS, ROOT, call

SMALL = {"B": 1, "N": 130, "C": 200, "D": 64}
LARGE = {"B": 32, "N": 65536, "C": 1024, "D": 128}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("tool", "arguments", "code", "says"),
    [
        ("compile_and_bench", {"shapes": "foo"}, "args/shape", "no shape set 'foo'"),
        ("compile_and_bench", {"shapes": [{"B": 1}]}, "args/shape", "gives exactly"),
        ("profile", {"shape": {"B": 1}}, "args/shape", "gives exactly"),
    ],
)
async def test_wrong_shapes_are_refused_before_any_work(
    client: Client, tool: str, arguments: dict[str, object], code: str, says: str
) -> None:
    ir_id = (await call(client, "propose_ir", text=KMEANS))["ids"]["ir_id"]
    got = await call(client, tool, ir_id=ir_id, contract="kmeans_assign", **arguments)
    assert got["code"] == code and says in got["summary"]


@pytest.fixture
def cpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU worker answers from this process."""
    monkeypatch.setattr(gpu_work, "run_worker", compiled.worker)


@pytest.mark.anyio
@pytest.mark.usefixtures("cpu_here")
async def test_a_named_set_that_needs_a_gpu_is_not_passed_silently(client: Client) -> None:
    ir_id = (await call(client, "propose_ir", text=KMEANS))["ids"]["ir_id"]
    got = await call(
        client, "compile_and_bench", ir_id=ir_id, contract="kmeans_assign", shapes="heldout", until="check", wait_s=120
    )
    assert got["status"] == "passed" and "boundary shapes only; heldout not checked" in got["summary"]
    assert got["data"]["not_checked"] == "boundary shapes only; heldout not checked"


def test_what_is_left_out_is_named() -> None:
    from corpus.contract import contracts

    spec = contracts()["kmeans_assign"]
    assert unchecked(spec, "boundary", "boundary") == "" and unchecked(spec, [SMALL], [SMALL]) == ""
    mixed = unchecked(spec, [SMALL, LARGE], interpretable(spec, [SMALL, LARGE]))
    assert mixed.startswith("too large to interpret") and "N=65536" in mixed
    assert unchecked(spec, [LARGE], interpretable(spec, [LARGE])).startswith("boundary shapes only; too large")


def test_bench_without_a_gpu_still_refuses_an_unknown_set(tmp_path: Path) -> None:
    from click.testing import CliRunner

    file = str(ROOT / "tests/server/data/kmeans.cake")
    argv = ["--workspace", str(tmp_path / "ws"), "--no-gpu", "bench", file, "--contract", "kmeans_assign"]
    got = CliRunner().invoke(cli, [*argv, "--shapes", "held_out"])
    assert got.exit_code == 2 and "it has tuning, heldout, boundary" in got.output


def test_shape_sets_are_spelled_alike_everywhere() -> None:
    files = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("server/*.py"), *ROOT.glob("corpus/*.py")]
    assert [f.name for f in files if "held_out" in f.read_text()] == []


@pytest.mark.usefixtures("cpu_here")
def test_listed_shapes_that_nobody_would_wait_for_give_way_to_the_boundary_set(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.evaluate.CHECK_TIMEOUT_S", 8.0)
    large = {"B": 1, "N": 60_000, "C": 600, "D": 128}
    got = engine.evaluate.compile_and_bench(Ref(text=KMEANS), "kmeans_assign", [large], until="check")
    assert got.status == "passed" and got.data["check_cpu"]["counts"].get("passed")
    assert "boundary shapes only; too large to interpret, so not checked: B=1,N=60000" in got.summary
    alone = engine.evaluate.check(Ref(text=KMEANS), "kmeans_assign", [large])
    assert (
        alone.status == "failed" and alone.data["too_large"] == [large] and "to interpret, at most 4 s" in alone.summary
    )
