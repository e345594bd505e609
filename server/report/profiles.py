"""One profile, or two, as the pages show them: findings, lines of the source with their times, counters.

Input is the JSON of docs/measuring.md ("Profile", "Timeline"). Findings (`bound`, `limiters`, `by_line`) come with it:
under "summary" when that is an object, else beside it. What is missing is said in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corpus.profiling.closure import closure
from server.report import units
from server.report.picture import KINDS, Picture, detail, overview, role_bars
from server.report.records import MISFIT


@dataclass(frozen=True)
class Limiter:
    """One op that costs time: microseconds and share of its role's time; `what` is the program's line."""

    line: int | None
    op: str
    role: str
    what: str
    us: float | None
    share: float | None
    evidence: str


@dataclass(frozen=True)
class RoleTime:
    """Mean of one role instance in microseconds, by kind; `busy` is the share of the kernel its spans add up to."""

    role: str
    instances: int
    us: Mapping[str, float]
    total: float
    busy: float | None


@dataclass(frozen=True)
class SourceLine:
    """A line of the program. us: measured time of an instance, summed over roles; heat: 0 to 1 of the hottest line."""

    number: int
    text: str
    us: float | None
    share: float | None
    kind: str
    samples: int | None
    stalls: str
    heat: float


@dataclass(frozen=True)
class View:
    """A profile, ready to show. Times in microseconds."""

    kernel: str
    contract: str
    shape: str
    device: str
    sentence: str
    bound: str
    why: str
    notes: tuple[str, ...]
    time_us: float | None
    kernel_us: float | None
    overhead: float | None
    plain_us: float | None
    instrumented_us: float | None
    closed: float | None
    closed_against: str
    grid: int | None
    recorded_ctas: int | None
    limiters: tuple[Limiter, ...]
    roles: tuple[RoleTime, ...]
    bars: str
    overview: Picture | None
    detail: Picture | None
    no_timeline: str
    lines: tuple[SourceLine, ...]
    counters: tuple[tuple[str, str, str, str], ...]
    no_counters: str
    dropped: int
    seed: str
    secret: str
    verdict: str
    message: str


def view(profile: Mapping[str, Any], source: str, *, compact: bool = False) -> View:
    """The view of a profile. compact: a small picture, for a page with many. Raises ValueError when it is malformed."""
    try:
        return _view(profile, source, compact)
    except MISFIT as exc:
        raise ValueError(f"the profile is not of the form of docs/measuring.md ({type(exc).__name__}: {exc})") from exc


def _view(profile: Mapping[str, Any], source: str, compact: bool) -> View:
    timeline = profile.get("timeline") if isinstance(profile.get("timeline"), Mapping) else {}
    assert isinstance(timeline, Mapping)
    recorded = bool(timeline.get("tracks"))
    said = profile.get("summary")
    findings: Mapping[str, Any] = said if isinstance(said, Mapping) else profile
    shape = profile.get("shape") if isinstance(profile.get("shape"), Mapping) else {}
    assert isinstance(shape, Mapping)
    device = profile.get("device")
    counters, no_counters = _counters(profile.get("counters"))
    kernel_us = _float(timeline.get("kernel_us"))
    roles = tuple(_role(r) for r in timeline.get("roles", ()))
    closed = closure(timeline, _values(profile.get("counters")))
    return View(
        kernel=str(profile.get("kernel") or timeline.get("kernel") or "kernel"), contract=str(profile.get("contract", "")),
        shape=units.pairs(shape.get("shape") or {}), device=str(device.get("name", "") if isinstance(device, Mapping) else device or ""),
        sentence=str(findings.get("sentence") or (said if isinstance(said, str) else "")),
        bound=str(findings.get("bound") or ""), why=str(findings.get("why") or ""),
        notes=tuple(str(n) for part in (timeline, findings) for n in part.get("notes") or ()),
        time_us=_float((shape.get("candidate") or {}).get("median_us")),
        kernel_us=kernel_us, overhead=_float(timeline.get("overhead")), plain_us=_float(timeline.get("plain_us")),
        instrumented_us=_float(timeline.get("instrumented_us")),
        closed=closed.share if closed else None, closed_against=closed.against if closed else "",
        grid=timeline.get("grid"), recorded_ctas=timeline.get("recorded_ctas"),
        limiters=tuple(_limiter(x) for x in (findings.get("limiters") or ())[:3]), roles=roles,
        bars=role_bars(timeline["roles"], whole_us=kernel_us or 0.0) if roles else "",
        overview=overview(timeline, budget=700 if compact else 4800, finest=1.0 if compact else 0.2) if recorded else None,
        detail=None if compact or not recorded else detail(timeline),
        no_timeline="" if recorded else str(timeline.get("unavailable") or "this profile has no timeline; run cake profile again"),
        lines=source_lines(source, timeline, findings), counters=counters, no_counters=no_counters,
        dropped=sum(int(t.get("dropped", 0)) for t in timeline.get("tracks", ())),
        seed=_text(profile.get("seed")), secret=_text(profile.get("secret")), verdict=str(shape.get("verdict", "")),
        message=_text(shape.get("message")),
    )  # fmt: skip


def _limiter(x: Mapping[str, Any]) -> Limiter:
    evidence = x.get("evidence", "")
    if isinstance(evidence, Mapping):
        evidence = "; ".join(f"{k}: {v}" for k, v in evidence.items())
    elif isinstance(evidence, list | tuple):
        evidence = "; ".join(map(str, evidence))
    line = x.get("line")
    return Limiter(
        line if isinstance(line, int) else None, str(x.get("op") or ""), str(x.get("role") or ""), str(x.get("what") or ""),
        _float(x.get("us")), _float(x.get("share")), str(evidence),
    )  # fmt: skip


def _role(r: Mapping[str, Any]) -> RoleTime:
    us = {k: float(r["us"].get(k, 0.0)) for k in KINDS}
    return RoleTime(
        str(r["role"]), int(r.get("instances", 1)), us, sum(us.values()), _float(r.get("busy", r.get("covered")))
    )


def source_lines(source: str, timeline: Mapping[str, Any], findings: Mapping[str, Any]) -> tuple[SourceLine, ...]:
    """Every line of the text with what was measured for it: time by the timeline, stall samples by the counters."""
    times: dict[int, list[Mapping[str, Any]]] = {}
    for entry in timeline.get("lines", ()):
        times.setdefault(int(entry["line"]), []).append(entry)
    samples = stalls_by_line(findings.get("samples") or findings.get("by_line"))
    text = source.split("\n")
    while text and not text[-1].strip():
        text.pop()
    total = {n: sum(float(e["us"]) for e in es) for n, es in times.items()}
    hottest = max(total.values(), default=0.0)
    most = max((n for n, _ in samples.values()), default=0)
    out = []
    for number, line in enumerate(text, 1):
        entries = sorted(times.get(number, ()), key=lambda e: -float(e["us"]))
        count, why = samples.get(number, (None, ""))
        by_time = total.get(number, 0.0) / hottest if hottest else 0.0
        by_samples = (count or 0) / most if most else 0.0
        out.append(
            SourceLine(
                number, line, total.get(number), max(float(e["share"]) for e in entries) if entries else None,
                ", ".join(dict.fromkeys(f"{e['kind']} ({e['role']})" for e in entries)), count, why,
                by_time if hottest else by_samples,
            )
        )  # fmt: skip
    return tuple(out)


def stalls_by_line(by_line: Any) -> dict[int, tuple[int, str]]:
    """{line: (samples, reasons in words)} of a summary's `samples` (or `by_line`), roles put together; other forms are passed
    over."""
    total: dict[int, int] = {}
    why: dict[int, dict[str, int]] = {}
    for entry in by_line if isinstance(by_line, list | tuple) else ():
        try:
            if "samples" not in entry:
                continue
            number = int(entry["line"])
            total[number] = total.get(number, 0) + int(entry["samples"])
            counts = why.setdefault(number, {})
            for reason, n in (entry.get("stalls") or {}).items():
                counts[str(reason)] = counts.get(str(reason), 0) + int(n)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    words = {
        n: ", ".join(f"{k} {v}" for k, v in sorted(c.items(), key=lambda kv: (-kv[1], kv[0]))[:3])
        for n, c in why.items()
    }
    return {n: (samples, words[n]) for n, samples in total.items()}


def _values(raw: Any) -> dict[str, float]:
    """Counters by name."""
    metrics = raw.get("metrics") if isinstance(raw, Mapping) else None
    return {
        k: float(m["value"])
        for k, m in (metrics or {}).items()
        if isinstance(m, Mapping) and _float(m.get("value")) is not None
    }


def _counters(raw: Any) -> tuple[tuple[tuple[str, str, str, str], ...], str]:
    """((name, value, unit, meaning), ...) and, if there are none, the reason."""
    from corpus.profiling.metrics import METRICS

    meanings = {m.name: m.meaning for m in METRICS}
    if not isinstance(raw, Mapping):
        return (), "no hardware counters were asked for"
    if "unavailable" in raw:
        return (), str(raw["unavailable"])
    rows = []
    for name, m in (raw.get("metrics") or {}).items():
        value = m.get("value") if isinstance(m, Mapping) else m
        shown = units.number(value) if isinstance(value, int | float) else str(value)
        rows.append(
            (str(name), shown, str(m.get("unit", "")) if isinstance(m, Mapping) else "", meanings.get(str(name), ""))
        )
    return tuple(rows), "" if rows else "the profiler returned no metrics"


# ---- two profiles --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A time in both profiles (None: not there); `delta` is second minus first, negative is faster."""

    what: str
    first: float | None
    second: float | None

    @property
    def delta(self) -> float:
        return (self.second or 0.0) - (self.first or 0.0)

    @property
    def relative(self) -> float | None:
        return self.delta / self.first if self.first else None


