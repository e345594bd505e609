"""Two profiles side by side: time, lines, roles and counters, what moved most first.

A side is the JSON of `corpus.jobs.Profile` whose `summary` is that of `corpus.profiling.Summary`. The first is the
reference, the second the one that is asked about: a ratio above 1 means that the second is faster. Lines are matched by
role, kind and ops in text order, because line numbers move with every edit. The runs were not interleaved, so the
interval of the ratio is the widest that the two medians' intervals allow, and a clock that differs is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cake_ir.diagnostics import CakeError, error
from lowering.runtime import stats

MOVED = 2.0
"""Percentage points (or percent of the value, for other units) from which a counter counts as moved."""

Side = Mapping[str, Any]


def compare(reference: Side, other: Side, *, name: str = "", force: bool = False) -> dict[str, Any]:
    """{"reference", "ratio", "ratio_interval", "verdict", "time_us": [reference, other], "bound", "roles", "lines",
    "metrics", "notes"}; `name` is what the answer calls the reference.

    lines and roles: {"role", "line": [a, b], "ops", "us": [a, b], "delta_us"}, the largest difference first; what one side
    lacks is null. Raises CakeError `profile/not-comparable` for another device, contract, shape, element types or timing
    mode unless `force`, then the differences are notes; and whatever `force` says when a side has no valid time.
    """
    notes = differences(reference, other)
    if notes and not force:
        raise _no(f"the profiles are not comparable: {'; '.join(notes)}")
    for side in (reference, other):
        summary = side["summary"]
        if not side["passed"] or not side["shape"].get("candidate") or not isinstance(summary, Mapping):
            why = summary["sentence"] if isinstance(summary, Mapping) else summary
            which = f"the reference {name}".strip() if side is reference else "the profile"
            raise _no(f"{which} has no valid time or no summary: {side['shape'].get('message') or why}"[:400])
    a, b = (stats.summarise([float(s) for s in x["shape"]["candidate"]["samples_us"]]) for x in (reference, other))
    ratio, low, high = a.median / b.median, a.low / b.high, a.high / b.low
    first, second = reference["summary"], other["summary"]
    return {
        "reference": name, "time_us": [a.median, b.median], "ratio": ratio, "ratio_interval": [low, high],
        "verdict": stats.decide(ratio, low, high), "bound": [first["bound"], second["bound"]],
        "roles": _roles(first["by_role"], second["by_role"]), "lines": _pairs(first["by_line"], second["by_line"]),
        "metrics": _metrics(reference["counters"], other["counters"]),
        "notes": [*notes, *_clock(reference, other)],
    }  # fmt: skip


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """What makes a comparison of two profiles meaningless, in words."""
    out = []
    for what, of in (
        ("device", lambda p: p["device"].get("name")),
        ("contract", lambda p: p["contract"]),
        ("contract version", lambda p: p["contract_digest"]),
        ("shape", lambda p: _dims(p["shape"]["shape"])),
        ("element types", lambda p: _dims(p["shape"].get("dtypes") or {})),
        ("timing mode", lambda p: p["shape"]["mode"]),
    ):
        first, second = of(a), of(b)
        if first != second:
            out.append(f"{what} {first or 'none'} and {second or 'none'}")
    return out


def words(found: Mapping[str, Any]) -> str:
    """One sentence: `1.08 x m_12.. (1.06 to 1.10, faster), most from math line 47 -> 49 wait: -12.3 us`."""
    low, high = found["ratio_interval"]
    out = f"{found['ratio']:.3f} x the reference ({low:.3f} to {high:.3f}, {found['verdict']})"
    moved = next((x for x in found["lines"] if x["delta_us"]), None)
    if moved:
        a, b = moved["line"]
        at = f"line {b}" if a in (None, b) else f"line {a}" if b is None else f"line {a} -> {b}"
        out += (
            f"; most at {moved['role'] or 'all roles'} {at} {', '.join(moved['ops'][:3])}: {moved['delta_us']:+.3g} us"
        )
    return out


def _pairs(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Timed lines matched by (role, kind, ops) in text order; a line without a partner stands alone."""
    groups: dict[tuple[Any, ...], tuple[list[Any], list[Any]]] = {}
    for side, rows in enumerate((a, b)):
        for row in sorted((r for r in rows if "us" in r), key=lambda r: r["line"]):
            key = (row["role"], row.get("kind"), tuple(row["ops"]))
            groups.setdefault(key, ([], []))[side].append(row)
    out = []
    for (role, kind, ops), (left, right) in groups.items():
        for i in range(max(len(left), len(right))):
            x, y = (side[i] if i < len(side) else None for side in (left, right))
            us = [None if r is None else r["us"] for r in (x, y)]
            row = {"role": role, "line": [r and r["line"] for r in (x, y)], "ops": list(ops), "us": us,
                   "delta_us": round((us[1] or 0.0) - (us[0] or 0.0), 3)}  # fmt: skip
            out.append(row | ({"kind": kind} if kind else {}))
    return sorted(out, key=lambda r: -abs(r["delta_us"]))


def _roles(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Roles by name: microseconds by kind where there are timelines, and the share waited."""
    left, right = ({r["role"]: r for r in rows} for rows in (a, b))
    out = []
    for role in dict.fromkeys([*left, *right]):
        pair = [side.get(role) for side in (left, right)]
        row: dict[str, Any] = {"role": role, "waiting": [p and p.get("waiting") for p in pair]}
        if all(p and "us" in p for p in pair):
            row["us"] = {k: [pair[0]["us"][k], pair[1]["us"].get(k, 0.0)] for k in pair[0]["us"]}  # type: ignore[index]
        out.append(row)
    return sorted(out, key=lambda r: -max((abs(y - x) for x, y in r.get("us", {}).values()), default=0.0))


def _metrics(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Counters that moved, by how far."""
    left, right = a.get("metrics", {}), b.get("metrics", {})
    out = []
    for name in left.keys() & right.keys():
        x, y, unit = left[name]["value"], right[name]["value"], left[name]["unit"]
        moved = abs(y - x) if unit == "%" else 100 * abs(y - x) / max(abs(x), abs(y), 1e-12)
        if moved >= MOVED:
            out.append((moved, {"name": name, "unit": unit, "values": [x, y]}))
    return [row for _, row in sorted(out, key=lambda m: (-m[0], m[1]["name"]))]


def _clock(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    x, y = (((p["shape"].get("conditions") or {}).get("telemetry") or {}).get("sm_mhz_mean") for p in (a, b))
    if not x or not y or abs(x / y - 1) <= stats.CLOCK_SHIFT:
        return []
    return [f"mean SM clocks differ: {x:.0f} and {y:.0f} MHz explain a ratio of {y / x:.3f}"]


def _dims(shape: Mapping[str, Any]) -> str:
    return ",".join(f"{k}={v}" for k, v in sorted(shape.items()))


def _no(message: str) -> CakeError:
    law = "Two profiles are compared on the same device, contract, shape and element types, each with a valid time."
    return CakeError(error("profile/not-comparable", "data", message, contract=law))
