"""The command line: exit codes, --json, excerpts with carets, listings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from server.cli import cli
from tests.server.conftest import BROKEN, KMEANS, LEFT_OUT_AT, ROOT

SHAPE = "B=32,N=65536,C=1024,D=128"


@pytest.fixture
def kmeans(tmp_path: Path) -> Path:
    path = tmp_path / "kmeans.cake"
    path.write_text(KMEANS)
    return path


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.cake"
    path.write_text(BROKEN)
    return path


def run(tmp_path: Path, *argv: object) -> Result:
    got = CliRunner().invoke(cli, ["--workspace", str(tmp_path / "ws"), "--no-gpu", *map(str, argv)])
    assert got.exception is None or isinstance(got.exception, SystemExit), got.exception
    assert "Traceback" not in got.output
    return got


def as_json(got: Result) -> Any:
    return json.loads(got.stdout)


def test_verify_accepts_and_exits_0(tmp_path: Path, kmeans: Path) -> None:
    got = run(tmp_path, "verify", kmeans)
    assert got.exit_code == 0 and "accepted" in got.stdout
    told = as_json(run(tmp_path, "verify", kmeans, "--json", "--set", "STAGES=3"))
    assert told["status"] == "accepted" and told["ids"]["variant_id"].startswith("v_")


def test_a_crash_of_an_analysis_leaves_stdout_to_results(
    tmp_path: Path, kmeans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import analyses

    def crash(bound: object, prove: bool) -> None:
        raise KeyError("acc")

    monkeypatch.setattr(analyses, "verify", crash, raising=False)
    got = CliRunner().invoke(cli, ["--workspace", str(tmp_path / "ws"), "--no-gpu", "verify", str(kmeans)])
    assert got.exit_code == 2 and "verifier crashed" not in got.stdout
    assert "verifier crashed" in got.stderr and "KeyError: 'acc'" in got.stderr and "BoundKernel(" not in got.stderr


def test_verify_rejects_with_an_excerpt_and_exits_1(tmp_path: Path, broken: Path) -> None:
    got = run(tmp_path, "verify", broken)
    assert got.exit_code == 1
    lines = got.stdout.split("\n")
    at = next(i for i, line in enumerate(lines) if "-->" in line)
    assert f"{broken}:{LEFT_OUT_AT + 1}:" in lines[at]
    assert lines[at + 1].strip().startswith(f"{LEFT_OUT_AT + 1} |") and lines[at + 2].strip().startswith("|")
    column = int(lines[at].rsplit(":", 1)[1])
    assert lines[at + 2].index("^") - lines[at + 1].index("|") - 2 == column - 1
    told = as_json(run(tmp_path, "verify", broken, "--json"))
    assert told["status"] == "rejected" and told["diagnostics"][0]["line"] == LEFT_OUT_AT + 1


def test_a_fix_says_where_it_goes_and_what_it_does_not_promise(tmp_path: Path, broken: Path) -> None:
    lines = run(tmp_path, "verify", broken).stdout.split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith("  fix: "))
    after = BROKEN.split("\n")[LEFT_OUT_AT - 1].strip()
    assert f"(before line {LEFT_OUT_AT}: `{after}`)" in lines[at]
    shown = [line.strip() for line in lines[at + 1 : at + 4]]
    assert any(s.startswith("| +") and s.endswith("wait(free[n - STAGES])") for s in shown), shown
    assert any(s.startswith(f"{LEFT_OUT_AT} |") and s.endswith(after) for s in shown), shown
    assert "passes the verifier; its results are unchecked" in "\n".join(lines[at:])


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["verify", "missing.cake"], "cannot be read"),
        (["verify", "FILE", "--target", "sm_99"], "no target"),
        (["verify", "FILE", "--kernel", "x"], "no kernel"),
        (["verify", "FILE", "--set", "BC"], "NAME=VALUE"),
        (["verify", "FILE", "--set", "NOPE=1"], "no tunable"),
        (["verify", "FILE", "--nope"], "No such option"),
        (["estimate", "FILE"], "--shape"),
        (["estimate", "FILE", "--shape", "B=x"], "integer"),
        (["estimate", "FILE", "--shape", "B=1"], "missing: C, D, N"),
        (["check", "FILE", "--contract", "nope"], "no contract"),
        (["check", "FILE", "--contract", "kmeans_assign", "--shapes", "nope"], "no shape set"),
        (["check", "FILE", "--contract", "kmeans_assign", "--on", "gpu"], "no GPU"),
        (["bench", "FILE", "--contract", "kmeans_assign"], "no GPU"),
        (["profile", "FILE", "--contract", "kmeans_assign"], "no GPU"),
        (["explain", "no/such"], "no rule"),
        (["ops", "no_such"], "no op"),
        (["targets", "sm_90"], "no target"),
        (["contracts", "nope"], "no contract"),
        (["serve", "--token-file", "x"], "belongs to --http"),
        (["build", "FILE", "--emit", "cuda", "-o", "/nope/x.cu"], "error[args/file]: /nope/x.cu cannot be written"),
        (["build", "FILE", "-o", "x.cu"], "-o belongs to --emit"),
        (["nonsense"], "No such command"),
    ],
)
def test_what_cannot_be_done_exits_2(tmp_path: Path, kmeans: Path, argv: list[str], says: str) -> None:
    got = run(tmp_path, *[str(kmeans) if a == "FILE" else a for a in argv])
    assert got.exit_code == 2 and says in got.output


def test_a_rejected_program_is_not_estimated_built_or_timed(tmp_path: Path, broken: Path) -> None:
    for argv in (
        ["estimate", broken, "--shape", SHAPE],
        ["build", broken],
        ["bench", broken, "--contract", "kmeans_assign"],
    ):
        assert run(tmp_path, *argv).exit_code == 1


def test_files_that_are_not_text_exit_2(tmp_path: Path) -> None:
    path = tmp_path / "binary.cake"
    path.write_bytes(b"\xff\xfe\x00")
    assert run(tmp_path, "verify", path).exit_code == 2
    path.write_bytes(b"x" * (2 << 20))
    got = run(tmp_path, "verify", path)
    assert got.exit_code == 2 and "262144" in got.output


def test_estimate_prints_the_caveat(tmp_path: Path, kmeans: Path) -> None:
    got = run(tmp_path, "estimate", kmeans, "--shape", SHAPE)
    assert got.exit_code == 0 and "not a measurement" in got.stdout
    assert as_json(run(tmp_path, "estimate", kmeans, "--shape", SHAPE, "--json"))["data"]["calibrated"] is True


def test_fmt_is_idempotent_keeps_comments_and_the_mode(tmp_path: Path, kmeans: Path) -> None:
    kmeans.write_text("# kept\n" + KMEANS.replace("wait(x_full[0])", "wait( x_full[ 0 ] )  # tail"))
    kmeans.chmod(0o640)
    assert run(tmp_path, "fmt", kmeans, "--check").exit_code == 1
    assert run(tmp_path, "fmt", kmeans).exit_code == 0
    once = kmeans.read_text()
    assert "wait(x_full[0])  # tail" in once and kmeans.stat().st_mode & 0o777 == 0o640
    assert run(tmp_path, "fmt", kmeans, "--check").exit_code == 0 and kmeans.read_text() == once
    kmeans.write_text("def f(:\n")
    assert run(tmp_path, "fmt", kmeans).exit_code == 1 and kmeans.read_text() == "def f(:\n"


def test_show_json_is_the_same_program(tmp_path: Path, kmeans: Path) -> None:
    from cake_ir import from_json, parse

    got = from_json(as_json(run(tmp_path, "show", kmeans, "--json")))
    assert got.file == parse(KMEANS).file


def test_listings(tmp_path: Path) -> None:
    kernels = as_json(run(tmp_path, "corpus", "--json"))
    assert {"name", "file", "target", "contract", "bindings"} <= set(kernels[0])
    assert all((ROOT / k["file"]).is_file() for k in kernels)
    assert isinstance(as_json(run(tmp_path, "results", "--json")), list)
    assert "wgmma" in {o["op"] for o in as_json(run(tmp_path, "ops", "--json"))}
    assert "sm_90a" in run(tmp_path, "targets").stdout
    assert {"rule", "severity", "title"} <= set(as_json(run(tmp_path, "rules", "--json"))[0])
    assert not (tmp_path / "ws").exists(), "listings make no workspace"


def test_pages(tmp_path: Path) -> None:
    rule = as_json(run(tmp_path, "rules", "--json"))[0]["rule"]
    assert "## Rejected" in run(tmp_path, "explain", rule).stdout
    assert "Hardware form" in run(tmp_path, "ops", "wgmma").stdout
    assert "Hardware form" in run(tmp_path, "explain", "tma_load").stdout
    assert "Precision" in run(tmp_path, "contracts", "kmeans_assign").stdout


def test_doctor_says_what_works(tmp_path: Path) -> None:
    got = run(tmp_path, "doctor")
    assert got.exit_code == 0 and "no GPU" in got.stdout and "NVRTC" in got.stdout


def test_starting_up_loads_nothing_heavy() -> None:
    """`cake serve` imports what it needs; numpy, the compiler and the analyses come with the first request."""
    heavy = ("numpy", "cuda", "ml_dtypes", "analyses", "corpus")
    code = f"import sys, server.cli, server.mcp_server; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_operators_add_contracts_of_their_own(tmp_path: Path, kmeans: Path) -> None:
    mine = tmp_path / "contracts"
    mine.mkdir()
    (mine / "mine.py").write_text(
        "from dataclasses import replace\nfrom corpus.contracts.kmeans_assign import CONTRACT as base\n"
        "CONTRACT = replace(base, name='mine')\n"
    )
    got = CliRunner().invoke(cli, ["--contracts", str(mine), "contracts", "--json"])
    assert "mine" in {c["contract"] for c in json.loads(got.stdout)}
    (mine / "bad.py").write_text("this is not python")
    got = CliRunner().invoke(cli, ["--contracts", str(mine), "contracts"])
    assert got.exit_code == 1 and "bad.py:1:" in got.output and "Traceback" not in got.output
    assert "mine" in got.stdout and "kmeans_assign" in got.stdout, "a bad file hides only itself"
    got = run(tmp_path, "--contracts", mine, "check", kmeans, "--contract", "bad")
    assert got.exit_code == 2 and "contract/bad-file" in got.output and "bad.py:1:" in got.output
    (mine / "bad.py").write_text(
        "from dataclasses import replace\nfrom corpus.contracts.kmeans_assign import CONTRACT as base\n"
        "CONTRACT = replace(base, name='bad', judge=lambda m, t, o, s: m.rsqrt(t))\n"
    )
    got = run(tmp_path, "--contracts", mine, "check", kmeans, "--contract", "bad", "--shape", "B=1,N=1,C=7,D=64")
    assert got.exit_code == 2 and "contract/bad-oracle" in got.output and "bad.py:3:" in got.output


def test_shared_options_may_stand_after_the_command(tmp_path: Path, kmeans: Path) -> None:
    mine = tmp_path / "contracts"
    mine.mkdir()
    (mine / "mine.py").write_text(
        "from dataclasses import replace\nfrom corpus.contracts.kmeans_assign import CONTRACT as base\n"
        "CONTRACT = replace(base, name='mine')\n"
    )
    after = ["--contracts", str(mine), "--workspace", str(tmp_path / "ws"), "--no-gpu"]
    argv = ["check", str(kmeans), "--contract", "mine", "--shape", "B=1,N=1,C=7,D=64", *after]
    got = CliRunner().invoke(cli, argv)
    assert got.exit_code == 0 and "against mine" in got.stdout and (tmp_path / "ws/cake.db").exists()
    for name in cli.commands:
        shown = CliRunner().invoke(cli, [name, "--help"]).output
        assert all(shown.count(f"{flag} ") == 1 for flag in ("--workspace", "--no-gpu", "--contracts", "--debug")), name


def test_the_cases_of_a_check_fit_80_columns(tmp_path: Path, kmeans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    got = run(tmp_path, "check", kmeans, "--contract", "kmeans_assign", "--shape", "B=1,N=130,C=200,D=64")
    rows = [line for line in got.stdout.split("\n") if line.startswith("B=1 N=130")]
    assert len(rows) == 4 and all("passed" in row and len(row) <= 80 for row in rows)


def test_progress_without_a_terminal_is_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    from server import terminal

    show = terminal.line_printer("checking")
    show(0, 8, "M=1 normal")
    show(0, 8, "about 9 min of interpretation")
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err == "checking: 0/8 about 9 min of interpretation (0 s)\n"


def test_an_interrupt_says_what_happened_and_exits_130(
    tmp_path: Path, kmeans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from server.engine import Engine

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "verify", stop)
    got = run(tmp_path, "verify", kmeans)
    assert got.exit_code == 130 and "interrupted" in got.stderr
