"""The standard plots of a report, drawn by matplotlib into SVG: a roofline and the samples of every timing.

The same data give the same bytes: fixed salt for ids, no date, the caller's order. Colours carry no meaning alone:
kernels differ by marker, contenders by marker and by the row they stand in.
"""

from __future__ import annotations

import functools
import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from server.report import svg, units
from server.report.model import Contender, Timing, rank

if TYPE_CHECKING:
    from cake_ir.targets.table import Target

_RC: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "cake", "font.size": 9.0, "font.family": "sans-serif", "axes.linewidth": 0.8,
    "axes.edgecolor": "#777777", "axes.labelcolor": "#000000", "xtick.color": "#777777", "ytick.color": "#777777",
    "xtick.labelcolor": "#000000", "ytick.labelcolor": "#000000", "grid.color": "#dddddd", "grid.linewidth": 0.6,
    "path.simplify": False, "text.parse_math": False,
}  # fmt: skip
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_ROOFS = {"bf16": ("tc_bf16", 1), "f16": ("tc_f16", 1), "e4m3": ("tc_fp8", 1), "f32": ("fp32_lanes", 2)}
"""A contract's FLOP unit -> fact of the target per clock and SM, and FLOP per unit of it (a fused multiply-add is two)."""


@dataclass(frozen=True)
class Roofs:
    """The limits of one target entry: bytes/s of device memory, FLOP/s by unit, and where the figures come from."""

    target: str
    product: str
    bytes_per_s: float
    flops_per_s: dict[str, float]
    source: str


@dataclass(frozen=True)
class Plot:
    """A drawn figure: `svg` for the page, `caption` for the eye, `points` named for the key (number, name)."""

    svg: str
    caption: str
    points: tuple[tuple[int, str], ...] = ()


def roofs(target: str, flop_units: Sequence[str]) -> Roofs | None:
    """Roofs by the target's facts (data-sheet rates at the clock those assume); None for an unknown target or rate."""
    from cake_ir import targets

    if target not in targets.names():
        return None
    entry: Target = targets.get(target)
    facts = entry.facts
    if not {"hbm_bytes_per_s", "sm_count", "clock_hz"} <= set(facts):
        return None

    def value(name: str) -> float:
        found = facts[name].value
        return float(found) if isinstance(found, int | float) else 0.0

    found: dict[str, float] = {}
    for unit in flop_units:
        name, per = _ROOFS.get(unit, ("", 0))
        if name in facts:
            found[unit] = value(name) * per * value("sm_count") * value("clock_hz")
    source = f"{facts['hbm_bytes_per_s'].source}; clock {value('clock_hz') / 1e9:g} GHz: {facts['clock_hz'].source}"
    return Roofs(target, entry.product, value("hbm_bytes_per_s"), found, source) if found else None


def _styled(draw: Any) -> Any:
    """Run a drawing function under this module's settings of matplotlib, whatever the process has set."""

    @functools.wraps(draw)
    def styled(*args: Any, **more: Any) -> Any:
        import matplotlib

        with matplotlib.rc_context(_RC), warnings.catch_warnings():
            # The page's own fonts draw the text; that matplotlib's cannot measure a letter is of no consequence.
            warnings.filterwarnings("ignore", "Glyph|Matplotlib currently does not support", UserWarning)
            return draw(*args, **more)

    return styled


