"""The pictures of docs/cost-model.md as SVG, from the committed points and figures alone: the same text on every machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from corpus.ranking import figures
from corpus.ranking import points as store
from corpus.ranking.figures import At
from corpus.ranking.points import Points
from corpus.ranking.predict import ROOFLINE, SAID, WHOLE

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Of the workloads, in order; they differ for colour-blind readers too."""
INK, FAINT, GRID = "#222222", "#777777", "#dddddd"
BANDS = (0.12, 0.30)
"""Errors that lines beside the diagonal show: what half and nine tenths of the points are held to."""


@dataclass(frozen=True)
class Axis:
    """A scale from values to places in the picture."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Where a value lies; values outside lie on the edge."""
        v, low, high = (
            (math.log(x) if self.log else x) for x in (min(max(value, self.low), self.high), self.low, self.high)
        )
        return self.start + (v - low) / (high - low) * (self.end - self.start)


def _number(x: float) -> str:
    return f"{x:.1f}".rstrip("0").rstrip(".")


def _text(
    x: float, y: float, said: str, *, anchor: str = "start", size: int = 11, fill: str = INK, turn: bool = False
) -> str:
    where = f' transform="rotate(-90 {_number(x)} {_number(y)})"' if turn else ""
    return f'<text x="{_number(x)}" y="{_number(y)}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"{where}>{escape(said)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str = GRID, width: float = 1, dash: str = "") -> str:
    more = f' stroke-dasharray="{dash}"' if dash else ""
    ends = " ".join(f'{n}="{_number(v)}"' for n, v in (("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2)))
    return f'<line {ends} stroke="{stroke}" stroke-width="{width:g}"{more}/>'


def _dot(x: float, y: float, fill: str, said: str = "", r: float = 2.2) -> str:
    title = f"<title>{escape(said)}</title>" if said else ""
    return f'<circle cx="{_number(x)}" cy="{_number(y)}" r="{r:g}" fill="{fill}" fill-opacity="0.6">{title}</circle>'


def _svg(width: int, height: int, label: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(label)}" font-family="sans-serif">'
    )
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#ffffff"/>', *parts, "</svg>"]) + "\n"


def _decades(low: float, high: float) -> Iterator[float]:
    """1, 2 and 5 times the powers of ten in a range."""
    for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        yield from (m * 10.0**e for m in (1, 2, 5) if low <= m * 10.0**e <= high)


def _legend(names: Sequence[str], x: float, y: float) -> Iterator[str]:
    for i, name in enumerate(names):
        yield f'<circle cx="{_number(x)}" cy="{_number(y + 16 * i - 4)}" r="4" fill="{COLOURS[i % len(COLOURS)]}"/>'
        yield _text(x + 10, y + 16 * i, name)


def error(rows: Sequence[At], times: Mapping[Any, float], names: Sequence[str], title: str) -> str:
    """Predicted against measured times, both axes logarithmic, a colour per workload."""
    found = [(p, times[p.key]) for r in rows for p in r.points]
    every = [t for p, us in found for t in (p.us, us)]
    low, high = 0.8 * min(every), 1.25 * max(every)
    x, y = Axis(low, high, 60, 560, log=True), Axis(low, high, 540, 40, log=True)
    parts = [_text(310, 22, title, anchor="middle", size=13)]
    for v in _decades(low, high):
        parts += [_line(x.at(v), 40, x.at(v), 540), _line(60, y.at(v), 560, y.at(v))]
        parts += [_text(x.at(v), 556, f"{v:g}", anchor="middle"), _text(54, y.at(v) + 4, f"{v:g}", anchor="end")]
    parts.append(_line(x.at(low), y.at(low), x.at(high), y.at(high), FAINT, 1.2))
    for band in BANDS:
        for by in (1 + band, 1 / (1 + band)):
            a, b = max(low, low / by), min(high, high / by)
            parts.append(_line(x.at(a), y.at(a * by), x.at(b), y.at(b * by), FAINT, 0.7, "4 3"))
    for p, us in found:
        said = f"{p.id} at {' '.join(f'{k}={v}' for k, v in p.shape)}: measured {p.us:g} us, predicted {us:g} us"
        parts.append(_dot(x.at(p.us), y.at(us), COLOURS[names.index(p.workload) % len(COLOURS)], said))
    parts += [_text(310, 578, "measured, microseconds (median of the samples)", anchor="middle"),
              _text(16, 290, "predicted, microseconds", anchor="middle", turn=True), *_legend(names, 76, 60)]  # fmt: skip
    return _svg(580, 590, title, parts)


def ranking(rows: Sequence[At], times: Mapping[Any, float], names: Sequence[str], title: str) -> str:
    """Per workload a panel: measured time over the best by predicted place, a line per shape. A model that ranks rises to the right.
    Of equal predictions the slowest comes first."""
    width, height, top = 250, 220, 3.0
    columns = min(3, len(names))
    parts = [_text(columns * width / 2, 20, title, anchor="middle", size=13)]
    for i, name in enumerate(names):
        own = [r for r in rows if r.workload == name and r.points]
        left, upper = width * (i % columns), 30 + height * (i // columns)
        most = max((len(r.points) for r in own), default=2)
        x, y = Axis(1, max(2, most), left + 36, left + width - 12), Axis(1, top, upper + height - 40, upper + 24)
        parts.append(_text(left + 36, upper + 14, f"{name} ({len(own)} shapes)", size=12))
        for v in (1.0, 1.5, 2.0, 2.5, 3.0):
            parts += [
                _line(x.start, y.at(v), x.end, y.at(v)),
                _text(x.start - 4, y.at(v) + 4, f"{v:g}", anchor="end", size=9),
            ]
        for v in range(1, most + 1, 5):
            parts.append(_text(x.at(v), y.start + 13, str(v), anchor="middle", size=9))
        for r in own:
            best = min(p.us for p in r.points)
            order = sorted(r.points, key=lambda p: (times[p.key], -p.us))
            places = [(x.at(n + 1), y.at(p.us / best)) for n, p in enumerate(order)]
            colour = COLOURS[i % len(COLOURS)]
            path = " ".join(f"{_number(a)},{_number(b)}" for a, b in places)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-opacity="0.35"/>')
            parts += [_dot(a, b, colour, r=1.8) for a, b in places]
    lines = -(-len(names) // columns)
    below = f"predicted place (1: predicted fastest); measured time over the shape's best, {top:g} and more at the top"
    parts.append(_text(columns * width / 2, 30 + lines * height - 4, below, anchor="middle", size=10))
    return _svg(columns * width, 36 + lines * height, title, parts)


def ablation(found: Mapping[str, Mapping[str, Any]], title: str) -> str:
    """What each term is worth: rank correlation and error without it, worst correlation first, the whole model on top."""
    others = sorted((n for n in found if n != WHOLE), key=lambda n: (n == ROOFLINE, found[n]["spearman_median"] or 0.0))
    rows = [WHOLE, *others]
    label, bar, high = 170, 210, 18
    s = Axis(0.0, 1.0, label, label + bar)
    e = Axis(0.0, 1.0, label + bar + 60, label + 2 * bar + 60)
    parts = [_text((label + 2 * bar + 110) / 2, 20, title, anchor="middle", size=13)]
    parts += [
        _text(s.start, 40, "Spearman, median over shapes", size=10),
        _text(e.start, 40, "error, median (bar) and 90 % (line)", size=10),
    ]
    for n, name in enumerate(rows):
        f, y = found[name], 52 + n * high
        fill = COLOURS[0] if name == WHOLE else COLOURS[1] if name == ROOFLINE else COLOURS[5]
        said = SAID.get(name, f"without {name}")
        rho, half, most = f["spearman_median"] or 0.0, f["error_median"] or 0.0, f["error_p90"] or 0.0
        parts.append(_text(label - 6, y + 11, said, anchor="end"))
        for axis, value in ((s, rho), (e, half)):
            parts.append(f'<rect x="{_number(axis.start)}" y="{_number(y)}" width="{_number(axis.at(max(value, 0)) - axis.start)}" '
                         f'height="{high - 5}" fill="{fill}"/>')  # fmt: skip
        parts += [_line(e.at(half), y + 6, e.at(most), y + 6, INK), _text(s.at(max(rho, 0)) + 4, y + 11, f"{rho:.2f}", size=9),
                  _text(e.at(most) + 4, y + 11, f"{half:.0%}, {most:.0%}", size=9)]  # fmt: skip
    return _svg(label + 2 * bar + 130, 60 + len(rows) * high, title, parts)


def pictures(made: Mapping[str, Any], found: Points) -> dict[str, str]:
    """File name -> SVG, of the figures (`figures.read`) and the points that they are of."""
    rows = [r for r in figures.shapes(found) if r.points]
    times = {
        (s["workload"], store.shape_key(s["shape"]), id_): float(packed[0])
        for s in made["predictions"] for id_, packed in s["points"].items()
    }  # fmt: skip
    names = list(made["workloads"])
    of = f"{made['points']} points of {made['shapes']} shapes, {made['device']}"
    return {
        "cost-model-error.svg": error(rows, times, names, f"Predicted and measured: {of}"),
        "cost-model-ranking.svg": ranking(rows, times, names, f"Measured times in the predicted order: {of}"),
        "cost-model-ablation.svg": ablation(made["ablation"], "What each term of the model is worth"),
    }
