"""`cake calibrate` on a machine without a GPU: prepare, record, show, and what is refused; `cake estimate --device`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from mcp import Client

from corpus.calibrate import run as measuring
from corpus.calibrate.prepare import read
from server.cli import cli
from tests.corpus.test_calibrate import answers
from tests.server.conftest import call

KERNEL = Path(__file__).parents[2] / "corpus" / "kernels" / "rmsnorm.cake"


def run(tmp_path: Path, *argv: object) -> Result:
    got = CliRunner().invoke(cli, ["--workspace", str(tmp_path / "ws"), "--no-gpu", *map(str, argv)])
    assert got.exception is None or isinstance(got.exception, SystemExit), got.exception
    assert "Traceback" not in got.output
    return got


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Jobs of one microbenchmark, and what a GPU would answer."""
    base = tmp_path_factory.mktemp("calibrate")
    made = run(base, "calibrate", "--prepare", base / "jobs", "--only", "barrier.named.role.groups1", "--sms", 16)
    assert made.exit_code == 0 and "python -m corpus.calibrate.run" in made.output
    (base / "out").mkdir()
    (base / "out" / measuring.ANSWERS).write_text(json.dumps(answers(read(base / "jobs"))))
    return base


def test_answers_are_recorded_and_shown(folder: Path, tmp_path: Path) -> None:
    files = tmp_path / "calibration"
    got = run(tmp_path, "calibrate", "--record", folder / "jobs", folder / "out", "--files", files, "--json")
    assert got.exit_code == 0, got.output
    told: dict[str, Any] = json.loads(got.stdout)
    assert told["data"]["rows"] == [
        {"device": "Test GPU", "rate": "barrier.named.role.groups1", "unit": "clk", "value": 1000.0, "low": 1000.0, "high": 1000.0}
    ]  # fmt: skip
    shown = run(tmp_path, "calibrate", "--show", "--files", files)
    assert (
        shown.exit_code == 0
        and "Test GPU, 2026-11-30" in shown.output
        and "data sheet only: NVIDIA A100" in shown.output
    )
    assert "barrier" not in run(tmp_path, "calibrate", "--show", "--files", files, "--only", "tensor").output


def test_the_committed_calibration_is_shown(tmp_path: Path) -> None:
    told = json.loads(run(tmp_path, "calibrate", "--show", "--only", "tensor.wgmma.bf16.rs", "--json").stdout)
    assert {r["device"] for r in told["data"]["rows"]} == {"NVIDIA H200"} and len(told["data"]["rows"]) == 6
    assert "NVIDIA H200" not in told["data"]["uncalibrated"]


def test_without_a_gpu_the_steps_are_said(tmp_path: Path) -> None:
    got = run(tmp_path, "calibrate")
    assert got.exit_code == 2 and "gpu/none" in got.output and "--prepare DIR" in got.output


@pytest.mark.parametrize(("argv", "words"), [
    (("--show", "--prepare", "x"), "steps of their own"),
    (("--record", "nowhere", "nowhere"), "corpus/bad-jobs"),
    (("--prepare", "x", "--only", "nothing.like.this"), "corpus/no-probes"),
    (("--prepare", "x", "--target", "sm_80"), "corpus/no-probes"),
    (("--prepare", "x", "--target", "sm_1"), "hardware/unknown-target"),
    (("--show", "--files", "nowhere"), "no directory"),
])  # fmt: skip
def test_what_cannot_be_is_refused(tmp_path: Path, argv: tuple[str, ...], words: str) -> None:
    got = run(tmp_path, "calibrate", *(tmp_path / a if a in ("x", "nowhere") else a for a in argv))
    assert got.exit_code == 2 and words in got.output


def test_answers_of_nothing_are_refused(folder: Path, tmp_path: Path) -> None:
    got = run(tmp_path, "calibrate", "--record", folder / "jobs", tmp_path, "--files", tmp_path)
    assert got.exit_code == 2 and "no answer of a run" in got.output


def test_an_estimate_names_its_device_or_declines(tmp_path: Path) -> None:
    argv = ("estimate", KERNEL, "--shape", "M=16384,D=4096", "--target")
    got = json.loads(run(tmp_path, *argv, "sm_90a", "--device", "NVIDIA H200", "--json").stdout)
    assert got["data"]["calibrated"] is True and "rates measured on NVIDIA H200" in got["summary"]
    got = json.loads(run(tmp_path, *argv, "sm_80", "--json").stdout)
    assert got["data"]["calibrated"] is False and "uncalibrated, so bounds only" in got["summary"]
    got = run(tmp_path, *argv, "sm_90a", "--device", "NVIDIA H100 PCIe")
    assert got.exit_code == 1 and "cost/unknown-device" in got.output and "cake calibrate" in got.output


@pytest.mark.anyio
async def test_the_tool_claims_bounds_only_without_a_calibration_and_declines_unknown_devices(client: Client) -> None:
    asked = {"text": KERNEL.read_text(), "shape": {"M": 16384, "D": 4096}}
    sheet = await call(client, "estimate_cost", **asked, target="sm_80")
    assert sheet["data"]["calibrated"] is False and "data sheet" in sheet["data"]["source"]
    assert f"at least {sheet['data']['floor_us']:.4g} us; uncalibrated, so bounds only" in sheet["summary"]
    unknown = await call(client, "estimate_cost", **asked, target="sm_90a", device="NVIDIA H20")
    (why,) = unknown["diagnostics"]
    assert unknown["status"] == "rejected" and "data" not in unknown
    assert why["rule"] == "cost/unknown-device" and "cake calibrate" in why["message"]
