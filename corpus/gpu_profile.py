"""A profile on a device: the plain kernel timed warm, its timeline, and one run under Nsight Compute.

Each part stands alone: without ncu, without permission to read counters, or when the timeline cannot be taken, the part
is {"unavailable": reason} and the others are still there. The counters come from another worker under `ncu`, whose job
only launches; the report is exported by `ncu --import` and read by `corpus.profiling.ncu`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError
from corpus.contract import Case, Contract
from corpus.gpu_buffers import Env
from corpus.gpu_check import Progress, allocate, launcher
from corpus.jobs import VALID, BenchShape, Job, Launch, Profile
from corpus.profiling import ncu
from corpus.profiling.metrics import SECTIONS

LAUNCHES = 4
"""Launches under the profiler; the last one is measured, the others warm caches and clocks."""
TIMEOUT_S = 150.0
EXPORT_TIMEOUT_S = 60.0


def run_profile(env: Env, job: Job, contract: Contract, secret: int, progress: Progress) -> Profile:
    """Profile the first shape of the job. Only the timing decides `passed`; raises CakeError when that cannot be taken."""
    from corpus.gpu_bench import run_bench

    start = time.monotonic()
    launch = job.launches[0]
    timed = job.model_copy(update={"kind": "bench", "modes": ("warm",), "baselines": (), "launches": (launch,)})
    bench = run_bench(env, timed, contract, secret, lambda done, total, message: progress(0, 3, message))
    shape = bench.shapes[0]
    if shape.candidate is None:
        why = f"not taken, because the kernel could not be timed: {shape.verdict}: {shape.message}"[:300]
        return _profile(env, job, contract, secret, start, shape, {"unavailable": why}, {"unavailable": why})
    progress(1, 3, "recording the timeline")
    spans = _part(lambda: _timeline(env, job, contract, launch, secret))
    progress(2, 3, "reading hardware counters")
    read = counters(job, launch) if job.profiler else {"unavailable": "the job asks for no hardware counters"}
    return _profile(env, job, contract, secret, start, shape, spans, read)


def _profile(
    env: Env, job: Job, contract: Contract, secret: int, start: float, shape: BenchShape,
    timeline: dict[str, Any], read: dict[str, Any],
) -> Profile:  # fmt: skip
    words = [f"{shape.candidate.median_us:.4g} us" if shape.candidate else f"{shape.verdict}: {shape.message}"]
    words += [f"no {name}: {part['unavailable']}" for name, part in (("timeline", timeline), ("counters", read))
              if "unavailable" in part and shape.candidate]  # fmt: skip
    return Profile(
        contract=contract.name, contract_digest=contract.digest, kernel=job.kernel, passed=shape.verdict in VALID,
        summary="; ".join(words), seed=job.seed, secret=f"{secret:032x}", device=env.device.info().to_json(),
        seconds=round(time.monotonic() - start, 3), shape=shape, timeline=timeline, counters=read,
    )  # fmt: skip


def _timeline(env: Env, job: Job, contract: Contract, launch: Launch, secret: int) -> dict[str, Any]:
    from corpus.gpu_timeline import timeline

    return timeline(env, job, contract, launch, secret)


def _part(take: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `take` answers, or why it could not: one missing part must not cost the others."""
    try:
        return take()
    except CakeError as exc:
        return {"unavailable": exc.diagnostic.message[:300]}


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
    """{"metrics", "instructions"} of one launch of the (first) kernel, or {"unavailable": what to do}."""
    tool = shutil.which("ncu") or _installed()
    if tool is None:
        return {"unavailable": "Nsight Compute (ncu) is not installed; it comes with the CUDA toolkit (nsight-compute)"}
    changed = {"kind": "launch", "launches": (launch,), "watch_stdin": False, "timeout_s": TIMEOUT_S,
               "launch_timeout_s": TIMEOUT_S}  # fmt: skip
    inner = job.model_copy(update=changed).model_dump_json() + "\n"
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory(prefix="cake-ncu-") as folder:
        report = Path(folder) / "kernel.ncu-rep"
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "TMPDIR": folder,
            "LC_ALL": "C",
        }  # numbers with a decimal point
        try:
            done = _run([tool, *arguments(str(launch.plans[0]["symbol"]), report), sys.executable, "-m", "corpus.gpu_main"],
                        folder, environment, TIMEOUT_S, inner)  # fmt: skip
            if not report.is_file():
                return {"unavailable": ncu.complaint(done.stdout + done.stderr, done.returncode)}
            pages = [_run([tool, "--import", str(report), "--csv", "--page", *page], folder, environment, EXPORT_TIMEOUT_S)
                     for page in (("raw",), ("source", "--print-source", "sass"))]  # fmt: skip
        except subprocess.TimeoutExpired as exc:
            return {"unavailable": f"ncu did not end within {exc.timeout:g} s; profile a smaller shape"}
        except OSError as exc:
            return {"unavailable": f"ncu cannot be started: {exc.strerror}; check the installation at {tool}"}
    try:
        return {"metrics": ncu.raw_page(pages[0].stdout), "instructions": ncu.source_page(pages[1].stdout)}
    except ValueError as exc:
        return {"unavailable": f"{exc}; this Nsight Compute may be too old: 2025.3 is known to work"}


def arguments(symbol: str, report: Path) -> list[str]:
    """ncu's arguments. Clocks are left as they are: fixing them needs rights, and the timing ran with these."""
    argv = ["--clock-control", "none", "--target-processes", "all", "--import-source", "no"]
    argv += ["--kernel-name", symbol, "--launch-skip", str(LAUNCHES - 1), "--launch-count", "1"]
    for section in SECTIONS:
        argv += ["--section", section]
    return [*argv, "--force-overwrite", "--export", str(report)]


def _run(
    argv: list[str], folder: str, environment: dict[str, str], timeout_s: float, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """A process in the worker's process group, so that it ends with the worker."""
    return subprocess.run(
        argv, input=text, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False, cwd=folder,
        env=environment,
    )  # fmt: skip


def _installed() -> str | None:
    newest = sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)
    return next((str(p) for p in (Path("/usr/local/cuda/bin/ncu"), *newest) if p.is_file()), None)
