"""The record of a GPU run: `corpus/results/mutation-gpu.json` and the section of docs/mutation.md that shows it."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corpus.evidence import DIRECTORY
from tests.mutation.silicon.outcome import FAILURES, OUTCOMES, agrees
from tests.mutation.silicon.runner import ORDER, Package, rows

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "mutation.md"
RESULT = DIRECTORY / "mutation-gpu.json"
BEGIN, END = "<!-- silicon: written by `python -m tools.gpu_mutants record` -->", "<!-- end of silicon -->"
ABOUT = ("id", "subject", "kind", "op", "sync", "what", "class", "rules", "message", "judge")


def record(package: Package, out: Path) -> dict[str, Any]:
    """The whole record as JSON. Jobs without a row are left out and counted."""
    ran = {r["id"]: r for r in rows(out / "results.jsonl") if "error" not in r}
    errors = [r for r in rows(out / "results.jsonl") if "error" in r and r["id"] not in ran]
    found = []
    for j in package.jobs:
        r = ran.get(j["id"])
        if r is not None:
            about = {k: j[k] for k in ABOUT if k in j}
            found.append(
                {
                    **about,
                    "cubins": j["cubins"],
                    "outcome": r["outcome"],
                    "series": r["series"],
                    "seconds": r["seconds"],
                }
            )
    after = {i.removesuffix(" after"): r["outcome"] for i, r in ran.items() if i.endswith(" after")}
    checked = [{k: v for k, v in r.items() if k not in ("log", "class")} for r in rows(out / "sanitizer.jsonl")]
    device = json.loads((out / "device.json").read_text())
    meta = package.meta
    command = [meta["command"], "python -m tools.gpu_mutants run DIR OUT"] + (
        ["python -m tools.gpu_mutants run DIR OUT --only sanitizer"] if checked else []
    )
    when = datetime.datetime.fromtimestamp((out / "results.jsonl").stat().st_mtime, datetime.UTC)
    return {
        "kind": "mutation-gpu", "device": device, "compiler": meta["compiler"], "commit": meta["commit"], "seed": meta["seed"],
        "command": "; ".join(command), "date": when.isoformat(timespec="seconds"), "programs": meta["programs"],
        "planned": meta["planned"], "not_run": len(package.jobs) - len(found), "errors": [r["id"] for r in errors],
        "controls_after": after, "rows": found, "sanitizer": checked,
    }  # fmt: skip


def disagreements(rec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows whose outcome is not what their class promises: each becomes a rule or a repair of the judge."""
    return [r for r in rec["rows"] if not agrees(r["class"], r["outcome"])]


def table(found: Sequence[Mapping[str, Any]], by: str) -> list[str]:
    """Markdown: one line per (class, `by`), one column per outcome."""
    shown = [o for o in reversed(OUTCOMES) if any(r["outcome"] == o for r in found)]
    lines = [f"| class | {by} | mutants | {' | '.join(shown)} |", f"| --- | --- |{' ---: |' * (len(shown) + 1)}"]
    for c in ORDER:
        mine = [r for r in found if r["class"] == c]
        names = sorted({r[by] for r in mine})
        for name in [*names, *(["all"] if len(names) > 1 else [])]:
            members = [r for r in mine if name in ("all", r[by])]
            counts = Counter(r["outcome"] for r in members)
            cells = " | ".join(str(counts[o]) if counts[o] else "" for o in shown)
            mark = "**" if name == "all" else ""
            lines.append(f"| {c} | {mark}{name}{mark} | {len(members)} | {cells} |")
    return lines


