"""Turn a bench or profile result into committed evidence: `python -m corpus.export result.jsonl --job job.json --name kmeans-h200`.

The result is what `corpus.gpu_main` wrote, the job what it was given; both together say what was measured and how. A bench
becomes rows of corpus/results/NAME.json, a profile corpus/results/profiles/NAME.json (see `corpus.profiling.record`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError
from corpus import evidence, jobs
from corpus.check import shape_text


def last_result(text: str) -> dict[str, Any]:
    """The result object in a worker's output; raises ValueError with the worker's error when there is none."""
    for line in reversed(text.splitlines()):
        try:
            obj = json.loads(line)
        except ValueError:
            continue
        if isinstance(obj, dict) and "result" in obj:
            return obj["result"]
        if isinstance(obj, dict) and "error" in obj:
            raise ValueError(f"the worker answered {obj['error'].get('code')}: {obj['error'].get('message')}")
    raise ValueError("the output holds no result")


def export(result: dict[str, Any], job: jobs.Job, *, command: str, date: str, commit: str) -> list[evidence.ResultRow]:
    """Rows of a bench result."""
    if result.get("kind") != "bench":
        raise ValueError("only bench and profile results become committed evidence")
    shas = sorted({str(p["cubin_sha256"]) for launch in job.launches for p in launch.plans})
    return evidence.rows_from_bench(
        result, content_id=job.content_id, variant_id=job.variant_id, bindings=job.bindings, target=job.target,
        compiler=job.compiler, cubin_sha256=",".join(shas), command=command, date=date, commit=commit,
    )  # fmt: skip


def head_commit() -> str:
    """The git commit of the working directory, or an empty string."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def main(argv: list[str] | None = None) -> int:
    """Command line. --append keeps the rows that the file has for other shapes, modes, kernels or baselines."""
    p = argparse.ArgumentParser(prog="corpus.export", description=__doc__)
    p.add_argument("result", type=Path)
    p.add_argument("--job", type=Path, required=True)
    p.add_argument("--name", required=True)
    p.add_argument("--command", default="python -m corpus.gpu_main")
    p.add_argument("--date", help="ISO 8601; default: when the result file was written")
    p.add_argument("--append", action="store_true")
    a = p.parse_args(argv)
    try:
        job = jobs.parse(json.loads(a.job.read_text(encoding="utf-8")))
        written = datetime.fromtimestamp(a.result.stat().st_mtime, UTC)
        date = a.date or written.strftime("%Y-%m-%dT%H:%M:%SZ")
        result = last_result(a.result.read_text(encoding="utf-8"))
        if result.get("kind") == "profile":
            from corpus.profiling import record

            made = record.record(result, job, command=a.command, date=date, commit=head_commit())
            print(made["summary"]["sentence"])
            print(record.write(a.name, made))
            return 0
        rows = export(result, job, command=a.command, date=date, commit=head_commit())
        if a.append:
            rows = evidence.merged(evidence.read_rows(evidence.DIRECTORY / f"{a.name}.json"), rows)
        path = evidence.write(a.name, rows)
    except (OSError, ValueError, CakeError) as exc:
        print(f"cannot export: {exc}", file=sys.stderr)
        return 1
    for r in rows:
        against = f"{r.ratio:.3f} x {r.baseline}, {r.verdict}" if r.ratio else r.verdict
        print(f"{r.kernel} {shape_text(r.shape)} {r.mode}: {r.time_us:.4g} us, {against}")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
