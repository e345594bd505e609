"""A second opinion: one launch of a kernel under compute-sanitizer's tools.

The worker (job kind `sanitize`) starts each tool by argument list around another worker whose job (kind `bare`) launches
the kernel once. There every tensor is an allocation of its own, exactly as large as the contract says and without guard
bands, which would hide an overrun from memcheck; outputs and workspaces are left as the driver hands them out, so that
initcheck sees a read of what was never written. Valid inputs, a small shape: the tools slow a kernel by orders.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from corpus.arrays import element
from corpus.check import shape_text
from corpus.contract import Case, Contract
from corpus.gpu_buffers import Env
from corpus.gpu_check import Progress, launcher
from corpus.jobs import Job, Sanitize, ToolRun
from corpus.sanitizer import LIMITS, TOOLS, Tool, parse

TOOL_TIMEOUT_S = 100.0
LEAST_S = 5.0
"""No tool is started with less time than this."""
MARGIN_S = 10.0
PRINT_LIMIT = 200
PADDING = 64 * 1024
MAX_LOG = 4 << 20
LAUNCHES = 1


def run_sanitize(job: Job, contract: Contract, secret: int, progress: Progress) -> Sanitize:
    """Every asked tool on the job's first shape, one after another. Never raises for what a tool says or how it ends."""
    start = time.monotonic()
    tools: tuple[Tool, ...] = tuple(t for t in TOOLS if t in (job.sanitize or TOOLS))
    command = find_tool()
    runs = []
    for number, tool in enumerate(tools):
        progress(number, len(tools), f"{tool} on {shape_text(job.launches[0].shape)}")
        left = job.timeout_s - MARGIN_S - (time.monotonic() - start)
        runs.append(_absent(tool) if command is None else _run(command, tool, job, secret, min(TOOL_TIMEOUT_S, left)))
    passed = bool(runs) and all(r.verdict == "clean" for r in runs)
    return Sanitize(
        contract=contract.name, contract_digest=contract.digest, kernel=job.kernel, passed=passed, summary=_summary(runs),
        seed=job.seed, secret=f"{secret:032x}", shape=job.launches[0].shape, runs=tuple(runs),
        version=version(command) if command else "", seconds=round(time.monotonic() - start, 3),
    )  # fmt: skip


def launch_bare(env: Env, job: Job, contract: Contract, secret: int) -> dict[str, Any]:
    """Launch the first shape on plain allocations of exact size; CakeError when the driver objects.

    Outputs that are also inputs are loaded; pure outputs and workspaces are neither poisoned nor read.
    """
    launch = job.launches[0]
    case = Case(launch.shape, contract.bench_distribution, job.seed, secret, launch.dtypes)
    given = contract.inputs(case)
    sizes = {
        t.name: prod(contract.extents(t, launch.shape)) * element(contract.dtype(t, launch.dtypes)).bytes
        for t in contract.tensors
    }
    sizes |= {n: prod(w.extents) * element(w.dtype).bytes for n, w in launch.workspaces.items()}
    buffers = {}
    try:
        for name, nbytes in sizes.items():
            buffers[name] = env.device.alloc(nbytes, guard=0)
            if name in given and nbytes:
                buffers[name].write(np.ascontiguousarray(given[name]).reshape(-1).view(np.uint8))
        run = launcher(env, job, launch, {n: b.pointer for n, b in buffers.items()})
        env.sync()
        for _ in range(LAUNCHES):
            run(env.stream)
        env.sync()
    finally:
        for buffer in buffers.values():
            buffer.free(ignore_errors=True)
    return {"kind": "bare", "launches": LAUNCHES}


def arguments(command: str, tool: Tool, symbols: list[str], log: Path) -> list[str]:
    """The tool's command line, up to the program it starts."""
    out = [command, "--tool", tool, "--log-file", str(log), "--print-limit", str(PRINT_LIMIT)]
    out += ["--show-backtrace", "device"]
    if tool == "memcheck":
        # the padding keeps a neighbour's memory out of reach of small overruns
        out += ["--report-api-errors", "no", "--padding", str(PADDING)]
    if tool == "initcheck":
        out += ["--check-api-memory-access", "no"]
    for symbol in symbols:
        out += ["--kernel-name", f"kernel_name={symbol}"]
    return out


