"""What limits a schedule: each term of the model by what it costs, and the lines of the program that it lies in.

A term costs what the time falls by when the term is left out (`without=`). Terms hide each other (two resources equally busy cost nothing
alone), so costs do not add up to the time. The bound class is that of the dearest term.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analyses.cost.terms import BOUNDS, FIRST, TERMS
from analyses.cost.work import PIPES
from cake_ir import bound as B

if TYPE_CHECKING:
    from analyses.cost.estimate import Estimate
    from analyses.cost.machine import Machine
    from analyses.cost.sites import Site

CLASSES: Mapping[str, str] = {
    "tensor": "tensor", "clock": "tensor", "issue": "issue", "interference": "issue", "smem": "smem", "copies": "l2", "l2": "l2",
    "hbm": "hbm",
    "load latency": "latency", "ring": "latency", "barriers": "barrier wait", "wave": "tail", "launch": "launch",
}  # fmt: skip
"""The bound class of a program whose dearest term is this. `residency` is none: what CTAs of an SM share is."""
LEAST = 0.02
"""A part of the time below which a term limits nothing: several hide each other then, and the busiest resource is the class."""
NOTHING = 0.001
"""A part of the time below which a term is not worth a line."""
MOST_SMS = 0.75
"""With a CTA on fewer of the SMs than this the reason says so."""
RESOURCES: Mapping[str, tuple[str, ...]] = {
    "tensor": ("tensor",), "clock": ("tensor",), "interference": PIPES, "issue": PIPES, "smem": ("smem",), "copies": ("port",),
    "l2": ("l2",), "hbm": ("l2",),
}  # fmt: skip
"""The work that a term charges (`analyses.cost.work`)."""
WAITS = "waits for "
"""How the critical path says that it waited (`analyses.cost.path`)."""
COPIES = ("tma_load", "bulk_load")
"""Copies whose arrival is waited for at the barrier that they signal."""
OPS: Mapping[str, tuple[str, ...]] = {
    "load latency": ("load", "load_scalar", "tma_load", "bulk_load", "cp_async", "ldmatrix"),
    "barriers": ("sync", "wait", "named_arrive", "fence_async", "arrive", "wgmma_wait", "cp_async_wait", "bulk_wait"),
    "ring": ("tma_load", "bulk_load", "cp_async"),
}
"""The ops that pay a term which no resource serves."""


@dataclass(frozen=True)
class Limiter:
    """A term, what it costs (also as a share of the time), where most of it lies, and a sentence about it."""

    what: str
    cost_us: float
    share: float
    line: int
    col: int
    role: str
    op: str
    message: str


@dataclass(frozen=True)
class Ring:
    """Copies through a barrier with stages. fills: by a CTA; copy_us: from the issue of a copy until its stage can be read and has been
    handed back; every_us: between two fills over the whole CTA, if none waited for a stage."""

    buffers: tuple[str, ...]
    stages: int
    fills: float
    copy_us: float
    every_us: float
    site: Site


def term_costs(run: Callable[[frozenset[str]], float], now_us: float) -> dict[str, float]:
    """Microseconds that each term costs. run: the time without some terms."""
    return {term: max(0.0, now_us - run(frozenset((term,)))) for term in TERMS}


def occupancy_limit(fit: Mapping[str, int]) -> str:
    """What keeps an SM at most half full: registers or shared memory, or "". fit: CTAs an SM by resource
    (`analyses.cost.estimate.fits`)."""
    least = min(fit, key=lambda name: fit[name])
    return least if least in ("registers", "shared memory") and 2 * fit[least] <= fit["threads"] else ""


def bound_class(costs: Mapping[str, float], e: Estimate, limit: str = "") -> str:
    """tensor | hbm | l2 | smem | issue | latency | barrier wait | occupancy | tail | launch.

    costs: microseconds by term, from leaving terms out or from an attribution of one run. limit: what keeps an SM half empty
    (`occupancy_limit`): where loads are waited for although further CTAs queue, that is the class.
    """
    term = _dearest(costs, e)
    if not term:
        return BOUNDS.get(e.bound_by, e.bound_by)
    if term == "load latency" and e.waves > 1 and limit:
        return "occupancy"
    return CLASSES[term]


def class_reason(costs: Mapping[str, float], e: Estimate, limit: str = "") -> str:
    """Why it is that class, in a sentence or two with the number that shows it."""
    name, term = bound_class(costs, e, limit), _dearest(costs, e)
    if not term:
        return (
            f"{name}: no term alone costs {LEAST:.0%} of {e.time_us:.4g} us, and {e.bound_by} is the busiest resource, "
            f"{_part(e.bounds_us[e.bound_by], e.time_us)} of the time"
        )
    then = f"the estimate falls from {e.time_us:.4g} to {e.time_us - costs[term]:.4g} us"
    why = f"{name}: without the term {term} ({TERMS[term]}) {then}"
    if name == "occupancy" and term == "load latency":
        why += f"; {e.ctas_per_sm} CTAs fit an SM by their {limit} while {e.ctas} wait for their turn"
    used = e.waves * e.ctas_per_sm
    if 0 < used < MOST_SMS:
        why += f"; only {e.ctas} of {e.ctas / used:.0f} SMs have a CTA"
    return why


def _dearest(costs: Mapping[str, float], e: Estimate) -> str:
    """The term that is the class: the dearest, but for `FIRST`; "" where none costs enough to count."""
    for term, share in FIRST.items():
        if costs.get(term, 0.0) >= share * e.time_us > 0:
            return term
    term = max((t for t in costs if t in CLASSES), key=lambda t: costs[t], default="")
    return term if term and costs[term] >= LEAST * e.time_us else ""


def limiters(
    bound: B.BoundKernel, e: Estimate, costs: Mapping[str, float], m: Machine, text: str = ""
) -> tuple[Limiter, ...]:
    """The three dearest terms, each tied to the statement in which most of it lies. e: with sites and path; text: the program's."""
    lines = text.split("\n")
    free = 1 - costs.get("ring", 0.0) / e.time_us if e.time_us else 1.0
    ring = max(rings(bound, e, m, free), key=lambda r: r.copy_us - r.stages * r.every_us, default=None)
    found: list[Limiter] = []
    for term in sorted(costs, key=lambda t: -costs[t])[:3]:
        if costs[term] < NOTHING * e.time_us:
            continue
        site = ring.site if term == "ring" and ring is not None else _site(term, e)
        if site is not None:
            at = (site.line, site.col, site.role, site.op)
            code = lines[site.line - 1].strip() if site.line <= len(lines) else ""
            where = (
                f"line {site.line}" + (f" ({site.role})" if site.role else "") + (f": `{_short(code)}`" if code else "")
            )
        else:
            at, where = (bound.launch.span.line, bound.launch.span.col, "", "launch"), ""
        found.append(Limiter(term, costs[term], costs[term] / e.time_us, *at, _message(term, e, where, ring)))
    return tuple(found)