@dataclass(frozen=True)
class LineChange(Change):
    """A line in both texts. Lines are matched by what they say, since numbers shift when a text is edited."""

    first_line: int | None = None
    second_line: int | None = None
    text: str = ""


def role_changes(a: View, b: View) -> list[Change]:
    """Per role and kind, largest change first."""
    first = {(r.role, k): v for r in a.roles for k, v in r.us.items()}
    second = {(r.role, k): v for r in b.roles for k, v in r.us.items()}
    keys = [k for k in dict.fromkeys([*first, *second]) if first.get(k) or second.get(k)]
    found = [Change(f"{role}: {kind}", first.get((role, kind)), second.get((role, kind))) for role, kind in keys]
    return sorted(found, key=lambda c: (-abs(c.delta), c.what))


def line_changes(a: View, b: View, most: int = 24) -> list[LineChange]:
    """Lines with measured time in either profile, largest change first."""

    def by_text(v: View) -> dict[tuple[str, int], SourceLine]:
        out: dict[tuple[str, int], SourceLine] = {}
        for line in v.lines:
            if line.us is None:
                continue
            nth = 0
            while (line.text.strip(), nth) in out:
                nth += 1
            out[(line.text.strip(), nth)] = line
        return out

    first, second = by_text(a), by_text(b)
    found = []
    for key in dict.fromkeys([*first, *second]):
        x, y = first.get(key), second.get(key)
        found.append(
            LineChange(
                key[0], x.us if x else None, y.us if y else None, x.number if x else None, y.number if y else None, key[0]
            )
        )  # fmt: skip
    return sorted(found, key=lambda c: (-abs(c.delta), c.text))[:most]


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: Any) -> str:
    return "" if value is None else str(value)
