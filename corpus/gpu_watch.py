"""What a GPU worker is doing, and its end when the device does not answer.

A hung kernel blocks the thread that waits for it, inside the driver; another thread answers for it and ends the process
(see `lowering.runtime.patience`). The answer `worker/hung` carries `at`: kernel, shape, case, and which launch it was.
"""

from __future__ import annotations

from typing import Any

from corpus.check import shape_text
from corpus.contract import Contract
from corpus.jobs import Job, Launch

LEAST_S = 5.0
SLOW_FLOPS, SLOW_BYTES = 1e13, 1e11
"""Rates of a kernel that is slow on any GPU the targets name, in FLOP/s and bytes/s; the floor is far below."""
GENEROUS = 20.0
REPORT = "a verified kernel that hangs is a missing rule: report it with report_failure (symptom hang)"


def limit_s(job: Job, contract: Contract) -> float:
    """Seconds that one wait for the device may take: the job's own limit, or what a slow kernel needs for the largest
    of its shapes, many times over, at least 5 s and at most the job's whole time."""
    if job.launch_timeout_s is not None:
        return job.launch_timeout_s
    slow = max(
        (contract.flops(x.shape) / SLOW_FLOPS + contract.bytes(x.shape, x.dtypes) / SLOW_BYTES for x in job.launches),
        default=0.0,
    )
    return min(max(LEAST_S, GENEROUS * slow), job.timeout_s)


class Watch:
    """The job, the case that is running, and the device once it is open."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.case = ""
        self.device: Any = None

    def begin(self, case: str) -> None:
        """A case begins; `case` names its shape, as progress messages do."""
        self.case = case
        if self.device is not None:
            self.device.patience.begin()

    def at(self) -> dict[str, Any]:
        """Where the job stands, as JSON. `launch` counts from 1 within the case; None: no launch of ours is pending."""
        patience = self.device.patience if self.device is not None else None
        pending = tuple(patience.pending) if patience else ()
        launch = self._launch()
        return {
            "job": self.job.kind,
            "kernel": pending[0] if pending else self.job.kernel,
            "shape": dict(launch.shape) if launch else None,
            "case": self.case,
            "launch": patience.done + 1 if patience and pending else None,
            "pending": len(pending),
        }

    def hung(self, seconds: float) -> dict[str, Any]:
        """The answer to a wait that took too long."""
        at = {**self.at(), "limit_s": round(seconds, 1)}
        if at["launch"] is None:
            what = "the device did not answer, although no launch of the kernel was pending (a library or a baseline hangs)"
        elif at["pending"] == 1:
            what = f"{at['kernel']} did not end: launch {at['launch']}"
        else:
            what = f"{at['kernel']} did not end: one of launches {at['launch']} to {at['launch'] + at['pending'] - 1}"
        case = f" of {self.case}" if self.case else ""
        return {
            "error": {"code": "worker/hung", "message": f"{what}{case}, limit {seconds:g} s", "next": REPORT, "at": at}
        }

    def _launch(self) -> Launch | None:
        """The launch whose shape the case names; the longest, since `M=1 N=8` is part of `M=1 N=80`."""
        if len(self.job.launches) == 1:
            return self.job.launches[0]
        named = [x for x in self.job.launches if shape_text(x.shape) in self.case]
        return max(named, key=lambda x: len(shape_text(x.shape)), default=None)
