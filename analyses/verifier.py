"""`verify`: all readings of one bound program that need no numbers, in layers, as one report.

Layers: text and binding happened before (a BoundKernel exists); derivation; resources (static rules); progress and
data (the order reading on the witness shapes); performance (warnings and advice). A failed layer skips the layers that
it makes meaningless, and the report says so. Static facts are *proved*; the order reading *checks* the shapes it ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from analyses.context import Context
from analyses.ledger import ledger
from analyses.memory import memory_table
from analyses.registers import budget
from analyses.report import LAYERS, Property, Report
from cake_ir.binding.program import KernelLaunch
from cake_ir.bound import BoundKernel, While, walk
from cake_ir.collector import seldom_collected
from cake_ir.derive import Derived, derive
from cake_ir.diagnostics import CakeError, Diagnostic, Related
from cake_ir.syntax import File

Binding = int | float | bool | str

# resource findings after which the protocol of a barrier means nothing; other full resources do not hide a race
UNCOUNTABLE = ("hardware/tx-limit", "hardware/arrival-limit", "schedule/grid-not-divisible", "data/view-out-of-bounds")
FOLLOW_FROM_STANDSTILL = ("derive/unequal-arrivals", "derive/unequal-bytes", "derive/double-expect")
_SEVERITY = {"error": 0, "warning": 1, "advice": 2}


@seldom_collected
def verify(bound: BoundKernel, prove: bool | None = False, *, brief: bool = False, deep: bool = True) -> Report:
    """The report on one bound kernel. Never raises for a faulty program.

    prove: spend the seconds that proofs of the order reading may take (docs/order-reading.md, "Cutoff"); None: make none, not
    even those that are cheap. brief: errors only, without properties, tables and advice (for programs that are only tried).
    deep: with brief, False stops behind the order reading, before what is only asked of programs without errors so far.
    """
    derived = derive(bound)
    ctx = Context(bound, derived)
    found: list[Diagnostic] = list(derived.diagnostics)
    skipped: list[str] = []
    broken = {"derivation"} if _errors(derived.diagnostics) else set()
    resources = _static(ctx, "resources")
    found += resources
    if _errors(resources):
        broken.add("resources")
    properties: list[Property] = []
    if not brief:
        properties += [
            *_derived_properties(ctx),
            _resource_property(resources),
            _bounds_property(ctx),
            *_guard_property(ctx),
        ]
    coverage = [_witness_line(derived)] if derived.witnesses else []
    stop = sorted(
        {d.rule for d in derived.diagnostics if d.severity == "error"}
        | {d.rule for d in found if d.severity == "error" and d.rule in UNCOUNTABLE}
    )
    if stop:
        why = f"barriers cannot be modelled ({', '.join(stop)})"
        skipped += [f"progress: {why}", f"data: {why}"]
        properties += [
            Property("progress", "undecided", "not run", why),
            Property("data order", "undecided", "not run", why),
        ]
    else:
        from analyses.order import check_order

        order = check_order(bound, derived, prove)
        found += order.diagnostics
        properties = [*_with_cutoff(properties, order.cutoff), *order.properties]
        coverage += order.coverage
        if _errors(order.diagnostics):
            broken.add("order")
        if not broken and (deep or not brief):
            from analyses.loops import check_loops

            endless, open_end = check_loops(bound, derived)
            found += endless
            properties = properties if brief else _with_loops(ctx, properties, endless, open_end)
            if endless:
                broken.add("order")
    if brief and not deep:
        return _brief(found)
    if broken:
        skipped.append("outputs: whether every output is written once is asked of programs without other errors")
    else:
        from analyses.bounds_findings import OUTSIDE, bounds_properties, check_bounds
        from analyses.outputs import check_outputs, races_property, runs_whole

        outputs = check_outputs(bound)
        outside = any(d.rule == OUTSIDE for d in outputs)
        outputs += [d for d in check_bounds(bound) if not outside or d.rule != OUTSIDE]
        outside = any(d.rule == OUTSIDE for d in outputs)
        found += outputs
        if not brief:
            properties += bounds_properties(bound, outside, len(derived.witnesses))
            properties.append(_outputs_property(derived, outputs, runs_whole(bound)))
            properties.append(races_property(bound, outputs, len(derived.witnesses)))
        if outputs:
            broken.add("outputs")
    if not broken:
        from analyses.tags import check_tags

        tagged, tag_properties = check_tags(bound, derived)
        found += tagged
        properties += tag_properties
        if tagged:
            broken.add("tags")
    if broken:
        skipped.append("performance: advice is given on programs without errors")
    elif not brief:
        found += _static(ctx, "performance")
    if brief:
        return _brief(found)
    return Report(
        diagnostics=_tidy(found),
        properties=tuple(properties),
        ledger=ledger(ctx),
        memory=memory_table(ctx),
        registers=budget(bound, derived),
        coverage=tuple(coverage),
        skipped=tuple(skipped),
    )


def static_faults(bound: BoundKernel) -> tuple[Diagnostic, ...]:
    """The errors that `verify` finds without running anything: of derivation and of resources. For choosing among many bindings of one
    program before the readings that take longer; what passes is not verified yet."""
    derived = derive(bound)
    found = [*derived.diagnostics, *_static(Context(bound, derived), "resources")]
    return tuple(d for d in _tidy(found) if d.severity == "error")


def _brief(found: Iterable[Diagnostic]) -> Report:
    return Report(tuple(d for d in _tidy(found) if d.severity == "error"))


@seldom_collected
def verify_text(
    text: str,
    bindings: Mapping[str, Binding] | None = None,
    target: str | None = None,
    kernel: str | None = None,
    *,
    fixes: bool = False,
    prove: bool = False,
    name: str = "<text>",
) -> Report:
    """Parse, bind and verify a text. With several kernels and no `kernel`, all of them (with a @program: as its launches bind
    them), one report.

    prove: see `verify`. fixes: look for machine-applicable repairs as well (each one verified on a copy), see `analyses.fixes`.
    """
    from cake_ir import parse

    kernels: list[BoundKernel] = []
    parsed = parse(text, name)
    if parsed.file is None:
        report = Report(
            _tidy(parsed.diagnostics), skipped=tuple(f"{layer}: the text does not parse" for layer in LAYERS[1:])
        )
    else:
        reports: list[Report] = []
        for one in bound_kernels(parsed.file, dict(bindings or {}), target, kernel, name):
            if isinstance(one, BoundKernel):
                kernels.append(one)
                reports.append(verify(one, prove))
            else:
                reports.append(Report(_tidy(one), skipped=_unbound()))
        report = _join(reports)
    if fixes and not report.accepted:
        from analyses.fixes import with_fixes

        of: dict[str, Any] = {"bindings": bindings, "target": target, "kernel": kernel, "bound": kernels}
        report = replace(report, diagnostics=with_fixes(report.diagnostics, text, **of))
    return report


def bound_kernels(
    file: File, bindings: dict[str, Binding], target: str | None, kernel: str | None, name: str = "<text>"
) -> Iterator[BoundKernel | tuple[Diagnostic, ...]]:
    """What `verify_text` looks at, one by one: bound kernels, or the binder's findings on one that does not bind."""
    from cake_ir import bind, bind_program

    if file.program is not None and kernel is None:
        bound = bind_program(file, bindings, target)
        if bound.program is None:
            yield bound.diagnostics
            return
        from analyses.program import check_program

        faults = check_program(bound.program)
        if faults:
            yield tuple(faults)
            return
        yield from {id(s.kernel): s.kernel for s in bound.program.steps if isinstance(s, KernelLaunch)}.values()
        return
    names = [kernel] if kernel is not None or len(file.kernels) == 1 else [k.name for k in file.kernels]
    for one in names:
        result = bind(file, bindings, target, one, name)
        yield result.bound or result.diagnostics


