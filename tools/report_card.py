"""The report card of docs/verifier.md: recall, precision and latency, from what the engine's own runs wrote.

Sources: corpus/results/mutation.json (`dev.py mutation --write`) and corpus/results/verify-latency.json
(`tools/verify_latency.py`). A figure that no run has written is left out, never typed by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "corpus" / "results"
BEGIN = "<!-- report card: written by tools/gen_docs.py, do not edit -->"
END = "<!-- end of the report card -->"


def with_card(page: str, card: str, begin: str = BEGIN, end: str = END) -> str:
    """The page with the text between the marks replaced. Raises ValueError if the marks are not there once each."""
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page needs both marks once: {begin} {end}")
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{card}{end}{after}"


def percent(part: int, whole: int) -> str:
    """part of whole in words, `-` of nothing."""
    return f"{100 * part / whole:.1f} % ({part:,} of {whole:,})" if whole else "-"


def mutation_card(m: dict[str, Any]) -> str:
    """Totals and the table by kind of a mutation run.

    Recall counts programs that fault, race or hang under the judge; programs with one well-defined result that is not the
    contract's are a second line, since no text says which function was meant. Precision is strict (only rejects that a run
    shows to be wrong count) and with the laws of tests/mutation/explained.py.
    """
    true, missed, other = m["true_rejects"], m["false_accepts"], m["accepted_other_function"]
    explained, wrong = m["explained_rejects"], m["false_rejects_unexplained"]
    rejects = true + explained + wrong
    rows = [
        ("mutants that bind", f"{m['mutants']:,}, of them {m['synchronisation']:,} edits of synchronisation"),
        ("recall: faults, races, hangs that are rejected", percent(true, true + missed)),
        ("recall when another well-defined result counts as a fault too", percent(true, true + missed + other)),
        (
            "precision: rejects that a run or a law of the hardware shows to be wrong",
            percent(true + explained, rejects),
        ),
        ("precision, shown by a run of the value reading alone", percent(true, rejects)),
        ("false accepts; unexplained rejects", f"{missed}; {wrong}"),
        ("findings per fault, median", f"{m['median_findings']:g}"),
        ("primary finding on the edit or its counterpart", f"{100 * m['span_on_edit']:.1f} %"),
        (
            "records by state of the code (hash of `dev.py mutation`)",
            "; ".join(f"`{k}` {n:,}" for k, n in m["code"].items()),
        ),
        ("verified fix offered, single synchronisation edits", f"{100 * m['fix_offered']:.1f} %"),
    ]
    lines = [
        f"Mutation run at commit `{m['commit'][:12]}` (`corpus/results/mutation.json`):",
        "",
        "| measure | value |",
        "| --- | --- |",
    ]
    lines += [f"| {name} | {value} |" for name, value in rows]
    lines += [
        "",
        "| kind | mutants | true rejects | explained | unexplained | true accepts | other function | false accepts |",
    ]
    lines += ["| --- |" + " ---: |" * 7]
    columns = (
        "mutants",
        "true reject",
        "explained reject",
        "unexplained reject",
        "true accept",
        "other function",
        "false accept",
    )
    for kind, row in m["by_kind"].items():
        lines.append(f"| {kind} | " + " | ".join(f"{row.get(c, 0):,}" for c in columns) + " |")
    return "\n".join(lines) + "\n"


def latency_card(m: dict[str, Any]) -> str:
    """Times of `verify` over corpus, mutants and the largest program, and how they grow."""
    names = (
        ("corpus", "corpus kernels (accepted)"),
        ("mutants_accepted", "mutants, accepted"),
        ("mutants_rejected", "mutants, rejected, with their verified repairs"),
        ("largest", "12 roles, 30 barriers: right, and with one wait less"),
    )
    lines = [
        "### Latency",
        "",
        f"{m['unit'].capitalize()}, measured on {m['machine']}, Python {m['python']}, at commit `{m['commit'][:12]}` by",
        "`tools/verify_latency.py` (`corpus/results/verify-latency.json` has the samples). Peak memory of the whole measurement: "
        f"{m['peak_rss_mb']} MB.",
        "",
        "| programs | number | p50 | p95 | largest |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {said} | " + " | ".join(f"{m[k][c]:,.0f}" for c in ("programs", "p50", "p95", "max")) + " |"
        for k, said in names
    ]
    if "load" in m:
        lines += [
            "",
            f"Load averages of the machine at the end: {', '.join(map(str, m['load']))}; other load lengthens the times.",
        ]
    growth = m["samples"]["growth"]
    top = max(g["ms"] for g in growth)
    lines += [
        "",
        "A ring of S stages filled by c copies and read by c loads, in a loop of unknown length; *ops* counts all ops of the text. Steps",
        "are the deterministic count of work that bounds the verifier (`cake_ir.effort`); tests bound them, not the time.",
        "",
        "| ops | stages | steps | ms | |",
        "| ---: | ---: | ---: | ---: | --- |",
    ]
    for g in growth:
        bar = "#" * max(1, round(30 * g["ms"] / top))
        lines.append(f"| {g['ops']} | {g['stages']} | {g['steps']:,} | {g['ms']:.0f} | `{bar}` |")
    return "\n".join(lines) + "\n"


def card() -> str:
    """The text between the marks."""
    parts = []
    mutation = RESULTS / "mutation.json"
    if mutation.exists():
        parts.append(mutation_card(json.loads(mutation.read_text(encoding="utf-8"))))
    latency = RESULTS / "verify-latency.json"
    if latency.exists():
        parts.append(latency_card(json.loads(latency.read_text(encoding="utf-8"))))
    return "\n" + "\n".join(parts) + "\n" if parts else "\nNo run has been recorded.\n\n"


def verifier_page() -> str:
    """docs/verifier.md with the present report card."""
    return with_card((ROOT / "docs" / "verifier.md").read_text(encoding="utf-8"), card())
