"""Jobs: work that may outlive the call that started it.

A job runs on its own thread and is named by the content of its request, so that asking twice joins the running work
instead of doing it again. A caller waits a bounded time; after that the handle is the answer. Cancelling the last
waiter cancels the work. The outcome is stored, so a handle stays good after a restart of the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from cake_ir.diagnostics import CakeError
from server.errors import Cancelled, EngineError
from server.results import Result
from server.store import Store, digest
from server.worker import Control

_log = structlog.get_logger("cake.jobs")

Work = Callable[[Control], Result]


@dataclass
class Job:
    """One running or finished piece of work. `progress` is (done, total, message), the latest report."""

    job_id: str
    kind: str
    request: dict[str, Any]
    control: Control
    done: threading.Event = field(default_factory=threading.Event)
    result: Result | None = None
    progress: tuple[float, float | None, str] = (0.0, None, "queued")
    waiters: int = 0
    detached: bool = False
    started: float = field(default_factory=time.monotonic)


class Jobs:
    """All jobs of one server process. Thread safe."""

    def __init__(self, store: Store, max_running: int = 4) -> None:
        self._store = store
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(max_running)

    def start(self, kind: str, request: dict[str, Any], work: Work) -> Job:
        """Start the work, or join the job that already runs for the same request."""
        job_id = digest("job", kind, request)
        with self._lock:
            job = self._jobs.get(job_id)
            if job is not None and not job.done.is_set():
                return job
            job = Job(job_id, kind, request, Control())
            job.control.on_progress = self._recorder(job)
            self._jobs[job_id] = job
        try:
            self._store.put_job(job_id, kind, "running", request)
        except BaseException:
            # A job that never starts must not be joined: the next call of the same request tries afresh.
            with self._lock:
                self._jobs.pop(job_id, None)
            job.result = EngineError(
                "job/lost", "the job was not started: the workspace could not take it", "make the same call again"
            ).result()
            job.done.set()
            raise
        threading.Thread(target=self._run, args=(job, work), name=job_id, daemon=True).start()
        return job

    def get(self, job_id: str) -> Job | None:
        with self._lock:
            return self._jobs.get(job_id)

    def stored(self, job_id: str) -> Result | None:
        """The outcome of a job of an earlier process; a job that was running then is reported as lost."""
        row = self._store.job(job_id)
        if row is None:
            return None
        if row["result"] is not None:
            return Result.model_validate(row["result"])
        return EngineError(
            "job/lost",
            "the server stopped while this job ran; its finished steps are stored",
            "make the same call again without job_id",
        ).result()

    def release(self, job: Job, *, cancelled: bool) -> None:
        """A waiter leaves. If it gave up, and nobody else waits or holds the handle, the work is cancelled."""
        with self._lock:
            job.waiters -= 1
            if cancelled and job.waiters <= 0 and not job.detached:
                job.control.cancel.set()

    def hold(self, job: Job) -> None:
        with self._lock:
            job.waiters += 1

    def cancel_all(self) -> None:
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            job.control.cancel.set()

    def _recorder(self, job: Job) -> Callable[[float, float | None, str], None]:
        def record(done: float, total: float | None, message: str) -> None:
            job.progress = (done, total, message)

        return record

    def _run(self, job: Job, work: Work) -> None:
        try:
            while not self._slots.acquire(timeout=0.1):
                job.control.check()
            try:
                result = work(job.control)
            finally:
                self._slots.release()
        except Cancelled as exc:
            result = exc.result()
            result.status = "cancelled"
        except EngineError as exc:
            result = exc.result()
        except CakeError as exc:
            result = EngineError(exc.diagnostic.rule, exc.diagnostic.message, exc.diagnostic.contract).result()
        except Exception:
            _log.exception("job failed", job=job.job_id, kind=job.kind)
            result = internal_error(job.job_id)
        result.ids.setdefault("job_id", job.job_id)
        job.result = result
        try:
            self._store.put_job(job.job_id, job.kind, result.status, job.request, result.model_dump(mode="json"))
        except EngineError:
            _log.exception("job outcome not stored", job=job.job_id)
        job.done.set()


def internal_error(where: str) -> Result:
    """The answer to a fault of ours: coded, without a trace; the trace is on stderr under the same reference."""
    return EngineError(
        "internal/unexpected",
        f"the server failed unexpectedly; the details are in its log under {where}",
        "stored evidence is intact; report it with report_failure (symptom crash) or try a smaller request",
    ).result()
