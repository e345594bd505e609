"""The GPU worker: `python -m corpus.gpu_main`, one job per process (protocol in corpus/jobs.py).

The process dies with its parent (PR_SET_PDEATHSIG, and stdin when the job asks for it) and by its own watchdog, so a
kernel that hangs never outlives its time. stdout carries the protocol only: whatever libraries print goes to stderr.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import sys
import threading
import traceback
from importlib.metadata import PackageNotFoundError, version
from typing import Any, BinaryIO

from cake_ir.diagnostics import CakeError
from corpus import jobs
from corpus.gpu_watch import REPORT, Watch, limit_s

MAX_JOB = 256 << 20
_PR_SET_PDEATHSIG = 1
_PACKAGES = ("torch", "triton", "flash-kmeans", "flashlib", "numpy", "ml-dtypes", "cuda-bindings")


class Channel:
    """The protocol's end of stdout. Only the first answer is sent; the watchdog may race the work."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._answered = False

    def progress(self, done: int, total: int, message: str) -> None:
        """One progress line."""
        self._send({"progress": done, "total": total, "message": message})

    def answer(self, obj: dict[str, Any]) -> None:
        """The result or error line."""
        self._send(obj, last=True)

    def _send(self, obj: dict[str, Any], last: bool = False) -> None:
        from corpus.compare import finite_json

        line = (json.dumps(finite_json(obj), separators=(",", ":")) + "\n").encode()
        with self._lock:
            if self._answered:
                return
            self._answered = last
            self._stream.write(line)
            self._stream.flush()


def take_stdout() -> Channel:
    """Keep stdout for the protocol and point file descriptor 1 at stderr, native libraries included."""
    sys.stdout.flush()
    private = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return Channel(private)


def die_with_parent() -> None:
    """SIGKILL when the parent ends (Linux)."""
    parent = os.getppid()
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the request took hold
            os._exit(jobs.EXIT_ORPHAN)


def start_watchdog(channel: Channel, seconds: float, watch: Watch) -> None:
    """End the process after `seconds`, with an answer; a hung kernel blocks only the main thread."""

    def bark() -> None:
        text = f"the job was ended after {seconds:g} s" + (f", at {watch.case}" if watch.case else "")
        channel.answer({"error": {"code": "worker/timeout", "message": text, "next": REPORT, "at": watch.at()}})
        os._exit(jobs.EXIT_WATCHDOG)

    timer = threading.Timer(seconds, bark)
    timer.daemon = True
    timer.start()


