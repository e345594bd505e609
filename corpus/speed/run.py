"""The run on the GPU machine: every table in one process, into one JSON file that `record` reads."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError, error
from corpus.speed import warm
from corpus.speed.tables import MEASURED, Session

FILE = "speed.json"


def run(directory: Path, out: Path, only: Sequence[str] = (), *, quick: bool = False, index: int = 0) -> Path:
    """Measure the tables named (all by default) and write OUT/speed.json after each; returns its path.

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
        "warm": {"seconds": round(warmed, 1), "said": said}, "tables": {},
        "commit": (directory / "commit").read_text(encoding="utf-8").strip() if (directory / "commit").exists() else "",
    }  # fmt: skip
    session = Session(env, directory, quick)
    failed: list[str] = []
    for name in only or MEASURED:
        try:
            rows, facts = session.run(name)
        except Exception as exc:  # whatever broke one table, the others are worth their GPU time
            failed.append(f"{name}: {type(exc).__name__}: {str(exc)[:500]}")
            record["tables"][name] = {"error": failed[-1]}
            continue
        finally:
            (out / FILE).write_text(json.dumps(record) + "\n", encoding="utf-8")
        record["tables"][name] = {
            "rows": [r.model_dump(mode="json", exclude_defaults=True) for r in rows],
            "facts": facts,
        }
        (out / FILE).write_text(json.dumps(record) + "\n", encoding="utf-8")
    record["seconds"] = round(time.monotonic() - start, 1)
    (out / FILE).write_text(json.dumps(record) + "\n", encoding="utf-8")
    if failed:
        law = "Every table that is asked for is measured."
        raise CakeError(error("speed/failed", "data", "; ".join(failed), contract=law))
    return out / FILE
