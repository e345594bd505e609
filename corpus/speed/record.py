"""A run's OUT/speed.json into `corpus/results/speed/NAME.json`, and those into docs/speed.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cake_ir.diagnostics import CakeError, error
from corpus import evidence
from corpus.speed import model, page
from corpus.speed.run import FILE

COMMAND = "python -m corpus.speed prepare DIR --cute PYTHON; python -m corpus.speed run DIR OUT --table {name}"
PAGE = Path(__file__).parents[2] / "docs" / "speed.md"


def tables(raw: dict[str, Any]) -> tuple[list[model.Table], list[str]]:
    """The tables of a run, and what those say that failed. Raises CakeError `speed/bad-run` for a smoke run or rows of another form."""
    if raw.get("quick"):
        raise _bad("this is a smoke run (--quick): run all shapes")
    device, conditions = raw["device"], raw.get("conditions", {})
    made: list[model.Table] = []
    failed: list[str] = []
    for name, table in raw["tables"].items():
        if "error" in table:
            failed.append(str(table["error"]))
            continue
        try:
            rows = tuple(model.Row.model_validate(r) for r in table["rows"])
        except ValidationError as exc:
            raise _bad(f"{name}: {exc}") from exc
        layout = page.LAYOUTS[name]
        made.append(
            model.Table(
                name=name, title=layout.title, what=layout.what, rows=rows, facts=table["facts"], device=str(device["name"]),
                driver=str(conditions.get("driver", device.get("driver", ""))), versions=_versions(rows, raw), rule=raw["rule"],
                compiler=", ".join(sorted({p.compiler for r in rows for p in r.programs})), date=raw["date"],
                command=COMMAND.format(name=name), commit=raw.get("commit", ""),
            )
        )  # fmt: skip
    return made, failed


def _versions(rows: tuple[model.Row, ...], raw: dict[str, Any]) -> dict[str, str]:
    found = {"torch": str(raw.get("torch", ""))}
    for r in rows:
        for t in r.against:
            found |= t.versions
    return dict(sorted(found.items()))


def record(out: Path, directory: Path = model.DIRECTORY, to: Path = PAGE) -> list[Path]:
    """Write every table of a run and the page; tables that the run does not hold stay. Returns what was written.

    Raises CakeError `speed/bad-run`; for tables that failed, after the others have been written.
    """
    try:
        raw = json.loads((out / FILE).read_text(encoding="utf-8"))
        made, failed = tables(raw)
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise _bad(f"{out / FILE}: {type(exc).__name__}: {exc}") from exc
    with evidence.editing(directory):
        written = [model.write(t, directory) for t in made]
        written.append(evidence.replace_text(to, page.document(directory)))
    if failed:
        raise _bad("recorded without what failed: " + "; ".join(failed))
    return written


def _bad(message: str) -> CakeError:
    law = "Evidence is recorded from a whole run of corpus.speed."
    return CakeError(error("speed/bad-run", "data", message, contract=law))
