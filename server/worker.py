"""Worker processes under supervision: one job each, JSON in, progress lines and one result line out.

Protocol: the job is one JSON object on stdin, then stdin is closed. Each stdout line is a JSON object: `{"progress": n,
"total": m, "message": "..."}` any number of times, then `{"result": {...}}` or `{"error": {"code", "message"}}`.
Anything else on stdout is kept as log
text. A worker that hangs, dies or floods ends in a coded answer, never in a hung server:
wall-clock limit, silence limit, output cap, and the whole process tree is killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from server.errors import Cancelled, EngineError, Missing
from server.processes import kill_tree
from server.results import clean

OnProgress = Callable[[float, float | None, str], None]
MAX_OUTPUT = 8 * 2**20
MAX_LOG = 16_384
EXIT_S = 20.0
"""Seconds a killed process may take to end: the driver takes back the device's memory first."""

_live: set[int] = set()
_live_lock = threading.Lock()


@dataclass
class Control:
    """What ties a piece of work to its caller: a cancel flag and a progress sink."""

    cancel: threading.Event = field(default_factory=threading.Event)
    on_progress: OnProgress = lambda done, total, message: None

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        self.check()
        self.on_progress(done, total, clean(message, 200))

    def check(self) -> None:
        if self.cancel.is_set():
            raise Cancelled


class WorkerDied(EngineError):
    """The worker ended without a result: killed, crashed or out of time. `log` holds the end of its stderr."""

    def __init__(self, code: str, message: str, log: str, next: str) -> None:
        super().__init__(code, message, next)
        self.log = clean(log, MAX_LOG)


class JobFault(EngineError):
    """The worker answered that its job could not go on because of the device. `at`: where the job stood (see corpus/gpu_watch.py)."""

    def __init__(self, code: str, message: str, next: str, at: Mapping[str, Any]) -> None:
        super().__init__(code, message, next)
        self.at = dict(at)


def kill_all() -> None:
    """End every worker of this process; called on SIGTERM and at exit."""
    with _live_lock:
        pids = list(_live)
    for pid in pids:
        kill_tree(pid)


def gpus() -> list[int]:
    """Indices of the GPUs whose device files exist. Touches no driver."""
    return sorted(int(p.name[6:]) for p in Path("/dev").glob("nvidia[0-9]*") if p.name[6:].isdigit())


def _lock_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"cake-gpu-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


class GpuLock:
    """The lock of one GPU while it is held. `problem`: why the device did not answer after the last fault, or empty; it
    is kept in the lock's file, so that every process of this user learns of it."""

    def __init__(self, handle: IO[str]) -> None:
        self._handle = handle
        handle.seek(0)
        self.problem = _lock_state(handle.read()).get("problem", "")
        self._write()

    def set_problem(self, text: str) -> None:
        """What the health probe said: empty when the device answers."""
        self.problem = clean(text, 300)
        self._write()

    def _write(self) -> None:
        self._handle.seek(0)
        self._handle.truncate()
        json.dump({"pid": os.getpid(), "since": round(time.time(), 3), "problem": self.problem}, self._handle)
        self._handle.flush()


