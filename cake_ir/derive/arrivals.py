"""Arrival counts, expected bytes and named-barrier participants, counted on the traces of the witness shapes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cake_ir.bound import Barrier, BoundKernel, If, Op, While, walk
from cake_ir.derive.findings import contract
from cake_ir.derive.model import NamedKey
from cake_ir.diagnostics import NOWHERE, Diagnostic, Related, Span, Subject, error
from cake_ir.skeleton import AgentTrace, BarAt, Event, ViewAt, compile_skeleton
from cake_ir.witness import Witness, traces

ARRIVING = ("arrive", "expect", "tcgen05_commit", "cp_async_arrive")
COPIES = ("tma_load", "bulk_load", "store_async")
Key = tuple[Barrier, int, int, int]
"""(barrier, CTA, use, round): round counts how often an agent came back to numbers it had left."""


def copy_bytes(view: ViewAt) -> int:
    """Bytes that a copy into the view signals; a clipped box counts in full."""
    return (view.row1 - view.row0) * (view.col1 - view.col0) * view.view.buffer.dtype.bits // 8


def receivers(event: Event, own: int, base: int, cluster: int) -> list[int]:
    """CTAs that a multicast reaches (the named one when there is no multicast)."""
    ranks = event.vals.get("multicast")
    if ranks is None:
        return [own]
    if ranks == "cluster":
        return list(range(base, base + cluster))
    return [base + r for r in ranks]


def arrival_weight(event: Event, trace: AgentTrace) -> int:
    """Arrivals that one executed op contributes: T and W one, G four, kernel level one per warp of the unit."""
    name, unit = event.node.name, event.node.unit
    if name == "cp_async_arrive":
        return 128 if unit == "G" else 32
    if name != "arrive" or event.thread or unit == "W":
        return 1
    if unit == "G":
        return 4
    return 4 if trace.role.unit == "warpgroup" else 1


@dataclass
class Tally:
    """Counts over all witnesses. sites: contributions by site of one key."""

    arrivals: dict[Barrier, dict[int, Key]] = field(default_factory=dict)
    sites: dict[tuple[Any, ...], Counter[int]] = field(default_factory=dict)
    waited: dict[Barrier, Span] = field(default_factory=dict)
    expects: dict[int, dict[int, tuple[Any, ...]]] = field(default_factory=dict)
    named: dict[NamedKey, dict[tuple[str, int, int], int]] = field(default_factory=lambda: defaultdict(dict))
    diagnostics: list[Diagnostic] = field(default_factory=list)
    restarted: dict[Barrier, tuple[int, int]] = field(default_factory=dict)


class _Rounds:
    """Use numbers of one (agent, site): a number met again after others starts a new round."""

    __slots__ = ("last", "round", "seen")

    def __init__(self) -> None:
        self.last: int | None = None
        self.seen: set[int] = set()
        self.round = 0

    def meet(self, use: int) -> int:
        if use != self.last and use in self.seen:
            self.round += 1
            self.seen.clear()
        self.seen.add(use)
        self.last = use
        return self.round


def count(bound: BoundKernel, chosen: tuple[Witness, ...]) -> Tally:
    """Runs the skeleton on every witness and counts. Findings about bytes are collected here, about counts by
    `settle`."""
    tally = Tally()
    ops = {s.site: s for s in walk(bound.body) if isinstance(s, Op)}
    seen: set[tuple[str, Any]] = set()
    for w in chosen:
        _count_one(bound, w, tally, ops, seen)
    return tally


def _count_one(bound: BoundKernel, w: Witness, tally: Tally, ops: dict[int, Op], seen: set[tuple[str, Any]]) -> None:
    cluster = bound.launch.cluster
    arrivals: dict[Key, Counter[int]] = defaultdict(Counter)
    sent: dict[tuple[Any, ...], Counter[int]] = defaultdict(Counter)
    expected: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for trace in traces(bound, w):
        rounds: dict[int, _Rounds] = defaultdict(_Rounds)
        base = trace.cta - trace.cta % cluster
        for warp, e in _by_warp(trace.events):
            if not isinstance(e.node, Op):
                continue
            name = e.node.name
            if name in ARRIVING:
                bar: BarAt = e.vals["bar"]
                number = rounds[e.node.site].meet(bar.use)
                if number:
                    tally.restarted.setdefault(bar.barrier, (e.node.site, bar.use))
                for cta in receivers(e, bar.cta, base, cluster):
                    arrivals[(bar.barrier, cta, bar.use, number)][e.node.site] += arrival_weight(e, trace)
                if name == "expect":
                    expected[(bar.barrier, bar.cta, bar.use, number, trace.role.name)].append(e.node.site)
            elif name in COPIES:
                bar = e.vals["signal"]
                number = rounds[e.node.site].meet(bar.use)
                for cta in receivers(e, bar.cta, base, cluster):
                    sent[(bar.barrier, cta, bar.use, number, trace.role.name)][e.node.site] += copy_bytes(
                        e.vals["view"]
                    )
            elif name == "wait":
                if e.vals["bar"].use >= 0:
                    tally.waited.setdefault(e.vals["bar"].barrier, e.node.span)
            elif name in ("sync", "named_arrive"):
                _named(bound, e, trace, warp, tally)
    for key, sites in arrivals.items():
        tally.arrivals.setdefault(key[0], {}).setdefault(sum(sites.values()), key)
        tally.sites.setdefault((key[0], sum(sites.values())), sites)
    _bytes(bound, w, tally, ops, seen, sent, expected)


def _bytes(
    bound: BoundKernel,
    w: Witness,
    tally: Tally,
    ops: dict[int, Op],
    seen: set[tuple[str, Any]],
    sent: dict[tuple[Any, ...], Counter[int]],
    expected: dict[tuple[Any, ...], list[int]],
) -> None:
    def once(rule: str, mark: Any) -> bool:
        fresh = (rule, mark) not in seen
        seen.add((rule, mark))
        return fresh

    for key, sites in expected.items():
        total = sum(sent.get(key, Counter()).values())
        tally.expects.setdefault(sites[0], {}).setdefault(total, key)
        if len(sites) > 1 and once("double", (sites[0], sites[-1])):
            first, second = ops[sites[0]], ops[sites[-1]]
            tally.diagnostics.append(
                error(
                    "derive/double-expect",
                    "derive",
                    f"{key[4]} expects {key[0].name}[{key[2]}] of CTA {key[1]} "
                    f"{len(sites)} times: the bytes cannot be divided",
                    second.span,
                    contract=contract("derive/double-expect"),
                    related=(Related(span=first.span, message="first expect"),),
                    subject=Subject(kernel=bound.name, role=key[4], resource=key[0].name, op="expect"),
                )
            )
        if not total and once("empty", sites[0]):
            tally.diagnostics.append(
                error(
                    "derive/expect-without-copies",
                    "derive",
                    f"expect({key[0].name}[{key[2]}]) announces no bytes: no copy of role "
                    f"{key[4]} signals this use of CTA {key[1]}'s barrier"
                    f" (at {w.describe()})",
                    ops[sites[0]].span,
                    contract=contract("derive/expect-without-copies"),
                    subject=Subject(kernel=bound.name, role=key[4], resource=key[0].name, op="expect"),
                )
            )
    for key, sites in sent.items():
        if key in expected:
            continue
        site = min(sites)
        if once("unexpected", site):
            others = sorted({k[4] for k in expected if k[:4] == key[:4]})
            who = f"; only {', '.join(others)} expects it" if others else "; no role expects it"
            tally.diagnostics.append(
                error(
                    "derive/unexpected-bytes",
                    "derive",
                    f"{ops[site].name} signals {sum(sites.values())} B on {key[0].name}[{key[2]}] of "
                    f"CTA {key[1]}, but role {key[4]} does not expect that "
                    f"use there{who} (at {w.describe()})",
                    ops[site].span,
                    contract=contract("derive/unexpected-bytes"),
                    subject=Subject(kernel=bound.name, role=key[4], resource=key[0].name, op=ops[site].name),
                )
            )


def _by_warp(events: list[Event], warp: int = 0) -> Iterator[tuple[int, Event]]:
    """All events with the warp of the instance that runs them alone; 0 outside `warps()`."""
    for e in events:
        if e.children is None:
            yield warp, e
        else:
            for w, child in enumerate(e.children):
                yield from _by_warp(child, w)


def _named(bound: BoundKernel, e: Event, trace: AgentTrace, warp: int, tally: Tally) -> None:
    op = e.node
    scope = op.attrs.get("scope")
    warps = 4 if op.unit == "G" else 1
    if op.name == "named_arrive" or scope == "named":
        bar: BarAt = e.vals["bar"]
        key: NamedKey = ("named", bar.barrier, bar.slot)
        if not 0 <= bar.use < bar.barrier.stages:  # an index, not a use number: it does not wrap
            known = any(d.rule == "derive/named-index" and d.span == op.span for d in tally.diagnostics)
            if not known:
                text = f"{bar.barrier.name}[{bar.use}]: {bar.barrier.name} declares {bar.barrier.stages}"
                tally.diagnostics.append(
                    error(
                        "derive/named-index",
                        "derive",
                        f"{text} hardware barrier{'s' * (bar.barrier.stages != 1)}, numbered from 0 ({trace.label})",
                        op.span,
                        contract=contract("derive/named-index"),
                        subject=Subject(kernel=bound.name, role=trace.role.name, resource=bar.barrier.name, op=op.name),
                    )
                )
            return
    elif scope == "role":
        key = ("role", op.operands["role"].name)
    elif scope == "warpgroup":
        key = ("warpgroup", trace.role.name, trace.instance)
    else:
        return
    for w in range(warp, warp + warps):
        tally.named[key][(trace.role.name, trace.instance, w)] = 32


def settle(bound: BoundKernel, tally: Tally) -> tuple[dict[Barrier, int], dict[int, int], list[Diagnostic]]:
    """(arrival counts, bytes by expect site, findings)."""
    ops = {s.site: s for s in walk(bound.body) if isinstance(s, Op)}
    found: list[Diagnostic] = list(tally.diagnostics)
    counts: dict[Barrier, int] = {}
    for bar in bound.barriers:
        if bar.kind != "mbarrier":
            continue
        by_count = tally.arrivals.get(bar, {})
        subject = Subject(kernel=bound.name, resource=bar.name)
        if not by_count:
            counts[bar] = 1
            if bar in tally.waited:
                found.append(
                    error(
                        "derive/no-arrival",
                        "derive",
                        f"nothing ever arrives on {bar.name}, so every wait on it blocks for ever",
                        tally.waited[bar],
                        contract=contract("derive/no-arrival"),
                        subject=subject,
                        related=(Related(span=bar.span, message=f"{bar.name} is declared here"),),
                    )
                )
            continue
        usual = _usual(bar, by_count, tally)
        counts[bar] = usual
        if len(by_count) > 1 and bar in tally.restarted:
            found[:] = [d for d in found if d.subject.resource != bar.name or d.rule != "derive/double-expect"]
            if not any(d.rule == "sync/phase-drift" for d in found):
                found.append(_restarted(bound, bar, tally, ops))
            continue
        doubled = any(d.rule == "derive/double-expect" for d in found)
        for n in () if doubled else sorted(by_count):
            if n != usual:
                found.append(_unequal(bound, bar, usual, n, tally, ops))
                break
        if bar.arrivals is not None and bar.arrivals != usual and len(by_count) == 1:
            sites = tally.sites[(bar, usual)]
            found.append(
                error(
                    "derive/asserted-arrivals",
                    "derive",
                    f"{bar.name} is declared with arrivals={bar.arrivals}, but {usual} arrive on every use",
                    bar.span,
                    contract=contract("derive/asserted-arrivals"),
                    subject=subject,
                    related=tuple(Related(span=ops[s].span, message=f"{c} of them") for s, c in sorted(sites.items())),
                )
            )
    unexpected = {d.subject.resource for d in found if d.rule == "derive/unexpected-bytes"}
    found = [d for d in found if d.rule != "derive/no-arrival" or d.subject.resource not in unexpected]
    doubled = any(d.rule == "derive/double-expect" for d in found)
    sizes = _settle_bytes(bound, tally, ops, found)
    if doubled:  # the sums only differ because uses are counted together
        found = [d for d in found if d.rule != "derive/unequal-bytes"]
    found += _data_dependent(bound)
    return counts, sizes, found


def _usual(bar: Barrier, by_count: dict[int, Key], tally: Tally) -> int:
    """The count to derive when uses disagree: the asserted one if it occurs, else the largest."""
    return bar.arrivals if bar.arrivals in by_count else max(by_count)  # type: ignore[return-value]


def _unequal(bound: BoundKernel, bar: Barrier, usual: int, n: int, tally: Tally, ops: dict[int, Op]) -> Diagnostic:
    key, other = tally.arrivals[bar][n], tally.arrivals[bar][usual]
    mine, theirs = tally.sites[(bar, n)], tally.sites[(bar, usual)]
    lacking = (
        [s for s in theirs if theirs[s] > mine.get(s, 0)]
        if n < usual
        else [s for s in mine if mine[s] > theirs.get(s, 0)]
    )
    site = min(lacking or mine)
    related = [
        Related(span=ops[s].span, message=f"adds {c} to use {key[2]}") for s, c in sorted(mine.items()) if s != site
    ]
    related.append(Related(span=bar.span, message=f"{bar.name} is declared here"))
    return error(
        "derive/unequal-arrivals",
        "derive",
        f"{bar.name}[{key[2]}] of CTA {key[1]} gets {n} arrivals, "
        f"{bar.name}[{other[2]}] of CTA {other[1]} gets {usual}",
        ops[site].span,
        contract=contract("derive/unequal-arrivals"),
        related=tuple(related),
        subject=Subject(kernel=bound.name, role=ops[site].role, resource=bar.name, op=ops[site].name),
    )


def _restarted(bound: BoundKernel, bar: Barrier, tally: Tally, ops: dict[int, Op]) -> Diagnostic:
    site, use = tally.restarted[bar]
    return error(
        "sync/phase-drift",
        "safety",
        f"the use numbers of {bar.name} begin again ({ops[site].name} of {bar.name}[{use}] a "
        f"second time), so what number {use} means depends on how many "
        f"uses came before; a counter that runs on over all tiles keeps slot and parity right",
        ops[site].span,
        contract=contract("sync/phase-drift"),
        related=(Related(span=bar.span, message=f"{bar.name} is declared here"),),
        subject=Subject(kernel=bound.name, role=ops[site].role, resource=bar.name, op=ops[site].name),
    )


def _settle_bytes(bound: BoundKernel, tally: Tally, ops: dict[int, Op], found: list[Diagnostic]) -> dict[int, int]:
    sizes: dict[int, int] = {}
    per_barrier: dict[Barrier, Counter[int]] = defaultdict(Counter)
    for site, by_total in sorted(tally.expects.items()):
        totals = sorted(by_total)
        sizes[site] = totals[-1]
        bar = by_total[totals[-1]][0]
        per_barrier[bar][site] = totals[-1]
        if len([t for t in totals if t]) > 1 and bar not in tally.restarted:
            a, b = by_total[totals[-1]], by_total[totals[0]]
            found.append(
                error(
                    "derive/unequal-bytes",
                    "derive",
                    f"the copies of role {a[4]} signal {totals[-1]} B on {bar.name}[{a[2]}] "
                    f"but {totals[0]} B on {bar.name}[{b[2]}]",
                    ops[site].span,
                    contract=contract("derive/unequal-bytes"),
                    subject=Subject(kernel=bound.name, role=a[4], resource=bar.name, op="expect"),
                )
            )
    for bar, by_site in per_barrier.items():
        total = max(by_site.values()) if len({ops[s].role for s in by_site}) == 1 else sum(by_site.values())
        if bar.bytes is not None and bar.bytes != total:
            found.append(
                error(
                    "derive/asserted-bytes",
                    "derive",
                    f"{bar.name} is declared with bytes={bar.bytes}, but the copies signal {total} B per use",
                    bar.span,
                    contract=contract("derive/asserted-bytes"),
                    subject=Subject(kernel=bound.name, resource=bar.name),
                    related=tuple(
                        Related(span=ops[s].span, message=f"expects {n} B") for s, n in sorted(by_site.items())
                    ),
                )
            )
    return sizes


def _data_dependent(bound: BoundKernel) -> list[Diagnostic]:
    """Barrier traffic under control that only data decide: counts could not be derived. One finding per statement that
    decides."""
    found: list[Diagnostic] = []
    for s in compile_skeleton(bound).data_control:
        bodies = s.body if isinstance(s, While) else s.then + s.orelse if isinstance(s, If) else ()
        for inner in walk(bodies):
            if isinstance(inner, Op) and inner.name in (
                "arrive",
                "expect",
                "tcgen05_commit",
                "cp_async_arrive",
                *COPIES,
            ):
                found.append(
                    error(
                        "derive/data-dependent",
                        "derive",
                        f"{inner.name} runs only when data decide so; the counts of its barrier cannot be derived",
                        inner.span,
                        contract=contract("derive/data-dependent"),
                        related=(Related(span=getattr(s, "span", NOWHERE), message="decided here"),),
                        subject=Subject(kernel=bound.name, role=inner.role, op=inner.name),
                    )
                )
                break
    return found
