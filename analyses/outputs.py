"""Every element of an Out tensor written exactly once, every global index inside its tensor, and no element of an InOut tensor
touched by two clusters of which one writes, on the witness shapes and on some that are made for it.

The launch is run CTA by CTA with all its CTAs, but only as far as global regions are concerned: statements that decide neither
a region nor whether it is reached are left out. What depends on loaded data is not counted (a permutation of rows, ragged
experts): such a tensor is left to evaluation, which poisons outputs. Masks (`when=`) may write or not and count as unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from analyses.bounds import decide
from analyses.regions import UNCLIPPED, RegionFacts, distinct_data, mode_of, region_facts, regions
from analyses.report import Property
from cake_ir.bound import (
    BoundKernel,
    Let,
    Op,
    Region,
    SetScalar,
    SVar,
    Tensor,
    sx_vars,
    walk,
)
from cake_ir.diagnostics import Diagnostic, Related, Span, Subject
from cake_ir.skeleton import AssumeViolated, DataOracle, Skeleton, SkeletonLimit
from cake_ir.witness import Witness, iter_events, witnesses

UNWRITTEN, TWICE, OUTSIDE = "data/output-unwritten", "data/output-written-twice", "data/global-out-of-bounds"
RACE = "data/global-race"
LIMIT = 20_000
"""Events and loop steps of one witness; a shape that needs more is left out."""
AGENTS = 1200
"""Roles times CTAs over all witnesses of a kernel; the smallest launch is run in any case."""
WHOLE = 32 * AGENTS
"""A grid of more roles is not run as a whole: what it leaves unwritten is not asked."""
ELEMENTS = 1 << 22
"""Elements of an Out tensor that are counted; a larger one is left out of that witness."""


class _Regions(Skeleton):
    """The skeleton of the ops with global regions alone."""

    def __init__(self, bound: BoundKernel, facts: RegionFacts) -> None:
        self._facts = facts
        self.trail: list[Any] = []
        """Events of the run so far, also of one that an assumption has ended."""
        super().__init__(bound)

    def _stmt(self, s: Any, role: Any, warp: bool) -> Callable[[Any], None] | None:
        if isinstance(s, Op) and not (s.site in self._facts.sites or any(r in self._facts.needed for r in s.results)):
            return None
        if isinstance(s, Let) or (isinstance(s, SetScalar) and s.var not in self._facts.needed):
            return None
        return super()._stmt(s, role, warp)

    def _op(self, op: Op, role: Any) -> Callable[[Any], None]:
        step = super()._op(op, role)

        def emit(c: Any) -> None:
            before = len(c.out)
            try:
                step(c)
            finally:
                self.trail.extend(c.out[before:])

        return emit

    def _operand(self, value: Any) -> Callable[[Any], Any] | None:
        return super()._operand(value) if isinstance(value, Region) else None


def check_outputs(bound: BoundKernel) -> list[Diagnostic]:
    """Findings on the first witness that shows one; at most one per rule and tensor."""
    found: dict[tuple[str, str], Diagnostic] = {}
    for writes in (False, True):  # what goes outside first, then what is written
        facts = region_facts(bound) if writes else RegionFacts(bound, False)
        if not facts.sites or (not writes and _all_proved(bound)):
            continue
        skeleton = _Regions(bound, facts)
        agents = 0
        chosen = sorted(witnesses(bound).witnesses, key=lambda w: w.cta_count)
        full = [w for w in chosen if all(w.shape.values())]  # an empty tensor has no holes
        more = (
            [*_ragged(skeleton, full[0]), *_larger(skeleton, full[0]), *_spread(skeleton, full)]
            if writes and full
            else []
        )
        for w in [*chosen, *more]:
            if writes and w.cta_count * len(bound.roles) > WHOLE:
                continue
            agents += w.cta_count * len(bound.roles)
            if agents > AGENTS and agents > w.cta_count * len(bound.roles):
                break
            try:
                for d in _check(skeleton, facts, w, writes):
                    found.setdefault((d.rule, d.subject.resource or ""), d)
            except (SkeletonLimit, AssumeViolated, ValueError):
                continue
            if found:
                return list(found.values())
    return []


def runs_whole(bound: BoundKernel) -> bool:
    """Whether some witness is small enough for its whole grid to be run, so that holes in outputs show."""
    return any(w.cta_count * len(bound.roles) <= WHOLE for w in witnesses(bound).witnesses)


def _all_proved(bound: BoundKernel) -> bool:
    """Whether the text proves all indices inside for every shape, so that none need be tried."""
    d = decide(bound)
    return not any(g.region is not None for g in (*d.open, *(g for g, _ in d.refuted)))


def races_property(bound: BoundKernel, found: list[Diagnostic], shapes: int) -> Property:
    """Whether CTAs and roles touch elements of one `InOut` tensor in order."""
    name = "global races"
    facts = region_facts(bound)
    shared = [t for t in bound.tensors if t.direction == "InOut"]
    touches = [
        (op, n, r) for op in walk(bound.body) if isinstance(op, Op) for n, r in regions(op) if r.tensor in shared
    ]
    modes: dict[Tensor, set[str]] = {}
    for op, n, r in touches:
        modes.setdefault(r.tensor, set()).add(mode_of(op, n))
    mixed = {t for t, how in modes.items() if "write" in how or len(how) > 1}
    if any(d.rule == RACE for d in found):
        return Property(name, "refuted", f"{shapes} witness shapes", RACE)
    if not mixed:
        return Property(
            name, "proved", "all shapes", "no tensor is both written and touched otherwise, reductions commute"
        )
    if facts.announced:
        reason = "a grid sync or polled flags order CTAs; across clusters that is not followed"
        return Property(name, "undecided", "accesses of different clusters", reason)
    loose = sorted({r.tensor.name for op, _, r in touches if r.tensor in mixed and not facts.certain(op, r)})
    if loose:
        return Property(name, "undecided", "all shapes", f"data decide which elements are touched: {', '.join(loose)}")
    if not shapes:
        return Property(name, "undecided", "no witness shape", "no shape was run")
    return Property(name, "checked", f"{shapes} witness shapes, all CTAs", "inside a cluster by the order reading")


def _larger(skeleton: _Regions, base: Witness) -> Iterator[Witness]:
    """The witness with two more tiles in one tiled extent of an output at a time: a launch of too few CTAs leaves a hole
    there. The witnesses are made for rings and tails and need not have more tiles than a fixed grid has CTAs."""
    bound = skeleton.bound
    shape, dims = base.shape, {v: n for n, v in bound.dims.items()}
    agents = sum(1 if r.unit == "thread" else r.count for r in bound.roles)
    steps: dict[str, int] = {}
    for t, writers in region_facts(bound).writers.items():
        for _, r in writers if t.direction == "Out" else ():
            for d, x in zip(r.dims, t.extents, strict=True):
                if isinstance(x, SVar) and x.var in dims and d.kind != "gather":
                    name = dims[x.var]
                    steps[name] = max(steps.get(name, 0), 1 if d.kind == "index" else d.size)
    for name, step in steps.items():
        many = step * max(r.count for r in bound.roles)
        for value in (
            shape[name] + 2 * many + 8 * (step > 8),
            shape[name] + 2 * many,
            shape[name] + 2 * step,
            4 * shape[name],
        ):
            larger = {**shape, name: value}
            env = skeleton.environment(larger, {}, base.sms)
            if skeleton.admits(env):
                ctas = skeleton.cta_count(env)
                if 0 < ctas * agents <= AGENTS // 6:
                    yield replace(base, dims=tuple(larger.items()), ctas=(), cta_count=ctas, goal=f"large {name}")
                    break


def _spread(skeleton: _Regions, chosen: list[Witness]) -> Iterator[Witness]:
    """The largest witness on three SMs, with data that rise: work that several CTAs share shows only where there are some."""
    found = []
    for w in chosen:
        env = skeleton.environment(w.shape, {}, 3)
        ctas = skeleton.cta_count(env) if w.sms < 3 and skeleton.admits(env) else 0
        if w.cta_count < ctas <= AGENTS // 6:
            found.append(replace(w, sms=3, ctas=(), cta_count=ctas, goal="three SMs"))
    for w in sorted(found, key=lambda w: -sum(w.shape.values()))[:1]:
        tops = sorted(set(w.shape.values()), reverse=True)[:3] if skeleton.int_loads else [0]
        yield from (replace(w, oracle=DataOracle("ramp", top, w.oracle.rounds)) for top in tops)


def _ragged(skeleton: _Regions, base: Witness) -> Iterator[Witness]:
    """Loaded integers that rise: as offsets of three groups (sequences, experts) that all have rows and meet each other, and as
    three rows that differ."""
    bound = skeleton.bound
    names = {v: n for n, v in bound.dims.items()}
    loads = [s.operands["src"].tensor for s in skeleton.int_loads if isinstance(s.operands.get("src"), Region)]
    groups = {names[v] for t in loads for x in t.extents[-1:] for v in sx_vars(x) if v in names}
    facts = region_facts(bound)
    chosen = {
        names[x.var]: None
        for t, writers in facts.writers.items()
        for _, r in writers
        for d, x in zip(r.dims, t.extents, strict=True)
        if isinstance(x, SVar) and x.var in names and facts.depends(d.start)
    }
    agents = sum(1 if r.unit == "thread" else r.count for r in bound.roles)

    def at(shape: dict[str, int], top: int | None, goal: str) -> Iterator[Witness]:
        env = skeleton.environment(shape, {}, base.sms)
        ctas = skeleton.cta_count(env) if skeleton.admits(env) else 0
        if 0 < ctas * agents <= AGENTS // 4:
            most = max(int(skeleton._extent[t][-1](env)) for t in loads if t.extents) - 1
            oracle = replace(base.oracle, pattern="ramp", top=most if top is None else top, rounds=1)
            yield replace(base, dims=tuple(shape.items()), ctas=(), cta_count=ctas, oracle=oracle, goal=goal)

    for name in chosen if groups else ():
        if name in groups:
            yield from at({**base.shape, **dict.fromkeys(groups, 3)}, None, f"three rows of {name}")
            continue
        for value in (6, 12, 48, 96, 384):
            shape = {**base.shape, **dict.fromkeys(groups, 3), name: value}
            if skeleton.admits(skeleton.environment(shape, {}, base.sms)):
                yield from at({**shape, name: 3}, None, f"three rows of {name}")
                yield from at(shape, value, f"{name} in three parts")
                break


def _check(skeleton: _Regions, facts: RegionFacts, w: Witness, writes: bool) -> Iterator[Diagnostic]:
    """One witness. With `writes` all CTAs, so that holes are holes; otherwise the first and last ones."""
    import numpy as np

    bound = skeleton.bound
    env = skeleton.environment(w.shape, {}, w.sms)
    shapes = {t: tuple(int(e(env)) for e in skeleton._extent[t]) for t in bound.tensors}
    counts: dict[Tensor, Any] = {}
    for t in bound.tensors:
        if writes and t.direction == "Out" and 0 < _size(shapes[t]) <= ELEMENTS:
            counts[t] = np.zeros(shapes[t], np.uint8)
    ctas = (
        None
        if writes
        else tuple(sorted({*w.ctas, *(c for c in (0, 1, w.cta_count - 2, w.cta_count - 1) if 0 <= c < w.cta_count)}))
    )
    shared = {
        t: _Owners(shapes[t]) for t in bound.tensors if t.direction == "InOut" and 0 < _size(shapes[t]) <= ELEMENTS
    }
    if not writes or facts.announced:
        shared = {}
    last: dict[Tensor, Op] = {}
    distinct = distinct_data(bound, w)
    skeleton.trail.clear()
    try:
        traces = skeleton.run(w.shape, None, w.sms, w.oracle, ctas, limit=LIMIT)
    except AssumeViolated:  # the data do not fit; what does not depend on them may be wrong all the same
        for e in skeleton.trail:
            for name, at in e.vals.items():
                r = e.node.operands[name]
                fault = _outside(r, at.dims, shapes[r.tensor]) if facts.certain(e.node, r) else None
                if fault:
                    yield _finding(bound, OUTSIDE, e.node.span, f"{e.node.name} {fault}", r.tensor, w, e.node, None)
                    return
        return
    for trace in traces:
        for e in iter_events(trace.events):
            op = e.node
            if not isinstance(op, Op):
                continue
            for name, at in e.vals.items():
                r = op.operands[name]
                t = r.tensor
                if not facts.known(op, name):
                    continue
                fault = _outside(r, at.dims, shapes[t], op.name in UNCLIPPED)
                if fault:
                    yield _finding(bound, OUTSIDE, op.span, f"{op.name} {fault}", t, w, op, trace)
                    return
                if t in shared and facts.certain(op, r):
                    # inside a cluster the order reading follows syncs and barriers
                    agent = (
                        trace.cta // bound.launch.cluster if facts.ordered else (trace.cta, trace.role, trace.instance)
                    )
                    other = shared[t].meet(agent, trace, op, mode_of(op, name), at.dims)
                    if other is not None:
                        text = f"{op.name} touches elements of {t.name} that {other[1]} touches ({other[0].name}), nothing orders the two"
                        yield _finding(bound, RACE, op.span, text, t, w, op, trace, other[0])
                        return
                if t not in counts or mode_of(op, name) != "write" or not (distinct or facts.certain(op, r)):
                    continue
                part = counts[t][tuple(slice(a, max(a, b)) for a, b in at.dims)]
                if part.size and part.max():
                    first = [int(i) for i in np.argwhere(part)[0]]
                    where = [a + i for (a, _), i in zip(at.dims, first, strict=True)]
                    text = f"{op.name} writes {t.name}{where} a second time"
                    yield _finding(bound, TWICE, op.span, text, t, w, op, trace, last.get(t))
                    return
                part += 1
                last[t] = op
    writers = facts.writers
    for t, count in counts.items():
        if not all(facts.certain(op, r) and op.operands.get("when") is None for op, r in writers.get(t, ())):
            continue
        if writers.get(t) and not count.all():
            holes = np.argwhere(count == 0)
            op = writers[t][0][0]
            text = f"{len(holes)} of {count.size} elements of {t.name} are never written, the first is {t.name}{holes[0].tolist()}"
            yield _finding(bound, UNWRITTEN, op.span, text, t, w, op, None)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


class _Owners:
    """Who read and who wrote the elements of an InOut tensor: numbers of agents, 0 nobody, -1 several. An agent is a role instance, or
    all of a cluster; their traces come one after the other."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        import numpy as np

        self.by = {mode: np.zeros(shape, np.int32) for mode in ("write", "read", "update")}
        self.agents: list[Any] = []
        self.labels: list[str] = []
        self.ops: dict[tuple[int, str], Op] = {}

    def meet(
        self, agent: Any, trace: Any, op: Op, mode: str, dims: tuple[tuple[int, int], ...]
    ) -> tuple[Op, str] | None:
        """Notes an access; the op and agent that it meets unordered. Reads may meet each other, and so may reductions (update)."""
        if not self.agents or self.agents[-1] != agent:
            self.agents.append(agent)
            self.labels.append(trace.label)
        me, part = len(self.agents), tuple(slice(a, max(a, b)) for a, b in dims)
        self.ops[me, mode] = op
        for how, store in self.by.items():
            if how == mode != "write":
                continue
            here = store[part]
            foreign = here[(here != 0) & (here != me)]
            if foreign.size:
                who = max(int(foreign[0]), 1)  # of several the first
                return self.ops.get((who, how), op), self.labels[who - 1]
        here = self.by[mode][part]
        here[...] = here * 0 + me if mode == "write" else self._joined(here, me)
        return None

    @staticmethod
    def _joined(here: Any, me: int) -> Any:
        import numpy as np

        return np.where((here == 0) | (here == me), me, -1)


