"""Totals of a run: the table by kind and what `corpus/results/mutation.json` holds."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tests.mutation.evaluate import OUTCOMES
from tests.mutation.explained import EDIT_LAWS, LAWS
from tests.mutation.operators import KINDS

COLUMNS = ("mutants", *OUTCOMES[:6], "undecided", "verifier crash", "refused")


def by_kind(records: Iterable[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """kind -> outcome -> count; `mutants` counts those that bind, `synchronisation` those that edit synchronisation."""
    found: dict[str, Counter[str]] = {k: Counter() for k in KINDS}
    for r in records:
        c = found[r["kind"]]
        c[r["outcome"]] += 1
        if r["outcome"] != "refused":
            c["mutants"] += 1
            c["synchronisation"] += r["sync"]
    return {k: dict(c) for k, c in found.items() if c}


def share(part: int, whole: int) -> float | None:
    """part / whole to four digits, None of nothing."""
    return round(part / whole, 4) if whole else None


def p95(values: Sequence[float]) -> float | None:
    """The 95th percentile (nearest rank)."""
    if not values:
        return None
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(0.95 * len(ranked)))]


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Totals of a list of records (JSON objects of `evaluate.Record`)."""
    bound = [r for r in records if r["outcome"] != "refused"]
    count = Counter(r["outcome"] for r in records)
    rejects = [r for r in bound if r["rules"]]
    faults = [r for r in rejects if r["outcome"] == "true reject"]
    sync = [r for r in faults if r["sync"]]
    explained = Counter(r["law"] for r in records if r["outcome"] == "explained reject")
    return {
        "mutants": len(bound),
        "synchronisation": sum(r["sync"] for r in bound),
        "refused_by_binder": count["refused"],
        "false_accepts": count["false accept"],
        "accepted_other_function": count["other function"],
        "false_rejects_unexplained": count["unexplained reject"],
        "explained_rejects": count["explained reject"],
        "explained_share_of_rejects": share(count["explained reject"], len(rejects)),
        "true_rejects": count["true reject"],
        "true_accepts": count["true accept"],
        "undecided": count["undecided"],
        "verifier_crashes": count["verifier crash"],
        "median_findings": statistics.median([r["findings"] for r in faults]) if faults else None,
        "span_on_edit": share(sum(r["where"] in ("edit", "counterpart") for r in faults), len(faults)),
        "span_on_edit_exactly": share(sum(r["where"] == "edit" for r in faults), len(faults)),
        "fix_offered": share(sum(r["fix"] for r in sync), len(sync)),
        "verify_ms_p95": p95([r["verify_ms"] for r in bound if r["verify_ms"]]),
        "verify_and_fix_ms_p95": p95([r["verify_ms"] + r.get("fix_ms", 0.0) for r in bound if r["verify_ms"]]),
        "explained_by": {
            law: {"count": n, "source": (LAWS | EDIT_LAWS)[law].source} for law, n in sorted(explained.items())
        },
        "by_kind": by_kind(records),
        "by_subject": {
            s: dict(Counter(r["outcome"] for r in records if r["subject"] == s))
            for s in sorted({r["subject"] for r in records})
        },
    }


def table(records: Sequence[dict[str, Any]]) -> str:
    """The outcome table by kind as text."""
    rows = by_kind(records)
    heads = (
        "kind",
        "mutants",
        "true rej",
        "true acc",
        "FALSE ACC",
        "other fn",
        "explained",
        "UNEXPL",
        "undecided",
        "crash",
        "refused",
    )
    lines = [f"{heads[0]:10}" + "".join(f"{h:>10}" for h in heads[1:])]
    total: Counter[str] = Counter()
    for kind, row in rows.items():
        total.update(row)
        lines.append(f"{kind:10}" + "".join(f"{row.get(c, 0):>10}" for c in COLUMNS))
    lines.append(f"{'all':10}" + "".join(f"{total.get(c, 0):>10}" for c in COLUMNS))
    return "\n".join(lines)


def groups(records: Iterable[dict[str, Any]], outcome: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """The records of an outcome, by probable cause: rule (or fault), kind and op; the largest group first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for r in records:
        if r["outcome"] == outcome:
            cause = r["rules"][0] if r["rules"] else f"{r['judge']}:{r['judge_kind']}"
            found.setdefault(f"{cause} | {r['kind']} {r['op']}", []).append(r)
    return sorted(found.items(), key=lambda item: -len(item[1]))
