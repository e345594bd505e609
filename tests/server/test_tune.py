"""`cake tune`, `cake families`, `cake routes`: the commands over a played GPU, and what they say when they cannot."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import corpus.families
import server.tuning
from corpus import files
from corpus.tuning import prepare, run
from lowering.runtime import bench
from server import catalog
from server.cli import cli
from server.errors import EngineError
from server.store import Store
from server.worker import WorkerDied
from tests.corpus.tuning import small
from tests.corpus.tuning.played import Played
from tests.corpus.tuning.test_run import by_width

Cake = Callable[..., tuple[int, str]]


@pytest.fixture
def cake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cake:
    """The command line, with the small family instead of the real ones."""
    known = {"small": small.FAMILY}
    monkeypatch.setattr(corpus.families, "families", lambda: known)
    monkeypatch.setattr(run, "family", known.__getitem__)

    def call(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["--workspace", str(tmp_path / "ws"), *words])
        return done.exit_code, done.output

    return call


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cake: Cake) -> tuple[Path, Path]:
    """A campaign folder and the journal of its run."""
    directory, out = tmp_path / "campaign", tmp_path / "out.jsonl"
    gpu = Played(small.make(directory), by_width)
    monkeypatch.setattr(bench, "bench", gpu.bench)
    run.attempt(directory, out, budget_s=60, env=gpu.env())
    return directory, out


def test_record_writes_table_record_and_evidence(cake: Cake, ran: tuple[Path, Path], tmp_path: Path) -> None:
    code, said = cake("tune", "small", "--record", *map(str, ran), "--tables", str(tmp_path / "t"), "--json")
    got = json.loads(said[said.index("{") :])
    assert code == 0 and "Played H200" in got["summary"] and got["data"]["gates"]["seeds"] == 8
    assert (tmp_path / "t" / "small.sm_90a.json").is_file() and (tmp_path / "t" / "tuning" / "small.json").is_file()
    store = Store(tmp_path / "ws", read_only=True)
    table = json.loads((tmp_path / "t" / "small.sm_90a.json").read_text())
    for route in table["routes"]:
        for name in route["evidence"]:
            kept = store.measurement(name)
            assert kept is not None and kept["record"]["candidate"] == route["variant"] and kept["kind"] == "tuning"
    before = store.counts()
    store.close()
    again, _ = cake("tune", "small", "--record", *map(str, ran), "--tables", str(tmp_path / "t"))
    assert again == 0 and Store(tmp_path / "ws", read_only=True).counts() == before


def test_losses_come_first(cake: Cake, ran: tuple[Path, Path], tmp_path: Path) -> None:
    code, said = cake("tune", "small", "--record", *map(str, ran), "--tables", str(tmp_path / "t"), "--json")
    rows = json.loads(said[said.index("{") :])["data"]["rows"]
    kinds = [r["what"].split()[0].rstrip(",") for r in rows]
    order = ["loss", "set", "quarters", "route", "fallback"]
    assert code == 0 and [order.index(k) for k in kinds] == sorted(order.index(k) for k in kinds)


def test_a_choice_is_explained(cake: Cake, ran: tuple[Path, Path], tmp_path: Path) -> None:
    cake("tune", "small", "--record", *map(str, ran), "--tables", str(tmp_path / "t"))
    code, said = cake("routes", "small", "--tables", str(tmp_path / "t"))
    assert code == 0 and "Played H200" in said and "else" in said
    code, said = cake("routes", "small", "--tables", str(tmp_path / "t"), "--shape", "B=1,N=500,C=100,D=120", "--json")
    got = json.loads(said[said.index("{") :])
    assert code == 0 and got["data"]["bindings"]["DP"] == 128 and got["data"]["bindings"]["WG"] == 3
    assert got["data"]["rows"][-1]["why"] in ("serves",) or got["data"]["rows"][-1]["route"] == "else"
    code, said = cake("routes", "small", "--tables", str(tmp_path / "t"), "--shape", "B=1,N=500,C=100,D=999")
    assert code == 2 and "dispatch/not-admitted" in said
    code, said = cake("routes", "small", "--tables", str(tmp_path / "none"))
    assert code == 2 and "dispatch/no-table" in said


def test_families_name_kernels_tables_and_files(cake: Cake) -> None:
    code, said = cake("families", "--json")
    rows = {r["family"]: r for r in json.loads(said)}
    assert code == 0 and set(rows) == {"small", "row_norms"}
    assert rows["small"]["tables"] == "none" and "kmeans_packed" in rows["small"]["kernels"]
    assert rows["row_norms"]["tables"] == "sm_90a" and rows["row_norms"]["kernels"] == ["row_norms"]
    code, said = cake("routes", "row_norms")
    assert code == 0 and "no measurement made this table" in said


def test_what_cannot_be_is_said(
    cake: Cake, ran: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = cake("tune", "nope")
    assert code == 2 and "tuning/unknown-family" in said and "small" in said
    code, said = cake("--no-gpu", "tune", "small")
    assert code == 2 and "gpu/none" in said and "--prepare DIR" in said
    code, said = cake("tune", "small", "--prepare", str(tmp_path / "p"), "--only-shapes", "B=1,N=100000,C=100,D=16")
    assert code == 2 and "tuning/bad-shape" in said
    code, said = cake("tune", "small", "--record", str(tmp_path / "empty"), str(ran[1]))
    assert code == 2 and "tuning/bad-campaign" in said
    code, said = cake("tune", "small", "--record", str(ran[0]), str(tmp_path / "nothing.jsonl"))
    assert code == 2 and "args/file" in said
    code, said = cake("families")
    assert code == 0 and "kmeans_packed" in said and "cake routes FAMILY" in said
    code, said = cake("tune", "row_norms")
    assert code == 2 and "corpus.recipes untuned" in said

    def full(*a: Any, **k: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "replace", full)
    code, said = cake("tune", "small", "--record", *map(str, ran), "--tables", str(tmp_path / "t"))
    assert code == 2 and "storage/full" in said and not list((tmp_path / "t").glob("*.json"))


def test_with_a_gpu_it_is_one_command_that_goes_on_after_a_kill(
    cake: Cake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preparing is played too (compiling is tested elsewhere); the worker dies twice, once with a candidate under way."""
    prepared: list[Path] = []
    ends = [WorkerDied("worker/killed", "the worker was ended by SIGKILL", "", "call again"), None]

    def prepare_small(family: Any, directory: Path, **more: Any) -> Any:
        prepared.append(directory)
        return small.make(directory)

    def worker(module: str, job: dict[str, Any], **more: Any) -> dict[str, Any]:
        assert module == "corpus.tuning.run"
        directory, out = Path(job["directory"]), Path(job["out"])
        gpu = Played(small.make(directory), by_width)
        monkeypatch.setattr(bench, "bench", gpu.bench)
        if (end := ends.pop(0)) is not None:
            raise end
        return run.attempt(directory, out, budget_s=60, env=gpu.env())

    monkeypatch.setattr(server.tuning, "prepare", prepare_small)
    monkeypatch.setattr(server.tuning, "run_worker", worker)
    monkeypatch.setattr(catalog.Catalog, "gpu_indices", lambda self: [0])
    code, said = cake("tune", "small", "--tables", str(tmp_path / "t"))
    assert code == 0 and not ends and len(prepared) == 1, said
    assert (tmp_path / "ws" / "tuning" / "small" / "journal.jsonl").is_file()
    assert (tmp_path / "t" / "small.sm_90a.json").is_file()