@_styled
def roofline(timings: Sequence[Timing]) -> Plot | None:
    """Achieved FLOP/s over FLOP per compulsory byte, one point per timing, under the roofs of its target.

    Times that must not be used (incorrect, invalid) have no point. One target a plot: the one most timings are for.
    None when no timing has work, time and a known target.
    """
    usable = [t for t in timings if min(t.flops, t.bytes, t.time_us or 0) > 0 and rank(t.verdict) > 0]
    names = [t.subject.target for t in usable]
    if not names:
        return None
    target = max(sorted(set(names)), key=names.count)
    usable = [t for t in usable if t.subject.target == target]
    flop_units = sorted({t.flop_unit for t in usable})
    limit = roofs(target, flop_units)
    if limit is None:
        return None
    kernels = list(dict.fromkeys(t.subject.kernel for t in usable))
    points = [(t.flops / t.bytes, t.flops / (t.time_us or 1) * 1e6, t) for t in usable]
    peak = max(limit.flops_per_s.values())
    left = min(0.4 * min(x for x, _, _ in points), 0.02 * peak / limit.bytes_per_s)
    right = max(4 * max(x for x, _, _ in points), 4 * peak / limit.bytes_per_s)
    figure, axes = _figure(9.6, 4.6)
    for i, (unit, rate) in enumerate(sorted(limit.flops_per_s.items(), key=lambda kv: -kv[1])):
        ridge = rate / limit.bytes_per_s
        axes.plot([ridge, right], [rate, rate], color="#000000", lw=1.3, ls=("-", "--", ":", "-.")[i % 4])
        axes.annotate(
            f"{unit} {units.scaled(rate, 'FLOP/s')}",
            (right, rate),
            xytext=(-4, 4),
            textcoords="offset points",
            ha="right",
        )
    low = left * limit.bytes_per_s
    axes.plot([left, peak / limit.bytes_per_s], [low, peak], color="#000000", lw=1.3)
    named: list[tuple[int, str]] = []
    titles: dict[str, str] = {}
    for n, (x, y, t) in enumerate(points, 1):
        at = kernels.index(t.subject.kernel)
        hollow = t.mode != "warm"
        colour = _COLOURS[at % len(_COLOURS)]
        axes.plot(
            [x], [y], _MARKERS[at % len(_MARKERS)], color=colour, ms=7, mew=1.4, mfc="none" if hollow else colour,
            gid=f"point{n}", ls="none",
        )  # fmt: skip
        roof = min(limit.flops_per_s.get(t.flop_unit, math.inf), x * limit.bytes_per_s)
        text = f"{t.label}, {t.mode}: {units.scaled(y, 'FLOP/s')}, {number(x)} FLOP/byte, {units.percent(y / roof)} of its roof"
        named.append((n, text))
        titles[f"point{n}"] = text
    for (x, y), numbers in _neighbours([(x, y) for x, y, _ in points]).items():
        axes.annotate(units.ranges(numbers), (x, y), xytext=(7, -3), textcoords="offset points", fontsize=8)
    bottom = min(0.3 * min(y for _, y, _ in points), 0.3 * min(limit.flops_per_s.values()))
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, peak * 2.5))
    axes.set_xlabel("arithmetic intensity (FLOP per compulsory byte)")
    axes.set_ylabel("achieved")
    at = 0.55 * peak / limit.bytes_per_s
    axes.annotate(
        f"memory {units.scaled(limit.bytes_per_s, 'B/s')}", (at, at * limit.bytes_per_s), xytext=(-8, 0), ha="right",
        textcoords="offset points",
    )  # fmt: skip
    axes.grid(True, which="major")
    axes.xaxis.set_major_formatter(lambda v, _: f"{v:g}")
    axes.yaxis.set_major_formatter(lambda v, _: units.scaled(v, "FLOP/s"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(lambda v, _: "")
    caption = (
        f"Roofs of {limit.target} ({limit.product}) by data sheet ({limit.source}). Filled markers: warm; hollow: cold. Bytes are the "
        "contract's compulsory traffic; where it fits the L2 cache, a warm point may lie above the memory roof."
    )
    label = f"Roofline plot with {len(points)} points; the numbered list below gives every value"
    return Plot(_write(figure, "roofline", label, titles), caption, tuple(named))


def _short(text: str) -> str:
    """A name that leaves room for the plot, without what a font cannot measure."""
    text = svg.legal(text)
    return text if len(text) <= 44 else f"{text[:43]}…"


def _neighbours(points: Sequence[tuple[float, float]]) -> dict[tuple[float, float], list[int]]:
    """Numbers from 1 by the place of the label: points about a letter apart on both logarithmic axes share one."""
    out: dict[tuple[float, float], list[int]] = {}
    for n, (x, y) in enumerate(points, 1):
        near = next((p for p in out if abs(math.log(p[0] / x)) < 0.1 and abs(math.log(p[1] / y)) < 0.22), (x, y))
        out.setdefault(near, []).append(n)
    return out


def number(value: float) -> str:
    return units.number(value, 3)


@_styled
def spread(timings: Sequence[Timing], prefix: str, what: str) -> Plot | None:
    """Every raw sample of every contender as its deviation from that contender's own median, box and points.

    One row per contender; the axis is linear within 1 % and logarithmic beyond, so that neither the body nor a stray
    sample is lost. None when no timing keeps samples. prefix: makes ids unique. what: names the plot for a screen reader.
    """
    rows: list[tuple[str, Contender, int]] = []
    for t in timings:
        if t.candidate is None:
            continue
        for i, c in enumerate((t.candidate, *(c.baseline for c in t.comparisons))):
            if c.samples_us and c.median_us > 0:
                rows.append((f"{t.shape}{' ' + t.dtypes if t.dtypes else ''}" if i == 0 else "", c, i))
    if not rows:
        return None
    figure, axes = _figure(9.6, 0.62 + 0.235 * len(rows))
    titles: dict[str, str] = {}
    for y, (_, c, i) in enumerate(rows):
        off = [100 * (s / c.median_us - 1) for s in c.samples_us]
        ordered = sorted(off)
        low, high = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
        colour = _COLOURS[i % len(_COLOURS)]
        axes.plot([low, high], [y, y], color="#777777", lw=7, alpha=0.28, solid_capstyle="butt")
        axes.plot(
            off,
            [y] * len(off),
            _MARKERS[i % len(_MARKERS)],
            ms=3.4,
            mfc="none",
            mec=colour,
            mew=0.8,
            ls="none",
            gid=f"row{y}",
        )
        axes.plot([0, 0], [y - 0.36, y + 0.36], color="#000000", lw=1.1)
        titles[f"row{y}"] = (
            f"{c.name}: median {units.micros(c.median_us)} us, MAD {units.micros(c.mad_us)} us, from {units.micros(min(c.samples_us))} to "
            f"{units.micros(max(c.samples_us))} us, {len(c.samples_us)} samples of {c.batch} launches"
        )
        if i == 0 and y:
            axes.axhline(y - 0.5, color="#dddddd", lw=0.8)
    axes.set_xscale("symlog", linthresh=1.0, linscale=1.6)
    reach = max(2.0, *(abs(100 * (s / c.median_us - 1)) * 1.3 for _, c, _ in rows for s in c.samples_us))
    axes.set_xlim(-reach, reach)
    ticks = [v for v in (-100, -30, -10, -3, -1, -0.5, 0, 0.5, 1, 3, 10, 30, 100, 300, 1000) if abs(v) <= reach]
    axes.set_xticks(ticks, [f"{v:+g}" if v else "0" for v in ticks])
    axes.minorticks_off()
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(
        range(len(rows)), [f"{_short(head)}   {_short(c.name)}" if head else _short(c.name) for head, c, _ in rows]
    )
    axes.tick_params(axis="y", length=0)
    right = axes.secondary_yaxis("right")
    right.set_yticks(range(len(rows)), [f"{units.micros(c.median_us)} us" for _, c, _ in rows])
    right.tick_params(axis="y", length=0)
    right.spines["right"].set_visible(False)
    axes.set_xlabel("deviation of a sample from its contender's median (%)")
    axes.grid(True, axis="x")
    names = {c.name for _, c, _ in rows}
    caption = (
        f"{sum(len(c.samples_us) for _, c, _ in rows)} raw samples of {len(names)} contenders; the band holds the middle half of "
        "the samples, the bar is the median (named at the right). Linear within 1 %, logarithmic beyond."
    )
    return Plot(
        _write(figure, prefix, f"{what}: samples around their medians, {len(rows)} contenders", titles), caption
    )


def _figure(width: float, height: float) -> tuple[Any, Any]:
    """A figure of so many inches with one pair of axes, without the global state of pyplot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _write(figure: Any, prefix: str, label: str, titles: dict[str, str]) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    FigureCanvasSVG(figure)
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return svg.inline(out.getvalue(), prefix=prefix, label=label, titles=titles)
