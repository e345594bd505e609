"""Measure a prepared set on the GPU: `python -m corpus.ranking run DIR OUT` goes through the campaigns DIR/WORKLOAD, each into its
journal OUT/WORKLOAD.jsonl. How hung and faulting candidates are survived is in `corpus.tuning.run`; started again, it goes on.

`python -m corpus.ranking.run DIR/WORKLOAD OUT/WORKLOAD.jsonl` measures one.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corpus import jobs
from corpus.ranking.workloads import WORKLOADS, workload
from corpus.tuning.decide import TUNE
from corpus.tuning.run import Session, Task, command, supervise


def work(s: Session) -> dict[str, Any]:
    """Every shape with its candidates, in an order that makes a run cut short a fair sample. Raises Fault."""
    start = time.monotonic()
    (dtype,) = s.campaign.contracts
    todo = [e for e in s.campaign.shapes if s.journal.measured(TUNE, dtype, e.dims) is None]
    random.Random(s.campaign.seed).shuffle(todo)
    left = 0
    for i, entry in enumerate(todo):
        if s.left() <= 0:
            left = len(todo) - i
            break
        s.progress(i, len(todo), f"measuring {entry.dims}")
        s.shape(TUNE, entry.set, dtype, entry.dims, entry.candidates[dtype])
    return {"complete": not left, "seconds": round(time.monotonic() - start, 1), "shapes_left": left}


def _lines(summary: dict[str, Any]) -> list[str]:
    return [f"{summary['shapes_left']} shapes were not measured"] if summary["shapes_left"] else []


TASK = Task("corpus.ranking.run", lambda name: workload(name).family(), work, _lines)


def run(directory: Path, out: Path, names: Sequence[str], device: int, budget_s: float) -> int:
    """All campaigns of a folder, or those named; the worst exit code of theirs (`corpus.tuning.run`)."""
    end = time.monotonic() + budget_s
    out.mkdir(parents=True, exist_ok=True)
    worst = jobs.EXIT_OK
    for name in names or [n for n in WORKLOADS if (directory / n / "campaign.json").exists()]:
        print(name, flush=True)
        left = max(5.0, end - time.monotonic())
        worst = max(worst, supervise(directory / name, out / f"{name}.jsonl", device, left, TASK))
    return worst


if __name__ == "__main__":
    code = command(sys.argv[1:], TASK, __doc__)
    sys.stdout.flush()
    sys.stderr.flush()
    # skip interpreter teardown: destructors of a broken context may block
    os._exit(code)