def _lock_state(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:  # empty, or a writer was killed in the middle: nothing is known
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def gpu_lock(index: int, control: Control, wait_s: float = 600) -> Iterator[GpuLock]:
    """One job at a time per GPU, across all processes of this user.

    The kernel releases the lock when its holder ends, however it ends. Raises Missing gpu/busy when the GPU stays taken
    for `wait_s` seconds.
    """
    from corpus.files import lock  # not needed to start a server

    with (_lock_folder() / f"gpu{index}.lock").open("a+", encoding="utf-8") as handle:
        if not lock(handle.fileno(), wait_s, control.check):
            raise Missing("gpu/busy", f"GPU {index} was taken for {wait_s:.0f} s by another job", "try again later")
        yield GpuLock(handle)


def gpu_state(index: int) -> dict[str, Any]:
    """{"busy": bool, "pid", "since", "problem"} of a GPU's lock, without taking it; for `cake doctor`."""
    path = _lock_folder() / f"gpu{index}.lock"
    try:
        with path.open(encoding="utf-8") as handle:
            state = _lock_state(handle.read())
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                busy = False
            except BlockingIOError:
                busy = True
    except OSError:
        return {"busy": False, "problem": ""}
    return {"busy": busy, "problem": "", **state}


def run_worker(
    module: str, job: dict[str, Any], *, timeout_s: float, control: Control, env: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run one job in a fresh process and return its result object.

    Raises EngineError as the worker reported it, WorkerDied (worker/timeout, worker/killed, worker/crashed,
    worker/no-result), Cancelled. The process tree is gone when this returns or raises.
    """
    control.check()
    root = str(Path(__file__).resolve().parent.parent)
    argv = [sys.executable, "-m", "server.guard", module, str(os.getpid())]
    full_env = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
    full_env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH", "")])])
    with tempfile.TemporaryDirectory(prefix="cake-worker-") as cwd:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=full_env,
            start_new_session=True,
        )
        with _live_lock:
            _live.add(process.pid)
        try:
            return _supervise(process, job, time.monotonic() + timeout_s, timeout_s, control)
        finally:
            kill_tree(process.pid)
            _bury(process)
            for stream in (process.stdin, process.stdout, process.stderr):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            with _live_lock:
                _live.discard(process.pid)


def _bury(process: subprocess.Popen[bytes]) -> None:
    """Collect a killed process. One whose exit hangs inside a driver must not hang the server: it is left to a thread."""
    try:
        process.wait(timeout=EXIT_S)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, name=f"bury-{process.pid}", daemon=True).start()


def _pump(stream: Any, sink: queue.Queue[bytes | None] | None, log: bytearray) -> None:
    """Forward whole lines to `sink`; without a sink keep the end of the stream in `log`."""
    seen = 0
    with suppress(OSError, ValueError):
        for line in iter(lambda: stream.readline(1 << 20), b""):
            seen += len(line)
            if sink is None:
                log += line
                del log[:-MAX_LOG]
            elif seen <= MAX_OUTPUT:
                sink.put(line)
    if sink is not None:
        sink.put(None)


def _supervise(
    process: subprocess.Popen[bytes], job: dict[str, Any], deadline: float, timeout_s: float, control: Control
) -> dict[str, Any]:
    lines: queue.Queue[bytes | None] = queue.Queue()
    log = bytearray()
    errors = threading.Thread(target=_pump, args=(process.stderr, None, log), daemon=True)
    errors.start()
    threading.Thread(target=_pump, args=(process.stdout, lines, log), daemon=True).start()
    threading.Thread(target=_feed, args=(process, json.dumps(job).encode()), daemon=True).start()
    while True:
        control.check()
        left = deadline - time.monotonic()
        if left <= 0:
            raise WorkerDied(
                "worker/timeout",
                f"the worker was ended after {timeout_s:.0f} s",
                log.decode(errors="replace"),
                "an accepted kernel that hangs is a missing rule: send it to report_failure (symptom hang)",
            )
        try:
            line = lines.get(timeout=min(left, 0.1))
        except queue.Empty:
            continue
        if line is None:
            break
        message = _decode(line)
        if message is None:
            log += line
        elif "result" in message:
            return message["result"]
        elif "error" in message:
            raise _as_error(message["error"])
        elif "progress" in message:
            control.progress(float(message["progress"]), message.get("total"), str(message.get("message", "")))
    code = process.wait(timeout=5)
    errors.join(timeout=1)
    tail = log.decode(errors="replace")
    last = clean(tail.strip().splitlines()[-1], 200) if tail.strip() else "no message"
    if code < 0:
        name = signal.Signals(-code).name
        raise WorkerDied(
            "worker/killed",
            f"the worker was ended by {name}: {last}",
            tail,
            "stored evidence is intact; call again, and check the machine's memory if it repeats",
        )
    kind = "worker/no-result" if code == 0 else "worker/crashed"
    raise WorkerDied(
        kind,
        f"the worker ended with exit code {code} and no result: {last}",
        tail,
        "call again; if it repeats, send it to report_failure",
    )


def _as_error(said: Any) -> EngineError:
    """The worker's own error line."""
    error = said if isinstance(said, dict) else {}
    words = (str(error.get("code", "worker/crashed")), str(error.get("message", "")), str(error.get("next", "")))
    at = error.get("at")
    return JobFault(*words, at) if isinstance(at, dict) else EngineError(*words)


def _feed(process: subprocess.Popen[bytes], payload: bytes) -> None:
    with suppress(OSError, ValueError):
        assert process.stdin is not None
        process.stdin.write(payload + b"\n")
        process.stdin.close()


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and value.keys() & {"result", "error", "progress"} else None
