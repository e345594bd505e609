"""`check_tags`: runs a kernel with products on a few witness shapes and judges what its tiles hold."""

from __future__ import annotations

from dataclasses import replace

from analyses.report import Property
from analyses.tags.laws import Finding, Laws
from analyses.tags.run import AllLets, Run
from analyses.tags.schedule import Stuck
from analyses.tags.sources import Sources
from analyses.tags.values import Values
from cake_ir.bound import BoundKernel, Op, walk
from cake_ir.derive import Derived
from cake_ir.diagnostics import Diagnostic, Related, Subject
from cake_ir.skeleton import AssumeViolated, SkeletonLimit
from cake_ir.witness import Witness

PRODUCTS = ("wgmma", "mma", "tcgen05_mma")
LIMIT = 2500
"""Events of one run; a shape that needs more is left out."""
SHAPES, ENOUGH = 2, 1500
"""Shapes to follow, while those before had not more events."""


def check_tags(bound: BoundKernel, derived: Derived) -> tuple[list[Diagnostic], list[Property]]:
    """Findings on the first shape that shows one, and the verdict on the property `data tags`."""
    if not any(isinstance(s, Op) and s.name in PRODUCTS for s in walk(bound.body)):
        return [], [Property("data tags", "proved", "all shapes", "the kernel has no tensor-core product")]
    skeleton, sources = AllLets(bound), Sources(bound)
    ran, why = 0, derived.no_shape or "no witness shape is short enough"
    events, longer = 0, False
    widths: dict[str, int] = {}
    shapes = _chosen(derived)
    # where those are too long, the largest of the others that is not
    spare = sorted((w for w in derived.witnesses if w not in shapes), key=lambda w: sum(w.shape.values()))
    for w in shapes:
        laws = Laws(Values(), skeleton.extents(w.shape, w.sms))
        try:
            traces = skeleton.run(w.shape, None, w.sms, w.oracle, _ctas(bound, w), limit=LIMIT)
            Run(bound, derived, sources, laws).run(traces)
        except (SkeletonLimit, AssumeViolated, ArithmeticError, LookupError, ValueError):
            if w is shapes[-1] and not ran and spare:
                shapes.append(spare.pop())
            continue
        except Stuck:
            why = "the agents wait for each other in the one order that is tried"
            continue
        ran += 1
        events += sum(len(t.events) for t in traces)
        if events > ENOUGH and not longer:
            del shapes[shapes.index(w) + 1 :]
        found = _joined([_diagnostic(bound, f, w) for f in laws.findings()])
        if found:
            rules = ", ".join(sorted({d.rule for d in found}))
            return found, [Property("data tags", "refuted", f"{ran} witness shapes", rules)]
        for name, width in laws.widths().items():
            widths[name] = max(widths.get(name, 0), width)
        if w is shapes[-1] and not longer:
            longer = True
            shapes += _longer(skeleton, shapes, widths)
    if not ran:
        return [], [Property("data tags", "undecided", "not run", why)]
    reason = "slices that data choose, and what is computed from many slices, are not followed"
    return [], [Property("data tags", "checked", f"{ran} witness shapes", reason)]


def _longer(skeleton: AllLets, shapes: list[Witness], widths: dict[str, int]) -> list[Witness]:
    """The first shape with an extent over which products are summed made longer, where one slice covers all of it on every
    shape so far: the witnesses do not lengthen what no loop seems to run over."""
    base = shapes[0]
    for name, width in widths.items():
        if all(w.shape[name] <= width for w in shapes):
            for value in (2 * width + 8, 3 * width, 4 * width):
                shape = {**base.shape, name: value}
                env = skeleton.environment(shape, {}, base.sms)
                if skeleton.admits(env) and (count := skeleton.cta_count(env)) > 0:
                    return [replace(base, dims=tuple(shape.items()), cta_count=count, goal=f"long {name}")]
    return []


def _joined(found: list[Diagnostic]) -> list[Diagnostic]:
    """One finding per rule; further places of the same kind are pointed at."""
    first: dict[str, Diagnostic] = {}
    for d in found:
        if d.rule in first:
            old = first[d.rule]
            also = (*old.related, Related(span=d.span, message=d.message))
            first[d.rule] = old.model_copy(update={"related": also[:8]})
        else:
            first[d.rule] = d
    return list(first.values())


def _chosen(derived: Derived) -> list[Witness]:
    """The shapes to follow tags on: first one in which as many extents as possible are more than one tile or step, then
    those that have what is left at its largest."""
    pool = [w for w in derived.witnesses if all(w.shape.values())] or list(derived.witnesses)
    names = list(pool[0].shape) if pool else []
    steps = {n: sorted({w.shape[n] for w in pool}) for n in names}
    chosen: list[Witness] = []
    while pool and len(chosen) < SHAPES:
        left = {n for n in names if all(w.shape[n] < steps[n][-1] for w in chosen)}
        first = not chosen

        def worth(w: Witness, left: set[str] = left, first: bool = first) -> tuple[int, ...]:
            ranks = {n: steps[n].index(w.shape[n]) for n in names}
            if first:
                return sum(r > 0 for r in ranks.values()), sum(ranks.values()), w.cta_count, -sum(w.shape.values())
            return (
                sum(w.shape[n] == steps[n][-1] for n in left),
                sum(ranks.values()),
                w.cta_count,
                sum(w.shape.values()),
            )

        best = max(pool, key=worth)
        chosen.append(best)
        pool.remove(best)
    return chosen


def _ctas(bound: BoundKernel, w: Witness) -> tuple[int, ...]:
    """The first and the last cluster."""
    cluster = bound.launch.cluster
    last = max(0, w.cta_count // cluster - 1) * cluster
    return tuple(dict.fromkeys((*range(min(cluster, w.cta_count)), *range(last, min(last + cluster, w.cta_count)))))


def _diagnostic(bound: BoundKernel, f: Finding, w: Witness) -> Diagnostic:
    return Diagnostic(
        rule=f.rule, family="data", severity="error", message=f"{f.text} ({f.agent}) [{w.describe()}]", contract="",
        span=f.node.span, related=tuple(Related(span=o.span, message=m) for o, m in f.others if o is not f.node),
        subject=Subject(kernel=bound.name, resource=f.resource or None, op=getattr(f.node, "name", None)),
    )  # fmt: skip
