"""Reports: one self-contained HTML page from stored or committed evidence, or from one or two profiles.

`collect` (with `records`) turns evidence into plain data (`model`), `plots` and `picture` draw it, `pages` renders it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from server.report.model import Evidence

__all__ = ["comparison_page", "evidence_page", "timeline_page"]


def evidence_page(evidence: Evidence) -> str:
    """The page of stored or committed evidence, see `pages.evidence_page`."""
    from server.report import pages

    return pages.evidence_page(evidence)


def timeline_page(profile: Mapping[str, Any], *, source: str, title: str) -> str:
    """The page of one profile, see `pages.timeline_page`."""
    from server.report import pages

    return pages.timeline_page(profile, source=source, title=title)


def comparison_page(
    first: Mapping[str, Any], second: Mapping[str, Any], *, first_source: str, second_source: str, title: str
) -> str:
    """The page of two profiles, see `pages.comparison_page`."""
    from server.report import pages

    return pages.comparison_page(first, second, first_source=first_source, second_source=second_source, title=title)
