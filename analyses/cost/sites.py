"""Where in the program the work of a CTA lies: what its statements ask of each resource, summed over a trace by line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from analyses.cost.program import Trace
from analyses.cost.work import PIPES


@dataclass(frozen=True)
class Site:
    """A statement of the text in the role that executes it. times: executions by one instance; work: of all instances of a CTA, in clocks
    of an SM (tensor, smem, issue, fma, alu, sfu, shuffle) and bytes (l2, port), as `analyses.cost.work` counts them; subject: the
    barrier, buffer or tensor that it is about."""

    line: int
    col: int
    role: str
    op: str
    subject: str
    times: float
    work: Mapping[str, float]


def sites(trace: Trace) -> tuple[Site, ...]:
    """The statements that the first CTA of a cluster executes, in text order; iterations that were cut are counted."""
    times: dict[tuple[int, int, str, str, str], float] = defaultdict(float)
    work: dict[tuple[int, int, str, str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for a in trace.agents:
        if a.rank:
            continue
        for code, _, part, mult in a.events:
            key = (code.line, code.col, a.role.name, code.name, code.subject)
            n = mult * a.weight
            times[key] += n / a.role.count
            w = work[key]
            for pipe, clocks in code.pipes:
                w[PIPES[pipe]] += clocks * n
            for name, amount in (
                ("tensor", code.tensor),
                ("smem", code.smem),
                ("l2", code.l2 * part),
                ("port", code.port * part),
            ):
                if amount:
                    w[name] += amount * n
    return tuple(Site(*key, times[key], dict(work[key])) for key in sorted(times))
