"""What the estimate becomes for each neighbour of a program: one stage more, another tile, a cluster.

Each neighbour is bound, put through the verifier's gates on a few small shapes, and estimated. One that is rejected is kept with the
rule that rejects it: "5 stages need 14 KB more than a block has" says what the schedule has no room for. The gates are the static
rules and the order reading on the first witness shapes of the original, for edited texts also what verification asks of outputs;
that is no full verification, which only what is offered gets (`analyses.cost.advice`).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from analyses.cost.changes import Change, Kind, Value, changes, fewer_registers, near
from analyses.cost.estimate import L2, Estimate, estimate_on, fits
from analyses.cost.limiters import occupancy_limit
from analyses.cost.machine import Machine
from analyses.fixtext import apply
from analyses.verifier import verify
from cake_ir import bind, parse
from cake_ir import syntax as S
from cake_ir.bound import BoundKernel
from cake_ir.derive.memory import memory_map
from cake_ir.diagnostics import CakeError, Diagnostic, Edit, Span
from cake_ir.memo import forget, memo
from cake_ir.skeleton import compile_skeleton
from cake_ir.witness import Witness, WitnessSet, witnesses

FEW = 2
"""Witness shapes of the original on which a neighbour is looked at."""
MOST = 24
"""Neighbours of one program; some sixty milliseconds each."""
HELPS = 0.005
"""By how much of the time a step must help for a larger one to be tried."""
REGISTER_STEP = 8
"""setmaxnreg takes multiples of it (PTX ISA)."""
CAPACITY = "hardware/smem-capacity"
WHERE = "language/where-unsatisfied"


@dataclass(frozen=True)
class Subject:
    """The program that is explained: its text, what it was bound with, the kernel's tree and bound form, and where it runs."""

    text: str
    bindings: Mapping[str, Value]
    target: str | None
    file: S.File
    kernel: S.Kernel
    bound: BoundKernel
    shape: Mapping[str, int]
    machine: Machine
    l2: L2

    @staticmethod
    def of(
        text: str, shape: Mapping[str, int], bindings: Mapping[str, Value] | None, target: str | None, kernel: str | None,
        machine: Machine | None, device: str | None, l2: L2,
    ) -> Subject:  # fmt: skip
        """Parses and binds. machine: at hand, else the device's. Raises CakeError with the first finding of a text that does not parse
        or bind, and `cost/unknown-device`."""
        from analyses.cost.calibration import find

        parsed = parse(text)
        if parsed.file is None:
            raise CakeError(parsed.diagnostics[0])
        done = bind(parsed.file, dict(bindings or {}), target, kernel)
        if done.bound is None:
            raise CakeError(done.diagnostics[0])
        tree = next(k for k in parsed.file.kernels if k.name == done.bound.name)
        if machine is None:
            machine = Machine.of(done.bound.target, find(done.bound.target.name, device))
        return Subject(text, dict(bindings or {}), target, parsed.file, tree, done.bound, dict(shape), machine, l2)

    def estimate(
        self, bound: BoundKernel | None = None, without: frozenset[str] = frozenset(), explain: bool = False
    ) -> Estimate:
        """At the shape, on the machine."""
        return estimate_on(
            bound or self.bound, dict(self.shape), self.machine, l2=self.l2, without=without, explain=explain
        )

    def with_values(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """All bindings with some tunables of the kernel changed, under the names that were given (`NAME` or `KERNEL.NAME`)."""
        out = dict(self.bindings)
        for name, value in values.items():
            long = f"{self.kernel.name}.{name}"
            out[long if long in out else name] = value
        return out

    def bind(self, change: Change) -> BoundKernel | tuple[Diagnostic, ...]:
        """The neighbour, or the findings on one that does not parse or bind."""
        file = self.file
        if change.edits:
            parsed = parse(apply(self.text, change.edits))
            if parsed.file is None:
                return parsed.diagnostics
            file = parsed.file
        done = bind(file, self.with_values(change.bindings), self.target, self.kernel.name)
        return done.bound or done.diagnostics


@dataclass(frozen=True)
class Neighbour:
    """A change and what comes of it. time_us and saves_us (now less then; negative: it gets slower) where it passes the gates, else
    `rule` and `message`: why it does not. effect: how the grid changes. verified: by the whole verifier; None: not asked."""

    what: str
    kind: Kind
    bindings: Mapping[str, Value] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()
    time_us: float | None = None
    saves_us: float | None = None
    effect: str = ""
    rule: str = ""
    message: str = ""
    verified: bool | None = None


def sensitivity(subject: Subject, now: Estimate) -> tuple[Neighbour, ...]:
    """All neighbours, the fastest first, the rejected ones last. now: the estimate of the program itself."""
    target = subject.bound.target
    features = frozenset(f for f in ("cluster", "griddepcontrol") if target.has(f))
    known = changes(subject.text, subject.kernel, subject.bound.tunables, features)
    known += _fewer_registers(subject)
    rings = {name for c in known if c.kind == "stages" for name in c.bindings}
    found: dict[str, Neighbour] = {}
    for change in known:
        earlier = found.get(change.group)
        if change.after and not _helped(found, change.after, now):
            continue
        if (earlier is None and len(found) < MOST) or (earlier is not None and earlier.rule.startswith("language/")):
            found[change.group] = tried = _try(subject, change, now)
            for other in _refitted(subject, change, tried, sorted(rings - change.bindings.keys())):
                found[f"{change.group}, {other.group}"] = _try(subject, other, now)
    return tuple(sorted(found.values(), key=_order))


def _order(n: Neighbour) -> tuple[bool, float]:
    """Fastest first; of those that three digits do not tell apart the one tried first, which changes least."""
    return n.time_us is None, float(f"{n.time_us or 0.0:.3g}")


def _try(subject: Subject, change: Change, now: Estimate) -> Neighbour:
    done = Neighbour(change.what, change.kind, dict(change.bindings), change.edits)
    bound = subject.bind(change)
    if not isinstance(bound, BoundKernel):
        return _rejected(subject.text, done, bound)
    faults = gates(bound, witnesses(subject.bound).witnesses, outputs=bool(change.edits))
    if faults:
        return _rejected(subject.text, done, faults)
    try:
        found = subject.estimate(bound)
    except CakeError as fault:
        return _rejected(subject.text, done, (fault.diagnostic,))
    saves = now.time_us - found.time_us
    return replace(done, time_us=found.time_us, saves_us=saves, effect=_effect(now, found))


def _effect(now: Estimate, then: Estimate) -> str:
    """What changes in the grid, which explains most of what is not plain from the change."""
    found = []
    for name, word in (("ctas", "CTAs"), ("ctas_per_sm", "CTAs an SM"), ("waves", "waves")):
        a, b = getattr(now, name), getattr(then, name)
        if abs(a - b) > 0.005 * abs(a) and (name != "waves" or max(a, b) > 1):
            found.append(f"{b:.3g} {word} instead of {a:.3g}" if name == "waves" else f"{b} {word} instead of {a}")
    return ", ".join(found)


def _rejected(text: str, n: Neighbour, faults: tuple[Diagnostic, ...]) -> Neighbour:
    first = next((d for d in faults if d.severity == "error"), faults[0])
    condition = f" (line {first.span.line}: {_cut(text, first.span)})" if first.rule == WHERE else ""
    return replace(n, rule=first.rule, message=first.message + condition)


def _cut(text: str, span: Span) -> str:
    """The text at a span that does not cross lines."""
    return text.split("\n")[span.line - 1][span.col - 1 : span.end_col - 1]


def gates(bound: BoundKernel, shapes: tuple[Witness, ...], outputs: bool) -> tuple[Diagnostic, ...]:
    """The errors of the static rules and of the order reading on the first shapes of the original that this kernel admits. outputs: also
    whether everything is written, once and inside."""
    lend(bound, shapes)
    return verify(bound, None, brief=True, deep=outputs).diagnostics


def lend(bound: BoundKernel, shapes: tuple[Witness, ...]) -> bool:
    """Have a kernel looked at on the first shapes of a similar one that it admits, instead of those of a search of its own. False where
    it admits none: then nothing changes. To be called before anything is derived."""
    few = tuple(w for w in (_moved(bound, w) for w in shapes) if w is not None)[:FEW]
    if few:
        forget(bound, "witnesses")
        memo(bound, "witnesses", lambda: WitnessSet(few, (), ()))
    return bool(few)


def _moved(bound: BoundKernel, w: Witness) -> Witness | None:
    """A shape of the original on a neighbour, whose grid may be another."""
    if set(w.shape) != set(bound.dims):
        return None
    skeleton = compile_skeleton(bound)
    env = skeleton.environment(w.shape, {}, w.sms)
    try:
        if not skeleton.admits(env):
            return None
        count = skeleton.cta_count(env)
    except ZeroDivisionError:
        return None
    if count == w.cta_count and bound.launch.cluster <= len(w.ctas):
        return w
    if count <= 0:
        return None
    ctas = tuple(range(min(count, max(len(w.ctas), bound.launch.cluster))))
    return replace(w, ctas=ctas, cta_count=count)


def _fewer_registers(subject: Subject) -> Iterator[Change]:
    """Where registers keep an SM half empty: so few for the role with most that one more CTA fits, or twice as many."""
    fit = fits(subject.bound)
    if occupancy_limit(fit) != "registers":
        return
    roles = subject.bound.roles
    role = max(roles, key=lambda r: r.warps * (r.registers or 0))
    if role.registers is None:
        return
    others = sum(32 * r.warps * (r.registers or 0) for r in roles if r is not role)
    counts = []
    for ctas in (fit["registers"] + 1, 2 * fit["registers"], 4 * fit["registers"]):
        left = subject.bound.target.value("registers_per_sm") // ctas - others
        counts.append(left // (32 * role.warps) // REGISTER_STEP * REGISTER_STEP)
    yield from fewer_registers(
        subject.kernel, role.name, [n for n in dict.fromkeys(counts) if REGISTER_STEP <= n < role.registers]
    )


def _helped(found: Mapping[str, Neighbour], group: str, now: Estimate) -> bool:
    """Whether the last of growing changes was better than the one before it."""
    step = found.get(group)
    name, _, count = group.rpartition(" ")
    before = found.get(f"{name} {int(count) - 1}", found.get(name)) if count.isdigit() else None
    was = before.time_us if before is not None else now.time_us
    return step is not None and step.time_us is not None and was is not None and step.time_us < (1 - HELPS) * was


def _refitted(subject: Subject, change: Change, tried: Neighbour, rings: list[str]) -> Iterator[Change]:
    """What follows from a change: where it does not fit into shared memory, the same with fewer stages of a ring; where a tile leaves room,
    with more."""
    more = change.kind == "tile" and tried.time_us is not None
    if tried.rule != CAPACITY and not more:
        return
    for name in rings:
        now = subject.bound.tunables[name]
        domain = next(x.domain for x in subject.kernel.tunables if x.name == name)
        known = [v for v in near(domain, now) if (v > now if more else v < now)]

        def with_stages(stages: int, name: str = name, now: Any = now) -> Change:
            values = {**change.bindings, name: stages}
            return Change(f"{change.what}, {name} {now} -> {stages}", change.kind, values, change.edits, name)

        stages = _most_stages(subject, with_stages, known)
        if stages is not None:
            yield with_stages(stages)


def _most_stages(subject: Subject, change: Callable[[int], Change], known: list[int]) -> int | None:
    """The largest of sorted numbers of stages for which there is shared memory; the search supposes that more stages take more."""
    limit = subject.bound.target.value("smem_per_block")

    def fits_in(stages: int) -> bool:
        bound = subject.bind(change(stages))
        return isinstance(bound, BoundKernel) and memory_map(bound).total <= limit

    n = bisect.bisect_left(known, True, key=lambda stages: not fits_in(stages))
    return known[n - 1] if n else None