def _unbound() -> tuple[str, ...]:
    return tuple(f"{layer}: the program does not bind" for layer in LAYERS[2:])


def _join(reports: list[Report]) -> Report:
    """One report of several kernels; the memory table is per kernel, so it is kept for one only."""
    if len(reports) == 1:
        return reports[0]
    return Report(
        _tidy(d for r in reports for d in r.diagnostics),
        tuple(p for r in reports for p in r.properties),
        tuple(x for r in reports for x in r.ledger),
        {},
        tuple(x for r in reports for x in r.registers),
        tuple(c for r in reports for c in r.coverage),
        tuple(s for r in reports for s in r.skipped),
    )


# ---- layers


@lru_cache(maxsize=1)
def _checks() -> tuple[tuple[str, str, Any], ...]:
    """(layer, rule id, check) of all rules that bring a check of their own."""
    from analyses.rules import registry

    return tuple((p.rule.layer, p.rule.id, p.check) for p in registry().values() if p.check is not None)


def _static(ctx: Context, layer: str) -> list[Diagnostic]:
    found: list[Diagnostic] = []
    for where, _, check in _checks():
        if where == layer:
            try:
                found += check(ctx)
            except CakeError as fault:  # an unknown fact of a target is reported, not guessed
                found.append(fault.diagnostic)
    return found


