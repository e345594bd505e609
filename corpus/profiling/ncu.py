"""What Nsight Compute prints: the raw and the source page as CSV, and its complaints. Pure text, no process, no GPU."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from corpus.profiling.metrics import METRICS

_PREFIX = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_TIME = {"second": 1.0, "s": 1.0, "nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3, "ns": 1e-9, "us": 1e-6, "ms": 1e-3}
_SCALE = {"us": 1e6, "GHz": 1e-9, "GB/s": 1e-9}
"""From base units (s, Hz, byte/s) to the unit of our table."""

_ADVICE = (
    ("ERR_NVGPUCTRPERM", "the driver keeps hardware counters for administrators; run as root, or load the driver with "
     "NVreg_RestrictProfilingToAdminUsers=0 (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"),
    ("driver resource was unavailable", "another tool reads the counters; stop it (DCGM: dcgmi profile --pause) and profile again"),
    ("not supported", "this Nsight Compute does not know the GPU; install a newer one"),
    ("unrecognised option", "this Nsight Compute is too old; install 2022.1 or newer"),
    ("Failed to find section", "this Nsight Compute is too old or its sections are missing; install a newer one"),
    ("No kernels were profiled", "the kernel was not launched under the profiler; profile again, and report it if it stays"),
)  # fmt: skip


def raw_page(text: str) -> dict[str, dict[str, Any]]:
    """The raw page as {name: {"value", "unit"}} by the names and units of `METRICS`; what is absent is left out.

    The page has a row of names, a row of units and one row per kernel; the first kernel counts. Raises ValueError when
    it is no such page.
    """
    rows = _table(text, '"ID"')
    if len(rows) < 3 or not len(rows[0]) == len(rows[1]) == len(rows[2]):
        raise ValueError("the raw page of ncu holds no kernel")
    found = {name: (unit, value) for name, unit, value in zip(*rows[:3], strict=True)}
    out: dict[str, dict[str, Any]] = {}
    for metric in METRICS:
        for source in metric.sources:
            number = _number(*found.get(source, ("", "")), metric.unit)
            if number is not None:
                out[metric.name] = {"value": number, "unit": metric.unit}
                break
    return out


def source_page(text: str) -> list[dict[str, Any]]:
    """The source page (SASS) as one entry per instruction in program order: `offset` in bytes from the first one,
    `samples` of the warp sampler, `stalls` by reason (zeros left out; they add up to the samples), `executed` warp
    instructions. Raises ValueError when it is no such page.

    The page has no column for warps that wait for the tensor core to take their product (warpgroup_arrive): on matrix
    instructions that is the rest of the samples, which agrees with the raw page's total for the kernel. A wait for
    products (wgmma_wait) is counted under barriers there; here it has a name of its own.
    """
    rows = _table(text, '"Address"')
    if len(rows) < 2:
        raise ValueError("the source page of ncu holds no instruction")
    head = rows[0]
    at = {name: i for i, name in enumerate(head)}
    try:
        address, source, executed = at["Address"], at["Source"], at["Instructions Executed"]
        samples = at["# Samples"] if "# Samples" in at else at["Warp Stall Sampling (All Samples)"]
    except KeyError as exc:
        raise ValueError(f"the source page of ncu lacks the column {exc}") from exc
    reasons = [(name.removeprefix("stall_"), i) for name, i in at.items() if re.fullmatch(r"stall_\w+", name)]
    if any(len(row) != len(head) for row in rows):
        raise ValueError("the source page of ncu is cut off")
    first = int(rows[1][address], 16)
    out = []
    for row in rows[1:]:
        stalls = {name: n for name, i in reasons if (n := _count(row[i]))}
        total = _count(row[samples])
        if "WARPGROUP.DEPBAR" in row[source] and "barrier" in stalls:
            stalls["warpgroup_depbar"] = stalls.pop("barrier")
        rest = total - sum(stalls.values())
        if rest > 0:
            stalls["warpgroup_arrive" if re.search(r"\b[HIQ]GMMA\b", row[source]) else "unnamed"] = rest
        out.append(
            {
                "offset": int(row[address], 16) - first,
                "samples": total,
                "stalls": stalls,
                "executed": _count(row[executed]),
            }
        )
    return out


def complaint(log: str, code: int) -> str:
    """Why a run of ncu left no report, in words and with what to do."""
    said = [line.partition("==ERROR==")[2].strip() for line in log.splitlines() if "==ERROR==" in line]
    for sign, advice in _ADVICE:
        if sign in log:
            return f"ncu: {advice}"
    reason = said[0] if said else f"it ended with code {code} and no report"
    return f"ncu: {reason[:240]}; run `ncu --version` and compare with the driver, or profile by the timeline alone"


def _table(text: str, first: str) -> list[list[str]]:
    """The CSV table that starts at the line beginning with `first`; ncu may print warnings before it."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith(first)), len(lines))
    try:
        return [row for row in csv.reader(io.StringIO("\n".join(lines[start:]))) if row]
    except csv.Error as exc:
        raise ValueError(f"the page of ncu is no CSV: {exc}") from exc


def _count(text: str) -> int:
    try:
        return int(float(text.replace(",", "")))
    except (ValueError, OverflowError):  # "inf"
        return 0


def _number(unit: str, value: str, wanted: str) -> float | None:
    try:
        number = float(value.replace(",", ""))
    except ValueError:  # "no data", or an absent metric
        return None
    if number != number or abs(number) == float("inf"):
        return None
    return number * _base(unit) * _SCALE[wanted] if wanted in _SCALE else number


def _base(unit: str) -> float:
    """Factor from a unit of ncu's to s, Hz or byte/s."""
    if unit in _TIME:
        return _TIME[unit]
    if unit.lower().endswith(("hz", "byte/s", "byte/second")):
        return 1.0 if unit.lower() in ("hz", "byte/s", "byte/second") else _PREFIX.get(unit[0], 1.0)
    return 1.0
