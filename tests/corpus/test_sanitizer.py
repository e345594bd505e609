"""compute-sanitizer's output as findings. data/sanitizer/ is real output of 2025.3 on an H200, shortened to three reports."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corpus import gpu_sanitize, jobs
from corpus.contract import contracts
from corpus.gpu_sanitize import arguments, judge, launch_bare, run_sanitize
from corpus.sanitizer import TOOLS, line_at, parse, table
from tests.compiled import cubins
from tests.corpus.fake_device import FakeDevice, at, env_for
from tests.corpus.test_gpu_jobs import GEMM, make, tensors

DATA = Path(__file__).parent / "data/sanitizer"
LINES = {"rmsnorm": ((0, 0), (0xC80, 19), (0xCC0, 20), (0xCD0, 0), (0xCE0, 22), (0x1490, 23))}


def text(name: str) -> str:
    return (DATA / f"{name}.txt").read_text()


def test_an_overrun_is_one_finding_on_the_line_of_its_device_frame() -> None:
    got = parse(text("memcheck-oob"), "memcheck")
    (one,) = got.findings
    assert (one.kind, one.line, one.count, one.severity) == ("invalid-global-write", 23, 3, "error")
    assert one.sites[0].offset == 0x1490 and one.sites[0].function == "st_global_v4_b32"
    assert (one.thread, one.block) == ((0, 0, 0), (8, 0, 0))
    assert one.facts[0].endswith("is out of bounds") and "bytes after the nearest allocation" in one.facts[1]
    assert got.errors == 8196 and got.dropped == 8176


def test_a_race_has_two_lines_from_the_line_table() -> None:
    got = parse(text("racecheck-race"), "racecheck", LINES)
    (one,) = got.findings
    assert one.kind == "shared-race" and [s.line for s in one.sites] == [20, 22]
    assert [s.access for s in one.sites] == ["write access", "read access"]
    assert one.count == 1184 + 1192 + 1144 + 1200 and got.errors == 4
    assert [s.line for s in parse(text("racecheck-race"), "racecheck").findings[0].sites] == [0, 0]
    two = {"a": LINES["rmsnorm"], "b": LINES["rmsnorm"]}
    assert parse(text("racecheck-race"), "racecheck", two).findings[0].line == 0  # which kernel it was is not said


def test_a_read_of_what_nobody_wrote_is_one_finding() -> None:
    got = parse(text("initcheck-uninit"), "initcheck")
    (one,) = got.findings
    assert (one.kind, one.line, one.count) == ("uninitialised-global-read", 17, 3) and got.errors == 32768
    assert one.sites[0].function == "ld_global_nc_v4_b32" and one.facts == ("Address 0x7fd1bea92000",)


@pytest.mark.parametrize("name", ["memcheck-right", "racecheck-right", "synccheck-fault"])
def test_silence_is_no_finding(name: str) -> None:
    got = parse(text(name), name.split("-")[0])  # type: ignore[arg-type]
    assert got.findings == () and got.errors == 0


@pytest.mark.parametrize(
    ("head", "rest", "tool", "kind"),
    [
        ("Invalid __shared__ read of size 4 bytes", "Address 0x12 is misaligned", "memcheck", "misaligned-shared-read"),
        (
            "Invalid __global__ atomic of size 4 bytes",
            "Access to 0x1 is out of bounds",
            "memcheck",
            "invalid-global-atomic",
        ),
        ("Illegal instruction", "by thread (1,0,0) in block (2,0,0)", "memcheck", "illegal-instruction"),
        (
            "Barrier error detected. Missing wait.",
            "by thread (1,0,0) in block (2,0,0)",
            "synccheck",
            "barrier-missing-wait",
        ),
        ("Barrier error detected. Divergent thread(s) in warp.", "", "synccheck", "barrier-divergent-thread-s-in-warp"),
        (
            "Uninitialized __global__ memory read of size 4 bytes",
            "Address 0x7f00",
            "initcheck",
            "uninitialised-global-read",
        ),
        ("Something new at 0x7fff12 happened", "", "memcheck", "something-new-at-happened"),
    ],
)
def test_kinds_hold_no_numbers(head: str, rest: str, tool: Any, kind: str) -> None:
    block = f"========= {head}\n=========     at k+0x90 in k.cake:7\n=========     {rest}\n========= \n"
    (one,) = parse(block * 2, tool).findings
    assert (one.kind, one.line, one.count) == (kind, 7, 2)


def test_warnings_are_told_apart_and_findings_are_bounded() -> None:
    warn = (
        "========= Warning: Race reported between Write access at k+0x10 in k.cake:4\n"
        "=========     and Write access at k+0x20 in k.cake:5 [16 hazards]\n"
        "========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)\n"
    )
    got = parse(warn, "racecheck")
    assert got.findings[0].severity == "warning" and got.errors == 0 and got.findings[0].count == 16
    many = "".join(
        f"========= Invalid __global__ read of size 4 bytes\n=========     at k+0x10 in k.cake:{n}\n========= \n"
        for n in range(1, 99)
    )
    got = parse(many, "memcheck")
    assert len(got.findings) == 50 and got.dropped == 48


def test_the_line_table() -> None:
    lines = table([(32, 5), (0, 4), (16, 4), (48, 0)])
    assert lines == [(0, 4), (32, 5), (48, 0)]
    assert [line_at(lines, o) for o in (0, 16, 40, 64)] == [4, 4, 5, 0] and line_at([], 3) == 0


# ---- the watched launch --------------------------------------------------------------------------------------------


def test_the_watched_launch_has_no_guards_and_leaves_outputs_alone() -> None:
    seen: dict[str, Any] = {}

    def body(device: FakeDevice, pointers: Any) -> None:
        seen["sizes"] = sorted(b.nbytes for b in device.buffers)
        t = tensors(pointers)
        seen["loaded"] = bool(np.any(t["a"].view(np.uint16) != 0x7777))
        seen["output"] = set(at(pointers["d"], 2 * 17 * 24).tolist())

    env = env_for(body)
    guards: list[int] = []
    plain = env.device.alloc
    env.device.alloc = lambda nbytes, *, guard: [guards.append(guard), plain(nbytes, guard=guard)][1]
    assert launch_bare(env, make("bare"), GEMM, 5) == {"kind": "bare", "launches": 1}
    assert guards == [0, 0, 0] and seen["sizes"] == sorted([2 * 17 * 16, 2 * 24 * 16, 2 * 17 * 24])
    assert seen["loaded"] and seen["output"] == {0x77} and all(b.freed for b in env.device.buffers)


def test_command_lines_hold_no_shell_and_name_the_kernel(tmp_path: Path) -> None:
    argv = arguments("/x/compute-sanitizer", "memcheck", ["rmsnorm"], tmp_path / "log")
    assert argv[:3] == ["/x/compute-sanitizer", "--tool", "memcheck"] and "kernel_name=rmsnorm" in argv
    assert "--padding" in argv and "--padding" not in arguments("x", "racecheck", ["k"], tmp_path)


def fake_tool(path: Path, body: str) -> str:
    path.write_text(f"#!/usr/bin/env python3\nimport sys\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


SAYS = """
tool, log = sys.argv[sys.argv.index("--tool") + 1], sys.argv[sys.argv.index("--log-file") + 1]
import json
job = json.loads(sys.stdin.readline())
assert job["kind"] == "bare" and len(job["launches"]) == 1
open(log, "w").write(open(DATA + f"/{tool}-{dict(memcheck='oob', racecheck='race').get(tool, 'fault')}.txt").read())
print(json.dumps({"result": {"kind": "bare", "launches": 1}}))
"""


def sanitize(monkeypatch: pytest.MonkeyPatch, tool: str | None, **more: Any) -> jobs.Sanitize:
    monkeypatch.setattr(gpu_sanitize, "find_tool", lambda: tool)
    monkeypatch.setattr(gpu_sanitize, "version", lambda command: "Version 2025.3.1.0")
    job = make("sanitize", lines=LINES, **more)
    return run_sanitize(job, GEMM, 5, lambda *a: None)


def test_each_tool_is_started_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = fake_tool(tmp_path / "cs", f"DATA = {str(DATA)!r}\n{SAYS}")
    got = sanitize(monkeypatch, tool, sanitize=("memcheck", "racecheck"))
    assert [(r.tool, r.verdict, r.findings[0].line) for r in got.runs] == [
        ("memcheck", "findings", 23),
        ("racecheck", "findings", 20),
    ]
    assert not got.passed and got.summary == "memcheck: 1 kind of error; racecheck: 1 kind of error"
    assert jobs.Sanitize.model_validate(json.loads(got.model_dump_json())) == got


def test_a_tool_that_is_absent_ends_badly_or_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = sanitize(monkeypatch, None)
    assert {r.verdict for r in got.runs} == {"unavailable"} and [r.tool for r in got.runs] == list(TOOLS)
    assert not got.passed and "not installed" in got.runs[0].message
    dies = fake_tool(tmp_path / "dies", "sys.exit('no driver here')")
    (run,) = sanitize(monkeypatch, dies, sanitize=("initcheck",)).runs
    assert run.verdict == "unavailable" and "no driver here" in run.message
    monkeypatch.setattr(gpu_sanitize, "TOOL_TIMEOUT_S", 1.0)
    monkeypatch.setattr(gpu_sanitize, "LEAST_S", 0.5)
    hangs = fake_tool(
        tmp_path / "hangs", "import time, os\nopen(os.environ['TMPDIR'] + '/../pid', 'w')\ntime.sleep(60)"
    )
    (run,) = sanitize(monkeypatch, hangs, sanitize=("synccheck",)).runs
    assert run.verdict == "no-end" and run.seconds < 20


def test_a_fault_without_a_finding_is_no_clean_run() -> None:
    run = judge("synccheck", text("synccheck-fault"), "", make("sanitize"), late=False, seconds=1.0)
    assert run.verdict == "fault" and "CUDA_ERROR" in run.message
    clean = judge("memcheck", text("memcheck-right"), "", make("sanitize"), late=False, seconds=1.0)
    assert clean.verdict == "clean" and "not seen" in clean.limit


def test_a_sanitize_job_carries_its_line_table() -> None:
    from corpus.kernels import kernel
    from corpus.prepare import prepare

    k = kernel("rmsnorm")
    job, _ = prepare(k.text(), k.contract, "sanitize", [{"M": 4, "D": 64}], target="sm_90a", cache_dir=cubins())
    lines = dict(job.lines["rmsnorm"]).values()
    last = len(k.text().splitlines())
    assert len(set(lines)) > 5 and all(0 <= n <= last for n in lines)
    assert hashlib.sha256(job.cubin(next(iter(job.cubins)))).hexdigest() in job.cubins
    assert "rmsnorm" in contracts() and os.sep not in job.kernel


@pytest.mark.parametrize(
    "text",
    [
        "ERROR SUMMARY: {} errors", "{} errors were not printed. Use --print-limit option",
        "Invalid __global__ write of size 4 bytes\n=========     at k+0x{} in x.cake:{}\n"
        "=========     by thread ({},0,0) in block ({},0,0)",
    ],
)  # fmt: skip
def test_numbers_without_end_end_nothing(text: str) -> None:
    got = parse("========= " + text.format(*["9" * 5_000] * 4), "memcheck", {})
    assert not got.errors and not got.dropped and all(s.line == 0 for f in got.findings for s in f.sites)
