"""One job in a fresh worker process, for commands that run on the GPU machine itself (the server has its own)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def ask(job: str, limit_s: float) -> dict[str, Any]:
    """The worker's answer to a job (JSON text): an object with `result`, or with `error` (code and message).

    The worker is killed after `limit_s` seconds; a worker that says nothing is answered with the end of its stderr.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "corpus.gpu_main"], input=job, capture_output=True, text=True, errors="replace",
            timeout=limit_s, check=False, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": {"code": "worker/timeout", "message": f"no answer in {limit_s:.0f} s"}}
    silent = {"error": {"code": "worker/silent", "message": done.stderr[-1500:]}}
    lines = [_object(line) for line in reversed(done.stdout.splitlines())]
    return next((x for x in lines if "result" in x or "error" in x), silent)


def _object(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
