"""Profiles: what they say, in one sentence and three lines of the program. Pure: no process is started, no GPU is touched.

    summarise(profile, sass, facts) -> Summary        bound class, limiters, by line and by role (limiters.py, attribution.py)
    compare(a, b) -> dict                             two profiles side by side (compare.py)
    sass_listing(sass, text, instructions) -> str     each instruction with its line, samples and top stall (attribution.py)

`profile` is the JSON of `corpus.jobs.Profile`; docs/measuring.md describes all members.
"""

from __future__ import annotations

from corpus.profiling.attribution import sass_listing
from corpus.profiling.compare import compare
from corpus.profiling.facts import Facts, facts
from corpus.profiling.limiters import RULES, Limiter, Summary, summarise

__all__ = ["RULES", "Facts", "Limiter", "Summary", "compare", "facts", "sass_listing", "summarise"]