# ---- properties


def _derived_properties(ctx: Context) -> list[Property]:
    d = ctx.derived
    scope = f"{len(d.witnesses)} witness shapes"
    faults = {x.rule for x in d.diagnostics if x.severity == "error"}
    counts = [Property("types, forms and units", "proved", "all shapes that `where` admits")]
    for name, rules in (
        (
            "arrival counts",
            {"derive/unequal-arrivals", "derive/asserted-arrivals", "derive/no-arrival", "derive/data-dependent"},
        ),
        (
            "expected bytes",
            {
                "derive/unequal-bytes",
                "derive/asserted-bytes",
                "derive/expect-without-copies",
                "derive/unexpected-bytes",
                "derive/double-expect",
            },
        ),
    ):
        bad = sorted(faults & rules)
        if bad:
            counts.append(Property(name, "refuted", scope, ", ".join(bad)))
        elif not any(b.kind == "mbarrier" for b in ctx.bound.barriers):
            continue
        elif not d.witnesses:
            counts.append(_no_shape(name, d))
        else:
            counts.append(Property(name, "checked", scope))
    return counts


def _with_cutoff(properties: list[Property], cutoff: Any) -> list[Property]:
    """Counts and bytes hold for all shapes where the runs of the order reading decide all of them."""
    if cutoff is None:
        return properties
    from analyses.order.check import proved

    return [
        p
        if p.verdict != "checked" or p.name not in ("arrival counts", "expected bytes")
        else proved(p.name, cutoff)
        if cutoff.holds
        else replace(p, reason=f"not proved: {cutoff.reason}")
        for p in properties
    ]


def _with_loops(ctx: Context, properties: list[Property], endless: list[Diagnostic], open_end: str) -> list[Property]:
    """Progress also needs that every `while` ends, which no argument from the text shows. open_end: why it is not known."""
    lines = sorted({s.span.line for s in walk(ctx.bound.body) if isinstance(s, While)})
    if not lines:
        return properties
    rest = [p for p in properties if p.name != "progress"]
    before = next(p for p in properties if p.name == "progress")
    if endless:
        return [*rest, Property("progress", "refuted", "data that the kernel admits", endless[0].rule)]
    if open_end or (before.verdict == "proved" and not ctx.derived.witnesses):
        return [*rest, Property("progress", "undecided", "random data", open_end or ctx.derived.no_shape)]
    if before.verdict == "proved":
        where = f"while at line {', '.join(map(str, lines))}"
        shapes = f"{len(ctx.derived.witnesses)} witness shapes"
        return [
            *rest,
            replace(before, verdict="checked", scope=shapes, reason=f"{where} ends there, and on random data"),
        ]
    return properties