def watch_stdin() -> None:
    """End the process when stdin closes."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(jobs.EXIT_ORPHAN)

    threading.Thread(target=watch, name="stdin-watch", daemon=True).start()


def read_job(stream: BinaryIO) -> jobs.Job:
    """The job on the first line; raises CakeError `job/bad`."""
    line = stream.readline(MAX_JOB + 1)
    if len(line) > MAX_JOB:
        raise jobs.bad("job/bad", f"the job is larger than {MAX_JOB >> 20} MiB")
    try:
        obj = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise jobs.bad("job/bad", f"the job is no JSON object: {str(exc)[:200]}") from exc
    return jobs.parse(obj)


def probe(job: jobs.Job) -> dict[str, Any]:
    """What the device and its libraries are, and whether the device answers."""
    from corpus.gpu_buffers import open_env
    from lowering.runtime import telemetry

    env = open_env(job.device, job.use_torch)
    info = env.device.info().to_json()
    return {
        **info,
        "kind": "probe",
        "device": info,
        "free_bytes": env.device.free_bytes(),
        "healthy": env.device.healthy(),
        "telemetry": telemetry.snapshot(info["uuid"]),
        "torch": env.torch is not None,
        "packages": {p: v for p in _PACKAGES if (v := _version(p))},
        "python": platform.python_version(),
        "baselines": _baselines() if job.use_torch else {},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _baselines() -> dict[str, str]:
    from corpus.baselines import registry

    return {name: b.unavailable() or "available" for name, b in registry().items()}


def run(job: jobs.Job, channel: Channel, watch: Watch) -> dict[str, Any]:
    """The result object of a job; raises CakeError. A wait for the device past its limit ends the process."""
    if job.kind == "probe":
        return probe(job)
    contract = job.find_contract()
    if not job.launches:
        raise jobs.bad("job/bad", "launches: a check, bench or profile needs at least one shape")
    from corpus.check import named_shapes
    from corpus.distributions import fresh_secret
    from lowering.plan import LaunchPlan

    named_shapes(contract, [launch.shape for launch in job.launches])
    for launch in job.launches:
        for plan in (*launch.plans, *(form.plan for form in launch.timeline)):
            job.cubin(LaunchPlan.from_json(plan).cubin_sha256)
    secret = fresh_secret() if job.secret is None else int(job.secret, 16)

    if job.kind == "sanitize":  # starts workers of its own, so it never opens the device
        from corpus.gpu_sanitize import run_sanitize

        return run_sanitize(job, contract, secret, channel.progress).model_dump(mode="json")
    from corpus.gpu_buffers import open_env

    env = open_env(job.device, job.use_torch and job.kind != "bare")
    watch.device = env.device
    seconds = limit_s(job, contract)

    def expired() -> None:
        channel.answer(watch.hung(seconds))
        os._exit(jobs.EXIT_WATCHDOG)

    def progress(done: int, total: int, message: str) -> None:
        watch.begin(message)
        channel.progress(done, total, message)

    env.device.patience.limit(seconds, expired)
    if job.kind == "check":
        from corpus.gpu_check import run_check

        return run_check(env, job, contract, secret, progress).model_dump(mode="json")
    if job.kind == "bare":
        from corpus.gpu_sanitize import launch_bare

        return launch_bare(env, job, contract, secret)
    if job.kind == "where":
        from corpus.gpu_where import run_where

        return run_where(env, job, contract, secret)
    if job.kind == "launch":
        from corpus.gpu_profile import run_launches

        return run_launches(env, job, contract, secret)
    if job.kind == "profile":
        from corpus.gpu_profile import run_profile

        return run_profile(env, job, contract, secret, progress).model_dump(mode="json")
    from corpus.gpu_bench import run_bench

    return run_bench(env, job, contract, secret, progress).model_dump(mode="json")


def main() -> int:
    """Read, run, answer; the exit code says how it went (see corpus/jobs.py)."""
    die_with_parent()
    channel = take_stdout()
    watch: Watch | None = None
    try:
        job = read_job(sys.stdin.buffer)
        watch = Watch(job)
        start_watchdog(channel, job.timeout_s, watch)
        if job.watch_stdin:
            watch_stdin()
        channel.answer({"result": run(job, channel, watch)})
        return jobs.EXIT_OK
    except CakeError as exc:
        d = exc.diagnostic
        at = {"at": watch.at()} if watch is not None and watch.device is not None else {}
        channel.answer({"error": {"code": d.rule, "message": d.message, "next": d.contract, **at}})
        if d.rule == "lowering/no-gpu":
            return jobs.EXIT_NO_GPU
        return jobs.EXIT_BAD_JOB if d.rule.startswith(("job/", "contract/", "lowering/bad-plan")) else jobs.EXIT_FAULT
    except ImportError as exc:
        traceback.print_exc()
        text = f"a component is missing: {exc}"
        channel.answer({"error": {"code": "worker/component-missing", "message": text, "next": "see `cake doctor`"}})
        return jobs.EXIT_NO_GPU
    except Exception as exc:  # the answer must be coded whatever happened; the trace goes to the log
        traceback.print_exc()
        text = f"the worker failed unexpectedly: {type(exc).__name__}"
        channel.answer({"error": {"code": "internal/unexpected", "message": text, "next": "see the log; report it"}})
        return jobs.EXIT_INTERNAL


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # skip interpreter teardown: destructors of a broken context may block
    os._exit(code)
