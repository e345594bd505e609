"""`cake selftest` and `cake results`: a run goes on whatever one kernel does; the device is played over host memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from corpus import bundle
from server import catalog, selftest
from server.cli import cli
from server.errors import BadArgument, EngineError, Missing
from server.worker import Control, WorkerDied
from tests.corpus import played_gpu
from tests.corpus.fake_device import at
from tests.corpus.played_gpu import PlayedGpu


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PlayedGpu:
    fake = PlayedGpu()
    monkeypatch.setattr(selftest, "run_worker", fake)
    monkeypatch.setattr(catalog.Catalog, "gpu_indices", lambda self: [0])
    return fake


def run(tmp_path: Path, **more: Any) -> selftest.Outcome:
    more = {"only": ["rmsnorm"], "quick": True, "command": "cake selftest", **more}
    return selftest.run(0, tmp_path / "b.zip", Control(), **more)


def outcomes(done: selftest.Outcome) -> list[tuple[str, str, str]]:
    return [(p.entry.name, p.entry.status, p.entry.code) for p in done.parts]


HUNG = WorkerDied("worker/hung", "rmsnorm did not end: launch 1", "log", "report it")


def test_a_hang_costs_its_own_row_only(gpu: PlayedGpu, tmp_path: Path) -> None:
    gpu.faults["rmsnorm", "check"] = HUNG
    done = run(tmp_path)
    assert outcomes(done) == [("rmsnorm-check", "error", "worker/hung"), ("rmsnorm-bench", "passed", "")]
    got = bundle.read(tmp_path / "b.zip")
    assert got.manifest.complete and got.parts[0].result is None and got.parts[0].job is not None and not done.passed
    assert "did not end" in got.manifest.entries[0].message


def test_a_device_that_stays_dead_ends_the_rest_with_its_reason(gpu: PlayedGpu, tmp_path: Path) -> None:
    gpu.faults["rmsnorm", "check"] = HUNG
    gpu.answers = False
    done = run(tmp_path)
    assert outcomes(done) == [("rmsnorm-check", "error", "worker/hung"), ("rmsnorm-bench", "error", "gpu/unusable")]
    assert "does not answer" in done.parts[1].entry.message and len(gpu.jobs) == 1


def test_wrong_results_and_a_kernel_that_does_not_build_are_rows(
    gpu: PlayedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(plan: Any, pointers: Any) -> None:
        played_gpu.rmsnorm(plan, pointers)
        at(pointers["y"], 2).view(np.uint16)[0] ^= 0x4000

    gpu.body = wrong
    done = run(tmp_path)
    assert [o[1] for o in outcomes(done)] == ["failed", "passed"]
    assert "failed" in done.parts[0].entry.message and bundle.read(tmp_path / "b.zip").parts[0].result is not None

    def broken(job: dict[str, Any]) -> dict[str, Any]:
        return {"diagnostic": {"rule": "lowering/compile-failed", "message": "the generated CUDA was refused"}}

    monkeypatch.setattr(
        selftest, "run_worker", lambda m, j, **k: broken(j) if m == "server.cpu_main" else gpu(m, j, **k)
    )
    assert outcomes(run(tmp_path))[0] == ("rmsnorm-check", "error", "lowering/compile-failed")


def test_a_run_that_is_cut_short_leaves_what_it_has(gpu: PlayedGpu, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def tell(row: dict[str, Any]) -> None:
        raise Stop

    with pytest.raises(Stop):
        run(tmp_path, tell=tell)
    got = bundle.read(tmp_path / "b.zip")
    assert [p.entry.status for p in got.parts] == ["passed"] and not got.manifest.complete


@pytest.mark.parametrize(
    ("capability", "target", "has"),
    [([10, 0], "sm_100a", "gemm_sm100"), ([9, 0], "sm_90a", "gemm_sm90"), ([8, 0], "sm_80", "gemm_sm80")],
)
def test_the_plan_holds_the_kernels_of_the_device(capability: list[int], target: str, has: str) -> None:
    steps = selftest.plan({"name": "x", "compute_capability": capability})
    assert {s.target for s in steps} == {target} and has in {s.kernel.name for s in steps}
    kinds = [s.kind for s in steps]
    assert kinds == sorted(kinds, reverse=True) and kinds.count("check") == kinds.count("bench")  # numbers before times
    assert len({s.name for s in steps}) == len(steps)
    assert all(s.more["modes"] == ("warm", "cold") and len(s.shapes) == 2 for s in steps if s.kind == "bench")


def test_what_cannot_be_run_is_coded(gpu: PlayedGpu, tmp_path: Path) -> None:
    with pytest.raises(Missing, match="written for") as caught:
        selftest.plan({"name": "L4", "compute_capability": [8, 9]})
    assert caught.value.code == "gpu/other-target"
    with pytest.raises(BadArgument, match="no kernel 'nope'"):
        run(tmp_path, only=["nope"])
    with pytest.raises(Missing) as none:
        selftest.run(None, tmp_path / "b.zip", Control(), command="x")
    assert none.value.code == "gpu/none" and "cake doctor" in none.value.next
    with pytest.raises(BadArgument, match="is not a directory"):
        selftest.run(0, tmp_path / "no" / "b.zip", Control(), command="x")


# ---- the commands --------------------------------------------------------------------------------------------------

Cake = Callable[..., tuple[int, str]]


@pytest.fixture
def cake(tmp_path: Path) -> Cake:
    def call(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["--workspace", str(tmp_path / "ws"), *words])
        return done.exit_code, done.output

    return call


def test_the_bundle_of_one_machine_is_taken_in_on_another(gpu: PlayedGpu, cake: Cake, tmp_path: Path) -> None:
    out, into = tmp_path / "b.zip", tmp_path / "results"
    code, said = cake("selftest", "--quick", "--kernels", "rmsnorm", "--out", str(out))
    assert code == 0 and "2 jobs on Test H200: 2 passed" in said and "rmsnorm" in said
    code, said = cake("results", "--import", str(out), "--into", str(into), "--json")
    got = json.loads(said[said.index("{") :])
    assert code == 0 and [r["action"] for r in got["data"]["rows"]] == ["added", "added"]
    assert "2 added" in got["summary"] and "Test H200" in got["summary"]
    code, said = cake("results", "--into", str(into), "--json")
    (row,) = json.loads(said)
    assert (
        code == 0 and row["stale"] is None and row["evidence"]["command"] == "cake selftest --quick --kernels rmsnorm"
    )
    code, said = cake("results", "--import", str(out), "--into", str(into))
    assert code == 0 and "2 replaced" in said
    out.write_bytes(out.read_bytes()[:-30])
    code, said = cake("results", "--import", str(out), "--into", str(into))
    assert code == 2 and "bundle/unreadable" in said


def test_a_failed_job_is_exit_code_1(gpu: PlayedGpu, cake: Cake, tmp_path: Path) -> None:
    gpu.faults["rmsnorm", "bench"] = EngineError("lowering/device-fault", "CUDA_ERROR_ILLEGAL_ADDRESS")
    code, said = cake("selftest", "--quick", "--kernels", "rmsnorm", "--out", str(tmp_path / "b.zip"))
    assert code == 1 and "1 passed, 1 error" in said and "ILLEGAL_ADDRESS" in said


def test_without_a_gpu_it_says_what_to_do(cake: Cake, tmp_path: Path) -> None:
    code, said = cake("--no-gpu", "selftest", "--out", str(tmp_path / "b.zip"))
    assert code == 2 and "gpu/none" in said and "cake doctor" in said and not (tmp_path / "b.zip").exists()


def test_stale_rows_are_shown_and_recorded(gpu: PlayedGpu, cake: Cake, tmp_path: Path) -> None:
    out, into = tmp_path / "b.zip", tmp_path / "results"
    cake("selftest", "--quick", "--kernels", "rmsnorm", "--out", str(out))
    cake("results", "--import", str(out), "--into", str(into))
    path = into / "rmsnorm.json"
    path.write_text(path.read_text().replace('"cubin_sha256": "', '"cubin_sha256": "0'))
    assert cake("results", "--into", str(into))[1].count("stale") == 0
    code, said = cake("results", "--into", str(into), "--rebuild")
    assert code == 1 and "stale.json does not say" in said and "now builds to cubin" in said
    assert cake("results", "--into", str(into), "--rebuild", "--mark")[0] == 0
    code, said = cake("results", "--into", str(into))
    assert code == 0 and "1 committed measurements, 1 stale" in said
    for words in (["--mark"], ["--import", str(out), "--rebuild"]):
        assert cake("results", *words)[0] == 2


def test_losses_come_first(cake: Cake) -> None:
    code, said = cake("results", "--json")
    ratios = [r["ratio"] for r in json.loads(said) if r["ratio"] is not None]
    assert code == 0 and ratios == sorted(ratios) and ratios[0] < 1
