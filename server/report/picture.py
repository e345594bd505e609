"""The timeline as a picture: one lane per role instance, spans by kind, time in microseconds to the right.

Our own SVG, complete without script. Kinds differ in colour, in pattern and in height, so that none needs colour. Every
span has a tooltip with its line, op and times. A long timeline has more spans than a screen has pixels: neighbours that
are narrower than a pixel are drawn as one, coloured by what most of that time was, and the tooltip says how many they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from server.report import units
from server.report.svg import legal

KINDS = ("wait", "issue", "compute", "store")
_WIDTH, _LEFT, _RIGHT, _TOP, _LANE, _GAP, _HEAD = 1120, 132, 14, 8, 15, 3, 17
_INSET = {"wait": 4, "issue": 2, "compute": 0, "store": 0}
"""Pixels a kind is lower than its lane: waiting is thin, work is thick."""


@dataclass(frozen=True)
class Span:
    """Drawn time. `parts` is the time per kind; `mark` the mark of a single span, else of the longest."""

    start: float
    end: float
    kind: str
    mark: int
    count: int = 1
    parts: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Lane:
    """One role instance of one CTA."""

    cta: int
    sm: int
    role: str
    instance: int
    spans: tuple[Span, ...]
    dropped: int
    start: float
    end: float


@dataclass(frozen=True)
class Picture:
    """`svg`, what it shows in words, and how many role instances were recorded in all."""

    svg: str
    caption: str
    lanes: int
    recorded: int


def choose(tracks: Sequence[Mapping[str, Any]], ctas: int = 3) -> list[int]:
    """Representative CTAs: the first to start, the one that waits most, the last to end; at most `ctas`, in order of start."""
    by_cta: dict[int, list[Mapping[str, Any]]] = {}
    for t in tracks:
        by_cta.setdefault(int(t["cta"]), []).append(t)
    if not by_cta:
        return []
    start = {c: min(float(t["start_us"]) for t in ts) for c, ts in by_cta.items()}
    end = {c: max(float(t["end_us"]) for t in ts) for c, ts in by_cta.items()}
    first = min(by_cta, key=lambda c: (start[c], c))
    last = max(by_cta, key=lambda c: (end[c], -c))
    rest = sorted((c for c in by_cta if c not in (first, last)), key=lambda c: (end[c] - start[c], c))
    middle = [rest[len(rest) // 2]] if rest else []
    chosen = list(dict.fromkeys([first, last, *middle]))[:ctas]
    return sorted(chosen, key=lambda c: (start[c], c))


def lanes(timeline: Mapping[str, Any], ctas: Sequence[int], window: tuple[float, float], pixel_us: float) -> list[Lane]:
    """The role instances of some CTAs within a window, spans narrower than `pixel_us` put together."""
    kinds = {int(m["id"]): str(m["kind"]) for m in timeline.get("marks", ())}
    found = []
    for t in sorted(
        timeline["tracks"], key=lambda t: (ctas.index(t["cta"]) if t["cta"] in ctas else -1, t["role"], t["instance"])
    ):
        if t["cta"] not in ctas:
            continue
        inside = [
            (int(m), max(float(a), window[0]), min(float(b), window[1]))
            for m, a, b in t["spans"]
            if float(b) > window[0] and float(a) < window[1] and float(b) > float(a)
        ]
        if not inside and len(ctas) > 1 and not t["spans"]:
            continue
        spans = _merged(inside, kinds, pixel_us)
        found.append(
            Lane(int(t["cta"]), int(t["sm"]), str(t["role"]), int(t["instance"]), spans, int(t.get("dropped", 0)),
                 float(t["start_us"]), float(t["end_us"]))
        )  # fmt: skip
    return found


def _merged(spans: Sequence[tuple[int, float, float]], kinds: Mapping[int, str], pixel_us: float) -> tuple[Span, ...]:
    out: list[Span] = []
    group: list[tuple[int, float, float]] = []

    def flush() -> None:
        if not group:
            return
        parts: dict[str, float] = {}
        for m, a, b in group:
            kind = kinds.get(m, "compute")
            parts[kind] = parts.get(kind, 0.0) + b - a
        ordered = tuple(sorted(parts.items(), key=lambda kv: (-kv[1], kv[0])))
        longest = max(group, key=lambda s: s[2] - s[1])[0]
        out.append(Span(group[0][1], group[-1][2], ordered[0][0], longest, len(group), ordered))
        group.clear()

    for m, a, b in spans:
        if b - a >= pixel_us:
            flush()
            kind = kinds.get(m, "compute")
            out.append(Span(a, b, kind, m, 1, ((kind, b - a),)))
            continue
        if group and b - group[0][1] > pixel_us:
            flush()
        group.append((m, a, b))
    flush()
    return tuple(out)


def overview(timeline: Mapping[str, Any], *, budget: int = 1200, finest: float = 1.0, ctas: int = 3) -> Picture | None:
    """The whole launch for a few CTAs; None without tracks.

    budget: most spans drawn, which bounds the size of the page. finest: pixels below which spans are drawn together; less
    than one keeps spans for who zooms in.
    """
    tracks = timeline.get("tracks") or ()
    chosen = choose(tracks, ctas)
    if not chosen:
        return None
    ends = [float(t["end_us"]) for t in tracks if t["cta"] in chosen]
    window = (min(0.0, *(float(t["start_us"]) for t in tracks)), max(*ends, float(timeline.get("kernel_us") or 0)))
    pixel = max((window[1] - window[0]) / (_WIDTH - _LEFT - _RIGHT) * finest, 1e-9)
    drawn = lanes(timeline, chosen, window, pixel)
    while sum(len(lane.spans) for lane in drawn) > budget:
        pixel *= 1.5
        drawn = lanes(timeline, chosen, window, pixel)
    what = (
        "the first CTA to start, the last to end and the one of median length"
        if len(chosen) > 2
        else f"{len(chosen)} CTA"
    )
    everything = all(s.count == 1 for lane in drawn for s in lane.spans)
    caption = (
        f"The whole launch for {what if len({t['cta'] for t in tracks}) > len(chosen) else 'every recorded CTA'}."
        + ("" if everything else f" Spans below {units.number(pixel, 2)} us are drawn together.")
    )
    return _picture(timeline, drawn, window, caption)


def detail(timeline: Mapping[str, Any], *, budget: int = 900) -> Picture | None:
    """Every span of one CTA in a window at the middle of its life; None where the overview shows them all already."""
    tracks = timeline.get("tracks") or ()
    chosen = choose(tracks, 3)
    if not chosen:
        return None
    cta = chosen[len(chosen) // 2]
    mine = [t for t in tracks if t["cta"] == cta]
    start, end = min(float(t["start_us"]) for t in mine), max(float(t["end_us"]) for t in mine)
    longest = max(len(t["spans"]) for t in mine)
    if longest <= 120:
        return None
    length = (end - start) * 60 / longest
    middle = (start + end) / 2
    window = (middle - length / 2, middle + length / 2)
    drawn = lanes(timeline, [cta], window, 0.0)
    while sum(len(lane.spans) for lane in drawn) > budget:
        length *= 0.7
        window = (middle - length / 2, middle + length / 2)
        drawn = lanes(timeline, [cta], window, 0.0)
    when = f"from {units.micros(window[0])} to {units.micros(window[1])} us"
    caption = f"CTA {cta} {when}, the middle of its life: every span as it was recorded."
    return _picture(timeline, drawn, window, caption)


def _picture(timeline: Mapping[str, Any], drawn: Sequence[Lane], window: tuple[float, float], caption: str) -> Picture:
    marks = {int(m["id"]): m for m in timeline.get("marks", ())}
    scale = (_WIDTH - _LEFT - _RIGHT) / max(window[1] - window[0], 1e-9)
    body: list[str] = []
    y = _TOP
    seen: int | None = None
    for lane in drawn:
        if lane.cta != seen:
            y += 0 if seen is None else 6
            body.append(f'<text class="f-ink head" x="4" y="{y + 12}">CTA {lane.cta} on SM {lane.sm}</text>')
            body.append(f'<line class="s-grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y + 13}" y2="{y + 13}"/>')
            y += _HEAD
            seen = lane.cta
        many = any(o.instance for o in drawn if o.role == lane.role)
        name = f"{lane.role} {lane.instance}" if many else lane.role
        lost = f", {lane.dropped} marks lost" if lane.dropped else ""
        shown = name if len(name) <= 19 else name[:18] + "…"
        body.append(
            f'<text class="f-ink" x="{_LEFT - 6}" y="{y + _LANE - 4}" text-anchor="end">{_text(shown)}'
            f"<title>{_text(f'{name}, CTA {lane.cta}{lost}')}</title></text>"
        )
        body.append(f'<svg class="lane" x="{_LEFT}" y="{y}" width="{_WIDTH - _LEFT - _RIGHT}" height="{_LANE}">')
        body.append(f'<g class="spans">{"".join(_rect(s, marks, window[0], scale) for s in lane.spans)}</g></svg>')
        y += _LANE + _GAP
    height = y + 34
    axis = "".join(
        f'<line class="s-grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{y}"/><text class="f-ink tick" x="{x:.1f}" y="{y + 13}" '
        f'text-anchor="middle">{_text(label)}</text>'
        for x, label in _ticks(window, scale)
    )
    words = f"Timeline of {len(drawn)} role instances from {units.micros(window[0])} to {units.micros(window[1])} us"
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" class="timeline" aria-label="{_text(words)}" '
        f'data-start="{window[0]:.4f}" data-end="{window[1]:.4f}" data-left="{_LEFT}" data-right="{_WIDTH - _RIGHT}">'
        f"<g class='axis'>{axis}</g>{''.join(body)}"
        f'<text class="f-ink" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{y + 29}" text-anchor="middle">'
        "time since the first start (us)</text></svg>"
    )
    return Picture(svg, caption, len(drawn), len(timeline.get("tracks") or ()))


def _rect(s: Span, marks: Mapping[int, Mapping[str, Any]], origin: float, scale: float) -> str:
    inset = _INSET.get(s.kind, 0)
    kind = s.kind if s.kind in KINDS else "compute"
    x, width = (s.start - origin) * scale, (s.end - s.start) * scale
    line = f' data-l="{int(marks[s.mark]["line"])}"' if s.mark in marks and s.count == 1 else ""
    return (
        f'<rect class="k-{kind}" x="{x:.2f}" y="{inset}" width="{max(width, 0.25):.2f}" height="{_LANE - inset}"{line}>'
        f"<title>{_text(_title(s, marks))}</title></rect>"
    )


def _title(s: Span, marks: Mapping[int, Mapping[str, Any]]) -> str:
    times = f"{units.micros(s.end - s.start)} us ({s.start:.2f} to {s.end:.2f})"
    if s.count > 1:
        shares = ", ".join(f"{k} {units.micros(us)} us" for k, us in s.parts)
        return f"{s.count} spans, {times}: {shares}"
    m = marks.get(s.mark)
    if m is None:
        return f"{s.kind}, {times}"
    last = f" to {m['end_line']}" if m.get("end_line", m["line"]) != m["line"] else ""
    return f"{s.kind}, line {m['line']}{last}: {', '.join(map(str, m.get('ops', ())))[:160]}, {times}"


def _ticks(window: tuple[float, float], scale: float) -> list[tuple[float, str]]:
    """Round times some 110 pixels apart: (x, label)."""
    raw = 110 / scale
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    first = math.ceil(window[0] / step - 1e-9)
    last = math.floor(window[1] / step + 1e-9)
    return [(_LEFT + (i * step - window[0]) * scale, f"{i * step:.10g}") for i in range(first, last + 1)]


def patterns() -> str:
    """Hatching over waits and dots over stores: a second channel beside colour. Once a page, for all its pictures."""
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" class="defs" width="0" height="0" aria-hidden="true"><defs>'
        '<pattern id="k-wait" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="5" height="5" class="p-wait"/><line x1="0" y1="0" x2="0" y2="5" class="p-line"/></pattern>'
        '<pattern id="k-store" width="4" height="4" patternUnits="userSpaceOnUse"><rect width="4" height="4" class="p-store"/>'
        '<circle cx="2" cy="2" r="0.9" class="p-dot"/></pattern></defs></svg>'
    )


def _text(text: str) -> str:
    return escape(legal(text), quote=True)


# ---- shares per role -----------------------------------------------------------------------------------------------


def role_bars(roles: Sequence[Mapping[str, Any]], *, whole_us: float) -> str:
    """A stacked bar per role: mean time of one instance by kind; the frame is the kernel's time."""
    height = 12 + 30 * len(roles) + 30
    scale = (_WIDTH - _LEFT - 150) / max(whole_us, *(sum(map(float, r["us"].values())) for r in roles), 1e-9)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" class="bars" '
        'aria-label="Time per role by kind; the table below has the numbers">'
    ]
    for i, r in enumerate(roles):
        y, x = 8 + 30 * i, float(_LEFT)
        name = str(r["role"])
        shown = name if len(name) <= 19 else name[:18] + "…"
        out.append(
            f'<text class="f-ink" x="{_LEFT - 6}" y="{y + 14}" text-anchor="end">{_text(shown)}<title>{_text(name)}</title></text>'
        )
        out.append(f'<rect class="frame" x="{_LEFT}" y="{y}" width="{whole_us * scale:.1f}" height="20"/>')
        for kind in KINDS:
            us = float(r["us"].get(kind, 0.0))
            if us <= 0:
                continue
            width = us * scale
            words = f"{name}: {kind} {units.micros(us)} us, {units.percent(us / whole_us if whole_us else None)} of the kernel"
            out.append(
                f'<rect class="k-{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="20"><title>{_text(words)}</title></rect>'
            )
            if width > 64:
                out.append(
                    f'<text class="inbar" x="{x + width / 2:.1f}" y="{y + 14}" text-anchor="middle">'
                    f"{kind} {units.percent(us / whole_us if whole_us else None, 0)}</text>"
                )
            x += width
        out.append(
            f'<text class="f-ink" x="{max(x, _LEFT + whole_us * scale) + 8:.1f}" y="{y + 14}">'
            f"{units.percent(r.get('busy', r.get('covered')))} busy</text>"
        )
    base = 8 + 30 * len(roles)
    out.append(
        f'<line class="s-ink" x1="{_LEFT}" x2="{_LEFT + whole_us * scale:.1f}" y1="{base}" y2="{base}"/>'
        f'<text class="f-ink" x="{_LEFT}" y="{base + 14}">0</text><text class="f-ink" x="{_LEFT + whole_us * scale:.1f}" y="{base + 14}" '
        f'text-anchor="end">kernel {units.micros(whole_us)} us</text></svg>'
    )
    return "".join(out)
