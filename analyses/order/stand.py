"""What the order reading says of a launch that hung: where its own run of that very shape blocks, and what each wait needs.

The device says where the roles stood (`corpus/gpu_where.py`); this says which completion a wait there lacks. A run here
that reaches its end means that the model sees no block: the hang is a missing rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from analyses.order import findings
from analyses.order.log import Log
from analyses.order.machine import Machine
from cake_ir.bound import BoundKernel, Op, RoleBlock, Stmt, walk
from cake_ir.derive import Derived
from cake_ir.skeleton import AssumeViolated, DataOracle, SkeletonLimit, compile_skeleton
from cake_ir.witness import Witness

EVENTS = 60_000
"""Events of the one run, over all agents of the first cluster: some seconds."""


@dataclass(frozen=True)
class Need:
    """One wait on a barrier in the text: who waits, on what, and the ops whose completions it counts."""

    line: int
    role: str
    barrier: str
    stages: int
    arrivals: int
    by: tuple[str, ...]

    def text(self) -> str:
        """In words."""
        counted = f"{self.arrivals} arrival{'s' if self.arrivals != 1 else ''}"
        return (
            f"wait on {self.barrier} (line {self.line}, {self.role}) needs {counted} by {', '.join(self.by) or 'no op'}"
        )


@dataclass(frozen=True)
class Standing:
    """blocks: whether the run blocks; None when it could not be run to its end. text: that in words. stuck: per role that
    stands, what it waits for. needs: every barrier wait of the kernel."""

    blocks: bool | None
    text: str
    stuck: tuple[str, ...]
    needs: tuple[Need, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `needs` with their words under "text"."""
        return {**asdict(self), "needs": [{**asdict(n), "text": n.text()} for n in self.needs]}


def stand(bound: BoundKernel, derived: Derived, dims: Mapping[str, int], sms: int) -> Standing:
    """Runs the first cluster of the launch of `dims` (extents of the kernel) on a device of `sms` multiprocessors."""
    wanted = needs(bound, derived)
    try:
        log = _run(bound, derived, dict(dims), sms)
    except SkeletonLimit:
        text = f"the order reading's run of this shape is longer than its limit of {EVENTS} events; the witness shapes run to their end"
        return Standing(None, text, (), wanted)
    except (AssumeViolated, ValueError) as exc:
        return Standing(None, f"the order reading cannot run this shape: {str(exc) or type(exc).__name__}", (), wanted)
    found = log.diagnostics()
    dead = next((d for d in found if d.rule == findings.DEADLOCK), None)
    if dead is not None:
        stuck = tuple(dict.fromkeys(step.text for step in dead.evidence))
        return Standing(True, f"the order reading blocks as well, line {dead.span.line}: {dead.message}", stuck, wanted)
    first = next((d for d in found if d.severity == "error"), None)
    if first is not None:
        text = f"the order reading does not block, but finds {first.rule} at line {first.span.line}: {first.message}"
        return Standing(False, text, (), wanted)
    text = "the order reading's run of this shape comes to its end, so the model sees no block: a rule is missing"
    return Standing(False, text, (), wanted)


def _run(bound: BoundKernel, derived: Derived, dims: dict[str, int], sms: int) -> Log:
    """The finished run of the first cluster. Raises SkeletonLimit, AssumeViolated, ValueError."""
    skeleton = compile_skeleton(bound)
    ctas = tuple(range(bound.launch.cluster))
    count = skeleton.cta_count(skeleton.environment(dims, {}, sms))
    oracle = DataOracle()
    found = skeleton.run(dims, None, sms, oracle, ctas, limit=EVENTS)
    witness = Witness(tuple(dims.items()), sms, ctas, count, oracle, "the launch that hung")
    log = Log(bound)
    log.begin(witness)
    Machine(bound, derived, witness, found, log).run()
    return log


def needs(bound: BoundKernel, derived: Derived) -> tuple[Need, ...]:
    """Every wait on an mbarrier, in text order (copies of an unrolled loop once)."""
    role_of = _roles(bound)
    arrivers: dict[Any, dict[str, None]] = {}
    waits: dict[tuple[int, str, str], Any] = {}
    for s in walk(bound.body):
        if not isinstance(s, Op):
            continue
        barrier = getattr(s.operands.get("bar", s.operands.get("signal")), "barrier", None)
        if barrier is None:
            continue
        role = role_of.get(id(s), "every role")
        if s.name == "wait":
            waits[s.span.line, role, barrier.name] = barrier
        else:
            arrivers.setdefault(barrier, {})[f"{s.name} of {role} (line {s.span.line})"] = None
    return tuple(
        Need(line, role, name, b.stages, derived.arrivals.get(b, 1), tuple(arrivers.get(b, {}))[:6])
        for (line, role, name), b in waits.items()
    )


def _roles(bound: BoundKernel) -> dict[int, str]:
    """Role name by op identity."""
    found: dict[int, str] = {}

    def visit(body: tuple[Stmt, ...]) -> None:
        for s in walk(body):
            if isinstance(s, RoleBlock):
                found.update((id(inner), s.role.name) for inner in walk(s.body))

    visit(bound.body)
    return found
