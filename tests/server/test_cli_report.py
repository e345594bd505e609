"""`cake report`: what it takes, what it writes, how it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from server.cli import cli
from server.engine import Config, Engine
from server.programs import Ref
from tests.server.conftest import KMEANS, ROOT
from tests.server.report.samples import bench, profile, shape


def run(tmp_path: Path, *argv: object) -> Result:
    got = CliRunner().invoke(cli, ["--workspace", str(tmp_path / "ws"), "--no-gpu", "report", *map(str, argv)])
    assert got.exception is None or isinstance(got.exception, SystemExit), got.exception
    assert "Traceback" not in got.output
    return got


@pytest.fixture
def variant(tmp_path: Path) -> str:
    """A k-means kernel with one timing in the workspace, another program without."""
    engine = Engine(Config(tmp_path / "ws", no_gpu=True))
    unit = engine.programs.units(engine.programs.load(Ref(text=KMEANS)))[0]
    raw = bench(unit.kernel, [shape(256, "slower", 0.5)])
    engine.store.put_measurement(unit.variant_id, "gemm_bf16", {}, "d", "bench", "passed", {"raw": raw})
    engine.close()
    (tmp_path / "kmeans.cake").write_text(KMEANS)
    (tmp_path / "other.cake").write_text((ROOT / "corpus/kernels/softmax.cake").read_text())
    return unit.variant_id


def told(got: Result) -> dict[str, Any]:
    return json.loads(got.stdout)["data"]


@pytest.mark.parametrize("by", ["id", "file", "all", "twice"])
def test_stored_evidence_by_id_or_file(tmp_path: Path, variant: str, by: str) -> None:
    page, file = tmp_path / "page.html", tmp_path / "kmeans.cake"
    what = {"id": [variant], "file": [file], "all": [], "twice": [variant, file]}[by]
    data = told(run(tmp_path, *what, "-o", page, "--json"))
    assert (data["timings"], data["verdicts"]) == (1, {"slower": 1})
    assert page.read_text().startswith("<!DOCTYPE html>") and data["bytes"] == page.stat().st_size
    assert told(run(tmp_path, *what, "-o", page, "--json", "--contract", "softmax"))["timings"] == 0
    assert told(run(tmp_path, *what, "-o", page, "--json", "--kernel", "none"))["timings"] == 0


def test_a_file_without_evidence_is_named_with_the_command(tmp_path: Path, variant: str) -> None:
    other, page = tmp_path / "other.cake", tmp_path / "page.html"
    data = told(run(tmp_path, other, "-o", page, "--json"))
    assert (
        data["timings"] == 0
        and f"cake bench {other}" in data["missing"]["timings"][0]
        and f"cake bench {other}" in page.read_text()
    )


def test_committed_rows_need_no_workspace(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    got = run(tmp_path, "--committed", "--kernel", "softmax", "-o", page)
    assert got.exit_code == 0 and "1 timings" in got.stdout and "softmax" in page.read_text()
    assert "gemm_sm90" not in page.read_text() and not (tmp_path / "ws").exists()


def test_a_profile_and_a_comparison(tmp_path: Path) -> None:
    one, two, page = tmp_path / "one.json", tmp_path / "two.json", tmp_path / "page.html"
    one.write_text(json.dumps(profile()))
    two.write_text(json.dumps(profile(slow=1.5)))
    assert run(tmp_path, one, "-o", page).exit_code == 0
    text = page.read_text()
    assert "<h1>Profile of gemm_sm90</h1>" in text and "def gemm_sm90" in text
    assert (
        run(tmp_path, one, two, "-o", page).exit_code == 0 and "<h1>Two profiles of gemm_sm90</h1>" in page.read_text()
    )
    (tmp_path / "mine.cake").write_text("# my own text\n")
    assert (
        run(tmp_path, one, "--program", tmp_path / "mine.cake", "-o", page).exit_code == 0
        and "my own text" in page.read_text()
    )
    # The corpus text of today does not number the lines of another text.
    one.write_text(json.dumps({**profile(), "content_id": "ir_" + "0" * 32}))
    assert run(tmp_path, one, "-o", page).exit_code == 0 and "def gemm_sm90" not in page.read_text()


def test_refusals_say_what_to_do(tmp_path: Path, variant: str) -> None:
    page = tmp_path / "page.html"
    broken, odd, noprofile = tmp_path / "broken.cake", tmp_path / "odd.json", tmp_path / "no.json"
    broken.write_text("def (")
    odd.write_text(json.dumps({"timeline": {"tracks": [{}]}}))
    noprofile.write_text("[]")
    cases: list[tuple[list[object], str]] = [
        (["x"], "neither an id nor a file"), (["missing.cake"], "cannot be read"), ([broken], "does not parse"),
        ([odd], "not of the form"),
        ([noprofile], "is not a profile"), (["none.json"], "cannot be read"), ([odd, odd, odd], "one or two .json profiles"),
        ([odd, variant], "one or two .json profiles"), (["v_" + "0" * 32], "no variant with id"),
        (["ir_" + "0" * 32], "no program with id"),
        (["--committed", variant], "takes no ids"), (["--contract", "nope"], "no contract named"),
        (["--committed", "--kernel", "nope"], "the corpus has no kernel 'nope'"),
        (["--program", "x"], "belongs to a profile"),
    ]  # fmt: skip
    for argv, words in cases:
        got = run(tmp_path, *argv, "-o", page)
        assert got.exit_code == 2 and words in got.output, (argv, got.output)
        assert not page.exists()
    assert "is not a directory" in run(tmp_path, "-o", tmp_path / "none" / "page.html").output
    assert run(tmp_path).exit_code == 2


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path, variant: str) -> None:
    pipe = tmp_path / "pipe.html"
    os.mkfifo(pipe)
    for argv in (["report", variant, "-o", pipe], ["selftest", "--out", pipe]):
        got = CliRunner().invoke(cli, ["--workspace", str(tmp_path / "ws"), "--no-gpu", *map(str, argv)])
        assert got.exit_code == 2 and "no regular file" in got.output and pipe.is_fifo()


def test_endless_files_and_halves_of_characters_are_answered(tmp_path: Path) -> None:
    page, endless, half = tmp_path / "page.html", tmp_path / "endless.json", tmp_path / "half.json"
    endless.symlink_to("/dev/zero")
    got = run(tmp_path, endless, "-o", page)
    assert got.exit_code == 2 and "too large" in got.output and not page.exists()
    half.write_text(json.dumps({**profile(), "kernel": "\ud800\x1b[31m"}))
    got = run(tmp_path, half, "-o", page)
    assert got.exit_code == 0 and "\x1b" not in got.output and "\x1b" not in page.read_text()


def test_a_full_disk_leaves_the_old_page(tmp_path: Path, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("server.cli_report.os.replace", full)
    got = run(tmp_path, variant, "-o", page)
    assert got.exit_code == 2 and "storage/unavailable" in got.output and page.read_text() == "old"
    assert [p.name for p in tmp_path.glob(".page*")] == []
