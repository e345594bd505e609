"""Hardware counters of a kernel through Nsight Compute's command line, where it is installed.

The worker starts `ncu` with an argument list around another worker whose job only launches; counters come back as
{section: {metric: {"value", "unit"}}}. Without `ncu`, or where counters are forbidden, the answer is the reason.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from corpus.contract import Case, Contract
from corpus.gpu_buffers import Env
from corpus.gpu_check import allocate, launcher
from corpus.jobs import Job, Launch

LAUNCHES = 4
SECTIONS = (
    "SpeedOfLight", "LaunchStats", "Occupancy", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "SchedulerStats",
    "WarpStateStats", "InstructionStats",
)  # fmt: skip
TIMEOUT_S = 120.0


def run_launches(env: Env, job: Job, contract: Contract, secret: int) -> dict[str, Any]:
    """Launch the first shape a few times on valid inputs; CakeError when the driver objects."""
    launch = job.launches[0]
    buffers = allocate(env, contract, launch)
    try:
        case = Case(launch.shape, contract.bench_distribution, job.seed, secret, launch.dtypes)
        for name, values in contract.inputs(case).items():
            buffers.load(name, values)
        run = launcher(env, job, launch, buffers.pointers)
        env.sync()
        for _ in range(LAUNCHES):
            run(env.stream)
        env.sync()
    finally:
        buffers.close()
    return {"kind": "launch", "launches": LAUNCHES}


def counters(job: Job, launch: Launch) -> dict[str, Any]:
    """Counters of one launch of the (first) kernel, or {"unavailable": reason}."""
    ncu = shutil.which("ncu") or _installed()
    if ncu is None:
        return {"unavailable": "Nsight Compute (ncu) is not installed"}
    symbol = str(launch.plans[0]["symbol"])
    changed = {"kind": "launch", "launches": (launch,), "watch_stdin": False, "timeout_s": TIMEOUT_S}
    inner = job.model_copy(update=changed)
    # the first launches warm caches and clocks; clocks are left as they are for the timing, so as not to need rights
    argv = [ncu, "--csv", "--page", "details", "--clock-control", "none", "--target-processes", "all"]
    argv += ["--kernel-name", symbol, "--launch-skip", str(LAUNCHES - 1), "--launch-count", "1"]
    for section in SECTIONS:
        argv += ["--section", section]
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory(prefix="cake-ncu-") as folder:
        try:
            done = subprocess.run(
                [*argv, sys.executable, "-m", "corpus.gpu_main"], input=inner.model_dump_json() + "\n",
                capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=folder,
                env={**os.environ, "PYTHONPATH": path, "TMPDIR": folder},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"unavailable": f"ncu did not end within {TIMEOUT_S:g} s"}
    found = parse(done.stdout)
    if found:
        return found
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("==ERROR==")]
    reason = said[0][10:].strip() if said else f"ncu ended with code {done.returncode} and no table"
    return {"unavailable": reason[:300]}


def parse(text: str) -> dict[str, Any]:
    """ncu's details page as CSV (other lines around it) as sections of metrics; empty when there is no table."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return {}
    sections: dict[str, Any] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        name, section = row.get("Metric Name"), row.get("Section Name")
        if not name or not section:
            continue
        value = row.get("Metric Value") or ""
        try:
            number: float | str = float(value.replace(",", ""))
        except ValueError:
            number = value
        sections.setdefault(section, {})[name] = {"value": number, "unit": row.get("Metric Unit") or ""}
    return sections


def _installed() -> str | None:
    newest = sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)
    return next((str(p) for p in (Path("/usr/local/cuda/bin/ncu"), *newest) if p.is_file()), None)