def by_rule(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown: the refuted by their first rule, how many of them failed, and what the judge shows of them."""
    refuted = [r for r in found if r["class"] == "refuted"]
    lines = ["| first rule | refuted | fail on the device | launch refused | judge shows a fault | fail in neither |",
             "| --- | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for rule in sorted({r["rules"][0] for r in refuted}):
        members = [r for r in refuted if r["rules"][0] == rule]
        fails = [r["outcome"] in FAILURES for r in members]
        shown = [r["judge"].get("state") in ("fault", "schedule", "wrong", "timeout") for r in members]
        refusals = sum(r["outcome"] == "refused" for r in members)
        neither = sum(
            not f and not s and r["outcome"] != "refused" for f, s, r in zip(fails, shown, members, strict=True)
        )
        cells = (len(members), sum(fails), refusals, sum(shown), neither)
        lines.append(f"| {rule} | {' | '.join(str(n) if n else '' for n in cells)} |")
    return lines


def sanitizers(rec: Mapping[str, Any]) -> list[str]:
    """Markdown: per tool and class, how many mutants it ran on and how many it found something in."""
    classes = {r["id"]: r["class"] for r in rec["rows"]}
    lines = ["| tool | class | mutants | with findings | no end | launch error without a finding |",
             "| --- | --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in rec["sanitizer"]:
        groups.setdefault((r["tool"], classes.get(r["id"], "?")), []).append(r)
    for (tool, c), members in sorted(groups.items()):
        with_findings = sum(bool(r["errors"]) for r in members)
        endless = sum(r["launch"] == "no end" for r in members)
        silent = sum(r["launch"] not in ("ok", "no end") and not r["errors"] for r in members)
        lines.append(f"| {tool} | {c} | {' | '.join(str(n) for n in (len(members), with_findings, endless, silent))} |")
    return lines


def section(rec: Mapping[str, Any]) -> str:
    """The generated part of the page."""
    found, device = rec["rows"], rec["device"]
    counts = Counter(r["class"] for r in found)
    bad = disagreements(rec)
    refuted = [r for r in found if r["class"] == "refuted"]
    fail = sum(r["outcome"] in FAILURES for r in refuted)
    launched = sum(s.get("launches", 0) for r in found for s in r["series"])
    text = [
        BEGIN, "",
        f"{rec['date'][:10]}, {device.get('name')}, driver {device.get('driver')}, {rec['compiler']}, seed {rec['seed']}: "
        f"{counts['refuted']} refuted and {counts['accepted']} accepted mutants, {counts['other function']} of another function, "
        f"{counts['control']} unmutated programs; {launched} launches. {fail} of the {len(refuted)} refuted fail on this device. "
        f"{len(bad)} of the others do what their class does not promise{': see below' if bad else ''}.",
        "", *table(found, "kind"), "", *by_rule(found),
    ]  # fmt: skip
    if bad:
        text += ["", "| class | program | edit | outcome | what was seen |", "| --- | --- | --- | --- | --- |"]
        for r in bad:
            seen = next((s["says"] for s in r["series"] if s["outcome"] == r["outcome"]), "")
            text.append(f"| {r['class']} | {r['subject']} | {r['what']} | {r['outcome']} | {_cell(seen)} |")
    if rec["sanitizer"]:
        text += ["", *sanitizers(rec)]
    return "\n".join([*text, "", END])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")[:160]


def put(page: str, part: str) -> str:
    """The page with its generated part replaced; raises ValueError when the page has no place for it."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page needs one {BEGIN} and one {END}")
    return page[: page.index(BEGIN)] + part + page[page.index(END) + len(END) :]


def write(directory: Path, out: Path, *, result: Path = RESULT, page: Path = PAGE) -> tuple[Path, str]:
    """Write the record and the page's part; returns the record's path and a summary."""
    rec = record(Package(directory), out)
    result.write_text(json.dumps(rec, indent=1) + "\n", encoding="utf-8")
    page.write_text(put(page.read_text(encoding="utf-8"), section(rec)), encoding="utf-8")
    lines = table(rec["rows"], "kind")
    summary = [line for line in lines if "**all**" in line or line.startswith("| class")]
    bad = [
        f"NOT PROMISED: {r['class']} {r['id']} {r['subject']} {r['what']}: {r['outcome']}" for r in disagreements(rec)
    ]
    lost = [f"not run: {rec['not_run']}, errors: {len(rec['errors'])}"] if rec["not_run"] else []
    return result, "\n".join([*summary, *lost, *bad])