def _short(code: str) -> str:
    return code if len(code) <= 60 else code[:59] + "…"


def _site(term: str, e: Estimate) -> Site | None:
    """The statement with most of a term: of its resource's work, or of the critical path among the ops that pay it; None for what belongs
    to the launch."""
    if term in RESOURCES:
        pipes = RESOURCES[term]
        busiest = max(pipes, key=lambda r: sum(s.work.get(r, 0.0) for s in e.sites))
        return max((s for s in e.sites if s.work.get(busiest)), key=lambda s: s.work[busiest], default=None)
    those = [s for s in e.sites if s.op in OPS.get(term, ())]
    arrive = _arrivals(e) if term == "load latency" else None

    def waited(s: Site) -> float:
        if arrive is not None:
            return arrive.get(f"{s.op} of {s.subject}", 0.0) + arrive.get(s.subject if s.op in COPIES else "", 0.0)
        return sum(step.us for step in e.path if (step.line, step.role) == (s.line, s.role))

    return max(those, key=lambda s: (waited(s), "l2" in s.work, s.times), default=None)


def _arrivals(e: Estimate) -> dict[str, float]:
    """What the critical path waits for, by name: "load of x", or the barrier that copies signal."""
    found: dict[str, float] = {}
    for step in e.path:
        if step.why.startswith(WAITS):
            name = step.why.removeprefix(WAITS)
            found[name] = found.get(name, 0.0) + step.us
    return found