def _resource_property(found: Iterable[Diagnostic]) -> Property:
    bad = sorted({d.rule for d in found if d.severity == "error"})
    if bad:
        return Property("resources", "refuted", "this binding", ", ".join(bad))
    return Property(
        "resources",
        "proved",
        "all shapes; this binding and target",
        "shared and tensor memory, threads, barriers, register pool",
    )


def _bounds_property(ctx: Context) -> Property:
    """Whether every view lies inside its tile for every value of its index variables."""
    from analyses.bounds_findings import VIEW, check_views, open_views

    if check_views(ctx.bound):
        return Property("on-chip bounds", "refuted", "a shape that `where` admits", VIEW)
    open_ends = open_views(ctx.bound)
    if not open_ends:
        return Property("on-chip bounds", "proved", "all shapes that `where` admits")
    if not ctx.derived.witnesses:
        return _no_shape("on-chip bounds", ctx.derived)
    return Property(
        "on-chip bounds",
        "checked",
        f"{len(ctx.derived.witnesses)} witness shapes",
        "not bounded by the text alone: " + ", ".join(open_ends[:4]),
    )


def _no_shape(name: str, d: Derived) -> Property:
    return Property(name, "undecided", "no witness shape", d.no_shape)


def _outputs_property(derived: Derived, found: list[Diagnostic], whole: bool) -> Property:
    """Whether outputs are written once and global indices lie inside."""
    scope = f"{len(derived.witnesses)} witness shapes"
    if found:
        return Property("global regions", "refuted", scope, ", ".join(sorted({d.rule for d in found})))
    if not derived.witnesses:
        return _no_shape("global regions", derived)
    if not whole:
        return Property(
            "global regions", "undecided", scope, "every grid is too large to be run whole: holes were not sought"
        )
    return Property(
        "global regions", "checked", scope, "outputs whose rows or masks depend on data are left to evaluation"
    )