def find_tool() -> str | None:
    """compute-sanitizer's path, or None: on PATH, else of a toolkit under /usr/local."""
    known = [
        shutil.which("compute-sanitizer"),
        *sorted(map(str, Path("/usr/local").glob("cuda*/bin/compute-sanitizer"))),
    ]
    return next((k for k in known if k and os.path.isfile(k)), None)


def version(command: str) -> str:
    """What the tool says it is; empty when it does not answer."""
    try:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next((line.strip()[:120] for line in done.stdout.splitlines() if line.startswith("Version")), "")


def _absent(tool: Tool) -> ToolRun:
    text = (
        "compute-sanitizer is not installed; it comes with the CUDA toolkit (put it on PATH or under /usr/local/cuda*)"
    )
    return ToolRun(tool=tool, verdict="unavailable", message=text)


def _run(command: str, tool: Tool, job: Job, secret: int, timeout_s: float) -> ToolRun:
    start = time.monotonic()
    if timeout_s <= LEAST_S:
        return ToolRun(tool=tool, verdict="unavailable", message="the job's time was used up by the tools before")
    update = {
        "kind": "bare", "launches": job.launches[:1], "secret": f"{secret:x}", "watch_stdin": False, "timeout_s": timeout_s,
        "launch_timeout_s": timeout_s, "lines": {}, "sanitize": (),
    }  # fmt: skip
    inner = job.model_copy(update=update)
    symbols = sorted({str(p["symbol"]) for p in job.launches[0].plans})
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory(prefix="cake-sanitizer-") as folder:
        log = Path(folder) / "log"
        argv = [*arguments(command, tool, symbols, log), sys.executable, "-m", "corpus.gpu_main"]
        env = {**os.environ, "PYTHONPATH": path, "TMPDIR": folder, "OPENBLAS_NUM_THREADS": "1"}
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, env=env,
                start_new_session=True,
            )  # fmt: skip
        except OSError as exc:
            return ToolRun(
                tool=tool, verdict="unavailable", message=f"compute-sanitizer does not start: {exc.strerror}"
            )
        late = False
        out = err = b""
        try:
            out, err = process.communicate(inner.model_dump_json().encode() + b"\n", timeout=timeout_s)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if late:
                with suppress(subprocess.TimeoutExpired):  # it may sit in a driver call; what was logged counts
                    out, err = process.communicate(timeout=10)
        text = _read(log) + "\n" + out.decode(errors="replace")[-MAX_LOG:]
    seconds = round(time.monotonic() - start, 3)
    return judge(tool, text, err.decode(errors="replace"), job, late=late, seconds=seconds)


def judge(tool: Tool, text: str, stderr: str, job: Job, *, late: bool, seconds: float) -> ToolRun:
    """What a tool's output and end mean. `text`: its log and the watched worker's answer."""
    parsed = parse(text, tool, job.lines)
    said = next((a for a in map(_answer, reversed(text.splitlines())) if a), None)
    fault = (said or {}).get("error") or {}
    common: dict[str, Any] = {
        "tool": tool, "findings": parsed.findings, "errors": parsed.errors, "dropped": parsed.dropped,
        "limit": LIMITS[tool], "seconds": seconds,
    }  # fmt: skip
    if parsed.errors or any(f.severity == "error" for f in parsed.findings):
        return ToolRun(verdict="findings", message=str(fault.get("message", ""))[:300], **common)
    if late:
        return ToolRun(verdict="no-end", message="the watched launch did not end in time", **common)
    if fault:
        return ToolRun(verdict="fault", message=f"{fault.get('code')}: {fault.get('message')}"[:300], **common)
    if said is None or parsed.errors is None:
        last = next((line for line in reversed(stderr.splitlines()) if line.strip()), "no message")
        return ToolRun(verdict="unavailable", message=f"compute-sanitizer did not finish: {last}"[:300], **common)
    return ToolRun(verdict="clean", **common)


def _answer(line: str) -> dict[str, Any] | None:
    try:
        obj = json.loads(line) if line.startswith("{") else None
    except ValueError:
        return None
    return obj if isinstance(obj, dict) and obj.keys() & {"result", "error"} else None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as handle:
            return handle.read(MAX_LOG).decode(errors="replace")
    except OSError:
        return ""


def _summary(runs: list[ToolRun]) -> str:
    words = []
    for r in runs:
        n = sum(f.severity == "error" for f in r.findings)
        text = f"{n} kind{'s' * (n != 1)} of error" if r.verdict == "findings" else r.verdict
        words.append(f"{r.tool}: {text}")
    return "; ".join(words) or "no tool was asked for"