def rings(bound: B.BoundKernel, e: Estimate, m: Machine, free: float = 1.0) -> tuple[Ring, ...]:
    """The copy rings of a kernel: barriers that copies signal. free: the part of the time that is left when no stage is waited for."""
    times = {(s.line, s.col): s for s in e.sites}
    found: dict[B.Barrier, list[tuple[B.Op, Site]]] = {}
    for op in B.walk(bound.body):
        if isinstance(op, B.Op) and isinstance(use := op.operands.get("signal"), B.BarUse):
            site = times.get((op.span.line, op.span.col))
            if site is not None:
                found.setdefault(use.barrier, []).append((op, site))
    copy_us = (m.latency["tma_hbm" if e.l2 == "cold" else "tma"] + 2 * m.latency["hop"]) / e.clock_mhz
    out = []
    for barrier, copies in found.items():
        views = [v for op, _ in copies if isinstance(v := op.operands.get("view"), B.View)]
        fills = max(site.times for _, site in copies)
        names = tuple(dict.fromkeys(v.buffer.name for v in views))
        out.append(Ring(names, barrier.stages, fills, copy_us, free * e.cta_us / fills, copies[0][1]))
    return tuple(out)


def _message(term: str, e: Estimate, where: str, ring: Ring | None) -> str:
    """A term in an engineer's words. where: the statement with most of it."""
    of = f" of {e.time_us:.4g} us"
    most = f", most by {where}" if where else ""
    busy = {r: f"{e.bounds_us.get(r, 0.0):.4g}{of}" for r in ("tensor", "smem", "l2", "hbm", *PIPES)}
    pipe = max(PIPES, key=lambda p: e.bounds_us.get(p, 0.0))
    if term == "ring" and ring is not None:
        return (
            f"the ring of {', '.join(ring.buffers)} has {ring.stages} stage{'s' if ring.stages != 1 else ''}: a copy takes "
            f"{ring.copy_us:.2g} us until its stage is handed back, and a stage is needed every {ring.every_us:.2g} us"
        )
    return {
        "tensor": f"products would keep all tensor cores busy for {busy['tensor']}{most}",
        "clock": f"the power limit holds the clock at {e.clock_mhz:.0f} MHz while products run{most}",
        "issue": f"instructions would fill all {pipe} {'slots' if pipe == 'issue' else 'pipes'} for {busy[pipe]}{most}",
        "interference": f"instructions beside the products slow these down{most}",
        "smem": f"shared memory of all SMs would move data for {busy['smem']}{most}",
        "copies": f"what copies bring comes through the port of an SM one after the other{most}",
        "l2": f"L2 delivers {e.l2_bytes / 1e6:.4g} MB in {busy['l2']}{most}",
        "hbm": f"device memory moves {e.hbm_bytes / 1e6:.4g} MB in {busy['hbm']}{most}",
        "load latency": f"loads are waited for with too little else under way{most}",
        "barriers": f"hand-overs between roles take time on the critical path{most}",
        "ring": f"a stage is filled again only when it was released{most}",
        "residency": f"{e.ctas_per_sm} CTAs share an SM and what it has",
        "wave": _wave(e),
        "launch": f"launching, starting CTAs and their first loads take a part{of}, the launch alone {e.launch_us:.3g} us",
    }[term]


def _wave(e: Estimate) -> str:
    whole = -int(-e.waves // 1)
    if e.waves > 1:
        return f"{e.ctas} CTAs take {whole} waves, in which {e.waves / whole:.0%} of the places are used"
    return f"{e.ctas} CTAs are one wave, but have unequal numbers of tiles"


def _part(a: float, b: float) -> str:
    return f"{a / b:.0%}" if b else "0%"
