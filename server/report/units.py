"""Numbers as a reader wants them: four significant digits, a unit, a thousands separator. Unknown is an en dash."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

NONE = "–"
_LAST_NUMBER = re.compile(r"(.* )(\d{1,6})")


def number(value: Any, digits: int = 4) -> str:
    """`digits` significant digits, never an exponent below 1e15; `NONE` for None, NaN and what is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    if abs(value) >= 1e15 or abs(value) < 1e-6:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    if isinstance(value, int):
        decimals = 0
    return f"{value:,.{decimals}f}"


def micros(value: Any) -> str:
    """A time in microseconds, without its unit (columns carry it)."""
    return number(value)


def ratio(value: Any) -> str:
    """A ratio of times with three decimals."""
    return f"{value:.3f}" if isinstance(value, int | float) and math.isfinite(value) else NONE


def percent(value: Any, decimals: int = 1) -> str:
    """A share (1.0 is the whole) as a percentage."""
    return f"{100 * value:.{decimals}f} %" if isinstance(value, int | float) and math.isfinite(value) else NONE


def scaled(value: Any, unit: str) -> str:
    """With a decimal prefix: 8.05e14, "FLOP/s" is "805.0 TFLOP/s"."""
    if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        return NONE
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def size(value: Any) -> str:
    """Bytes in binary units: 229440 is "224.1 KiB"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NONE
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value:g} B"


def day(text: str) -> str:
    """An ISO 8601 date in UTC for people: "2026-11-29 22:27 UTC"; other text as it is."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return text


def when(seconds: float) -> str:
    """A time of the store (seconds since 1970) as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def ranges(numbers: Sequence[int]) -> str:
    """[1, 2, 3, 7] as "1 to 3, 7"."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{r[0]} to {r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)


def counted_up(names: Sequence[str]) -> list[str]:
    """["set 0", "set 1", "set 2", "end"] as ["set 0 to 2", "end"]: names that differ in a last number are one."""
    groups: dict[str, list[int]] = {}
    for name in names:
        found = _LAST_NUMBER.fullmatch(name)
        groups.setdefault(found[1] if found else name, []).extend([int(found[2])] if found else [])
    return [head + ranges(numbers) for head, numbers in groups.items()]


def pairs(values: Any) -> str:
    """`{"M": 1, "N": 2}` as "M=1 N=2"; NONE when empty."""
    return " ".join(f"{k}={v}" for k, v in values.items()) if values else NONE