def _outside(
    r: Region, dims: tuple[tuple[int, int] | None, ...], shape: tuple[int, ...], whole: bool = False
) -> str | None:
    """The first dimension of a region that leaves its tensor where nothing clips it. whole: not even its end is clipped."""
    for i, (d, at) in enumerate(zip(r.dims, dims, strict=True)):
        if at is None:
            continue
        start = at[0]
        if d.kind == "index" and not 0 <= start < shape[i]:
            return f"uses index {start} of dimension {i} of {r.tensor.name}, whose extent is {shape[i]}"
        if d.kind == "slice" and start < 0:
            return f"uses a region of {r.tensor.name} that starts at {start} in dimension {i}"
        if whole and d.kind == "slice" and start + d.size > shape[i]:
            return (
                f"copies {d.size} elements from {start} on in dimension {i} of {r.tensor.name}, whose extent is {shape[i]}, "
                "and does not clip"
            )
    return None


CONTRACTS = {
    UNWRITTEN: "Out: every element is written exactly once.",
    TWICE: "Out: every element is written exactly once.",
    RACE: "Two agents touch one element of a tensor only if both read it, or if something orders them.",
    OUTSIDE: "An index lies inside its dimension; a region starts at 0 or later (only its end is clipped).",
}


def _finding(
    bound: BoundKernel,
    rule: str,
    span: Span,
    text: str,
    t: Tensor,
    w: Witness,
    op: Op,
    trace: Any,
    other: Op | None = None,
) -> Diagnostic:
    who = f" ({trace.label})" if trace is not None else ""
    related = (
        (Related(span=other.span, message=f"{t.name} is written here before"),) if other and other is not op else ()
    )
    return Diagnostic(
        rule=rule, family="data", severity="error", message=f"{text}{who} [{w.describe()}]", contract=CONTRACTS[rule], span=span,
        related=related, subject=Subject(kernel=bound.name, role=trace.role.name if trace else None, resource=t.name, op=op.name),
    )  # fmt: skip
