"""The run on the GPU machine: every table in one process, into one JSON file that `record` reads."""

from __future__ import annotations

import datetime
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError, error
from corpus import files
from corpus.speed import warm
from corpus.speed.tables import MEASURED, OverBudget, Session

FILE = "speed.json"


def run(
    directory: Path, out: Path, only: Sequence[str] = (), *, quick: bool = False, index: int = 0, budget_s: float = math.inf
) -> Path:  # fmt: skip
    """Measure the tables named (all by default) and write OUT/speed.json after each; returns its path.

    budget_s: of the whole run, compiling the Triton peers included. A table that does not fit is left out and named under
    `left_out`; the run ends then without an error, and what is written can be recorded.

    Raises CakeError `lowering/no-gpu` or `speed/no-torch` where nothing can be measured, and that of a table that failed
    after the others have been written.
    """
    from corpus.gpu_buffers import open_env
    from lowering.runtime import stats, telemetry

    start = time.monotonic()
    said = warm.compile_all(quick) if set(only or MEASURED) != {"gemm"} else []
    warmed = time.monotonic() - start
    env = open_env(index)
    if env.torch is None:
        law = "The speed tables compare with libraries that are called through torch."
        raise CakeError(
            error(
                "speed/no-torch",
                "data",
                "torch with CUDA is not installed: pip install 'cake-mcp[bench]'",
                contract=law,
            )
        )
    out.mkdir(parents=True, exist_ok=True)
    info = env.device.info()
    record: dict[str, Any] = {
        "device": info.to_json(), "conditions": telemetry.snapshot(info.uuid), "rule": stats.RULE, "quick": quick,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "torch": env.torch.__version__,
        "warm": {"seconds": round(warmed, 1), "said": said}, "tables": {}, "left_out": [],
        "commit": (directory / "commit").read_text(encoding="utf-8").strip() if (directory / "commit").exists() else "",
    }  # fmt: skip
    session = Session(env, directory, quick)
    failed: list[str] = []
    file = out / FILE
    for name in only or MEASURED:
        spent = time.monotonic() - start
        if spent + (0.0 if quick else MEASURED[name]) > budget_s:
            record["left_out"].append(
                f"{name}: {spent:.0f} s of {budget_s:.0f} s were spent, it takes about {MEASURED[name]:.0f} s"
            )
            print("left out", record["left_out"][-1], file=sys.stderr, flush=True)
            continue
        try:
            rows, facts = session.run(name, start + budget_s)
        except OverBudget as exc:
            record["left_out"].append(str(exc))
        except Exception as exc:  # whatever broke one table, the others are worth their GPU time
            failed.append(f"{name}: {type(exc).__name__}: {str(exc)[:500]}")
            record["tables"][name] = {"error": failed[-1]}
        else:
            plain = [r.model_dump(mode="json", exclude_defaults=True) for r in rows]
            record["tables"][name] = {"rows": plain, "facts": facts}
        record["seconds"] = round(time.monotonic() - start, 1)
        print(f"{name} done at {record['seconds']} s", file=sys.stderr, flush=True)
        files.replace(file, json.dumps(record).encode() + b"\n")
    files.replace(file, json.dumps(record).encode() + b"\n")
    if failed:
        law = "Every table that is asked for is measured."
        raise CakeError(error("speed/failed", "data", "; ".join(failed), contract=law))
    return file
