"""From model to page: one self-contained HTML text, no script needed, nothing fetched.

Every value goes through Jinja's autoescape; only SVG that `svg.py` and `picture.py` made (and escaped) passes as markup.
The policy in the page forbids everything but the one style sheet and the one script whose hashes it names.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
from markupsafe import Markup

from server import __version__
from server.report import picture, plots, profiles, units
from server.report.model import UNKNOWN_VERDICT, VERDICTS, Contender, Evidence, Timing, rank
from server.report.svg import legal
from server.wording import counted

MOST_PICTURES = 12
"""Timelines drawn on a page of evidence; more would make it large. The rest are named."""


@dataclass(frozen=True)
class Spread:
    """The plot of one kernel in one mode."""

    kernel: str
    mode: str
    plot: plots.Plot


@dataclass(frozen=True)
class Origin:
    """One run: what it measured, when, from which commit, by which command."""

    what: str
    date: str
    commit: str
    command: str


def evidence_page(e: Evidence) -> str:
    """The page of stored or committed evidence."""
    drawn, left = _views(e)
    timings = sorted(e.timings, key=lambda t: rank(t.verdict))
    return _render(
        "evidence.html.j2", title=e.title, script="", e=e, rows=e.rows(), yardsticks=e.rows(yardsticks=True),
        timings=timings, roofline=plots.roofline(e.timings), spreads=_spreads(e), contenders=_contenders(e),
        conditions=[t for t in timings if t.conditions.known],
        profiles=drawn, undrawn=left, origins=_origins(e),
    )  # fmt: skip


def timeline_page(profile: Mapping[str, Any], *, source: str, title: str) -> str:
    """The page of one profile (JSON of docs/measuring.md, "Profile").

    source: the text whose lines the profile numbers; empty when it is not at hand. A profile without a timeline gives a
    page that says why.
    """
    return _render("profile.html.j2", title=title, script=_asset("timeline.js"), view=profiles.view(profile, source))


def comparison_page(
    first: Mapping[str, Any], second: Mapping[str, Any], *, first_source: str, second_source: str, title: str
) -> str:
    """The page of two profiles side by side: times, roles, lines matched by their text, both timelines."""
    a, b = profiles.view(first, first_source), profiles.view(second, second_source)
    return _render(
        "comparison.html.j2", title=title, script=_asset("timeline.js"), a=a, b=b, roles=profiles.role_changes(a, b),
        lines=profiles.line_changes(a, b), first_us=a.time_us or a.plain_us, second_us=b.time_us or b.plain_us,
    )  # fmt: skip


# ---- parts of the evidence page ------------------------------------------------------------------------------------


def _spreads(e: Evidence) -> list[Spread]:
    """One plot per kernel and mode, in order of appearance: cold and warm never share axes."""
    groups: dict[tuple[str, str], list[Timing]] = {}
    for t in e.timings:
        groups.setdefault((t.subject.kernel, t.mode), []).append(t)
    found = []
    for n, ((kernel, mode), timings) in enumerate(groups.items()):
        drawn = plots.spread(timings, f"spread{n}", f"{kernel}, {mode}")
        if drawn is not None:
            found.append(Spread(kernel, mode, drawn))
    return found


def _contenders(e: Evidence) -> list[tuple[Timing, Contender]]:
    return [(t, c) for t in e.timings if t.candidate for c in (t.candidate, *(x.baseline for x in t.comparisons))]


def _views(e: Evidence) -> tuple[list[profiles.View], tuple[str, ...]]:
    """The profiles that are drawn, and in words those that are not."""
    found, left = [], [f"{p.subject.kernel}: not drawn, to keep the page small" for p in e.profiles[MOST_PICTURES:]]
    for p in e.profiles[:MOST_PICTURES]:
        try:
            found.append(profiles.view(p.profile, p.source, compact=True))
        except ValueError as exc:
            left.append(f"{p.subject.kernel}: {exc}")
    return found, tuple(left)


def _origins(e: Evidence) -> list[Origin]:
    """One row per kernel and run."""
    parts = [(t.subject, t.provenance, "timing") for t in e.timings]
    parts += [(j.subject, j.provenance, f"check, {j.where}") for j in e.judgements]
    parts += [(p.subject, p.provenance, "profile") for p in e.profiles]
    named = [Origin(f"{s.kernel}: {what}", p.date, p.commit, p.command) for s, p, what in parts]
    return list(dict.fromkeys(named))


# ---- rendering -----------------------------------------------------------------------------------------------------


def _render(template: str, *, title: str, script: str, **values: Any) -> str:
    style = _asset("style.css")
    policy = f"default-src 'none'; style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"
    if script:
        policy += f"; script-src '{_hash(script)}'"
    text = _environment().get_template(template).render(
        title=title, policy=Markup(policy), style=Markup(style), script=Markup(script), patterns=Markup(picture.patterns()),
        version=__version__, verdicts=VERDICTS, unknown=UNKNOWN_VERDICT, kinds=picture.KINDS, none_sign=units.NONE, **values,
    )  # fmt: skip
    # A lone surrogate (a damaged name in evidence) cannot be written as UTF-8.
    return legal(text)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def _asset(name: str) -> str:
    """A file beside the templates, without the final newline that an HTML parser may treat its own way."""
    found, _, _ = jinja2.PackageLoader("server.report", "templates").get_source(jinja2.Environment(), name)
    return found.strip()


@functools.cache
def _environment() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("server.report", "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    env.filters |= {
        "micros": units.micros, "ratio": units.ratio, "percent": units.percent, "size": units.size, "day": units.day,
        "number": units.number, "svg": Markup, "counted": lambda n, noun: counted(n, noun),
    }  # fmt: skip
    return env
