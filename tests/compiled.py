"""Kernels that are compiled once per run of the tests, and the CPU worker's jobs without its process.

A cubin is found again only by the digest of its whole source, architecture, options and compiler (lowering.cache), so whoever changes
any of them has it compiled. What is tested about compiling itself (time limits, refusals, repeatability, the cache) compiles afresh.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lowering import Build, build
from lowering.emission import Emitted

FOLDER = "CAKE_TEST_CUBINS"


def cubins() -> Path:
    """The folder of this run's compiled kernels."""
    return Path(os.environ[FOLDER])


def compiled(emitted: Emitted) -> Build:
    """`lowering.build`, once per run for each source."""
    return build(emitted, cache_dir=cubins())


_one_at_a_time = threading.Lock()


def worker(module: str, job: dict[str, Any], *, timeout_s: float, control: Any, **more: Any) -> dict[str, Any]:
    """Stands in for `server.worker.run_worker` where a test asks for the answer of the CPU worker, not for its process: the same job
    by the same function, through JSON, with this run's compiled kernels. Raises what the job raises, but no fault of a process
    (tests/server/test_worker.py has those)."""
    from cake_ir.diagnostics import CakeError
    from server import cpu_main

    assert module == "server.cpu_main", module
    asked = json.loads(json.dumps(job))
    if "cache_dir" in asked:
        asked["cache_dir"] = str(cubins())
    if asked["kind"] == "prepare":
        asked["more"]["cache_dir"] = str(cubins())

    def progress(line: dict[str, Any]) -> None:
        control.progress(float(line["progress"]), line.get("total"), str(line.get("message", "")))

    with _one_at_a_time, patch.object(cpu_main, "emit_line", progress):
        try:
            answer = cpu_main.JOBS[asked["kind"]](asked)
        except CakeError as exc:
            answer = {"diagnostic": exc.diagnostic.model_dump(mode="json")}
    return json.loads(json.dumps(answer))