def test_prepare_counts_what_the_gates_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Really compiled, two candidates."""
    settings = prepare.Settings(compiled=2, ranked=4)
    made = prepare.prepare(
        small.FAMILY, tmp_path, target="sm_90a", settings=settings, seed=1, command="cake tune small", date="2026-11-30T12:00:00Z",
        commit="", cache_dir=tmp_path / "cubins",
    )  # fmt: skip
    assert (made.seeds, made.legal, made.verified) == (8, len(small.legal()), 2)
    assert {(r.gate, r.rule) for r in made.rejected} == {("verify", "hardware/smem-capacity")}
    assert len(made.rejected) == 8 - made.legal and all(r.cost_s and r.cost_s > 0 for r in made.rejected)
    assert made.left_out == made.legal - 2 and len(made.candidates) == 2
    assert all(e.candidates["bf16"] for e in made.shapes)


def test_one_tuning_of_a_family_at_a_time(tmp_path: Path) -> None:
    """The second would move the journal and the campaign from under the first."""
    home = tmp_path / "tuning" / "small"
    with server.tuning.alone(home):
        with pytest.raises(EngineError, match="another tuning of small"), server.tuning.alone(home):
            pass
        with server.tuning.alone(tmp_path / "tuning" / "other"):
            pass
    with server.tuning.alone(home):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError) as found, server.tuning.alone(tmp_path / "file" / "x"):
        pass
    assert found.value.code == "storage/unavailable"