def _guard_property(ctx: Context) -> list[Property]:
    """Alignment of global operands: by `where`, or by a guard that the launcher checks."""
    if not ctx.derived.guards:
        return []
    left = []
    for g in ctx.derived.guards:
        if g.kind == "stride" and g.value is not None:
            size = max(1, g.modulus * 8 // g.tensor.dtype.bits)
            d = ctx.divisor(g.value)
            if d and d % size:
                left.append(f"stride {g.dim} of {g.tensor.name} is a multiple of {g.modulus} B")
        elif g.kind == "extent":
            left.append(f"an extent of {g.tensor.name}")
    bases = sorted({g.tensor.name for g in ctx.derived.guards if g.kind == "base"})
    reason = f"base addresses of {', '.join(bases)} are checked before each launch" if bases else ""
    if left:
        reason += ("; " if reason else "") + "and: " + "; ".join(left)
    return [Property("global alignment", "proved", "launches that pass the guards", reason)]


def _witness_line(d: Derived) -> str:
    shown = "; ".join(f"{w.goal}: {w.describe()}" for w in d.witnesses[:3])
    more = f"; and {len(d.witnesses) - 3} more" if len(d.witnesses) > 3 else ""
    unmet = f" Not reached: {', '.join(d.unmet_goals)}." if d.unmet_goals else ""
    return f"{len(d.witnesses)} witness shapes: {shown}{more}.{unmet}"


# ---- findings


def _errors(found: Iterable[Diagnostic]) -> bool:
    return any(d.severity == "error" for d in found)


def _tidy(found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Sorted by severity and place; one finding per rule and place, and per rule and resource at one line."""
    kept: dict[tuple[Any, ...], Diagnostic] = {}
    for d in _causes(list(found)):
        key = (d.rule, d.span.line, d.span.col, d.subject.resource)
        kept.setdefault(key, d)
    found = (with_contract(d) for d in kept.values())
    return tuple(sorted(found, key=lambda d: (_SEVERITY[d.severity], d.span.line, d.span.col, d.rule)))


def with_contract(d: Diagnostic) -> Diagnostic:
    """The diagnostic with the broken contract in one sentence, taken from the rule's page where the finder gave none."""
    if d.contract:
        return d
    from analyses.rules import contract_of

    text = contract_of(d.rule)
    return d.model_copy(update={"contract": text}) if text else d


def _causes(found: list[Diagnostic]) -> list[Diagnostic]:
    """Without findings that only follow from another one. An expect and a copy of one role that name different uses
    of a barrier show twice; the expect is reported and points at the copy."""
    unmatched = {(d.subject.role, d.subject.resource): d for d in found if d.rule == "derive/expect-without-copies"}
    copies = [
        d for d in found if d.rule == "derive/unexpected-bytes" and (d.subject.role, d.subject.resource) in unmatched
    ]
    still = any(d.rule == "sync/use-not-advanced" for d in found)
    stray = {(d.subject.role, d.subject.resource) for d in found if d.rule == "derive/unexpected-bytes"}
    out: list[Diagnostic] = []
    rules = {d.rule for d in found}
    lost = "derive/unexpected-bytes" in rules  # a copy without its announcement skews every count behind it
    torn = "schedule/grid-not-divisible" in rules  # a cluster that is not whole counts nothing right
    ragged = rules & {"hardware/setmaxnreg-range", "hardware/setmaxnreg-warpgroup"}  # no pool to add up
    units: dict[tuple[Any, ...], int] = {}
    for d in found:
        if ragged and d.rule == "sync/register-pool":
            continue
        if d.rule in ("hardware/illegal-unit", "hardware/feature-missing"):
            # a role of the wrong unit shows at each of its ops, a wrong target at each op that it lacks
            unit = d.subject.role if d.rule == "hardware/illegal-unit" else ""
            who = (
                d.rule,
                d.subject.kernel,
                unit,
                d.message.rpartition("here the unit is" if unit else " exist on ")[2],
            )
            if who in units:
                first = out[units[who]]
                also = (*first.related, Related(span=d.span, message=d.message))
                out[units[who]] = first.model_copy(update={"related": also[:8]})
                continue
            units[who] = len(out)
        if lost and d.rule == "derive/unequal-arrivals":
            continue
        if torn and d.rule.startswith("derive/") and d.severity == "error":
            continue
        if d.rule == "derive/unequal-bytes" and (d.subject.role, d.subject.resource) in stray:
            continue  # bytes that went to another use are missing here
        if d in copies or (still and d.rule in FOLLOW_FROM_STANDSTILL):
            continue  # uneven counts follow from the use number that stands still
        if unmatched.get((d.subject.role, d.subject.resource)) is d:
            follow = tuple(
                Related(span=c.span, message=c.message)
                for c in copies
                if c.subject == d.subject.model_copy(update={"op": c.subject.op})
            )
            d = d.model_copy(update={"related": d.related + follow})
        out.append(d)
    return out


def render(report: Report) -> str:
    """The whole report as plain text."""
    from analyses import ledger as ledgers
    from analyses import memory, registers

    parts = ["\n".join(d.render() for d in report.diagnostics) or "no findings"]
    if report.accepted and report.undecided:
        parts.append("accepted, but undecided and so not proved: " + ", ".join(p.name for p in report.undecided))
    parts.append(
        "\n".join(
            f"{p.name}: {p.verdict} ({p.scope})" + (f"; {p.reason}" if p.reason else "") for p in report.properties
        )
    )
    for title, text in (
        ("barriers", ledgers.render(report.ledger)),
        ("memory", memory.render(report.memory)),
        ("registers", registers.render(report.registers)),
    ):
        if text:
            parts.append(f"{title}\n{text}")
    if report.skipped:
        parts.append("not checked\n" + "\n".join(f"  {s}" for s in report.skipped))
    if report.coverage:
        parts.append("coverage\n" + "\n".join(f"  {c}" for c in report.coverage))
    return "\n\n".join(p for p in parts if p)
