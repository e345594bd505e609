"""The judge of truth: the value reading on small launches, under schedules that starve every role and delay every engine.

It knows nothing of the verifier. A mutant fails when a run ends in a fault of the machine, when the result is not what the
contract or reference says, or when two schedules give different bits. A mutant that passes may still be wrong on other
shapes or schedules; that is why rejected mutants that pass are explained or listed (`explained.py`), never simply counted as false rejects.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Literal

import numpy as np

from analyses.value import ValueFault, interpret
from cake_ir.bound import BoundKernel, Op, walk
from cake_ir.diagnostics import CakeError
from tests.mutation.subjects import Launch

State = Literal["passed", "fault", "schedule", "wrong", "declined", "timeout", "crash", "unsupported"]
ENGINES = {"tma": ("tma_load", "bulk_load"), "store": ("tma_store", "tma_reduce", "bulk_store", "bulk_reduce"),
           "cp_async": ("cp_async",), "wgmma": ("wgmma",), "tcgen05": ("tcgen05_mma",)}  # fmt: skip
RUN_S = 6.0
"""Processor seconds of one run, a hundred times what an unmutated one takes; what has not ended then counts as hanging."""
TOTAL_S = 45.0
"""Processor seconds of one mutant; schedules that would start later are not run, and the verdict says how many were."""


@dataclass(frozen=True)
class Judgement:
    """state: passed (every run), fault (of the machine), schedule (bits depend on the schedule), wrong (a defined result
    that is not the contract's), declined (`where` refuses every launch), timeout (a run does not end), crash (the value
    reading itself), unsupported. kind: the fault's kind. first: the launch and schedule that showed it. line: of the fault."""

    state: State
    kind: str = ""
    message: str = ""
    first: str = ""
    line: int = 0
    runs: int = 0

    @property
    def fails(self) -> bool:
        """Whether the program is shown to be wrong."""
        return self.state in ("fault", "schedule", "wrong", "timeout")


class OutOfTime(BaseException):
    """Processor time is used up. Not an Exception: no handler of the program under test may swallow it."""


@contextmanager
def processor_time(seconds: float) -> Iterator[None]:
    """Raises OutOfTime inside the block after so much processor time of this process (main thread only)."""

    def ring(signum: int, frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def schedules(bound: BoundKernel, seed: int = 1) -> list[str]:
    """All schedules of the judge for a kernel, those that find most first."""
    ops = {s.name for s in walk(bound.body) if isinstance(s, Op)}
    return [
        "greedy",
        "newest",
        f"random:{seed}",
        *(f"starve:{r.name}" for r in bound.roles),
        *(f"late:{e}" for e, names in ENGINES.items() if ops & set(names)),
        *(f"starve:{r.name}.0" for r in bound.roles if r.count > 1 and r.unit != "thread"),
        "eager",
        f"random:{seed + 1}",
    ]


def plan(bound: BoundKernel, launches: tuple[Launch, ...], extra: int = 0) -> list[tuple[int, str]]:
    """(launch number, schedule): every schedule on the first launch, on the others those that starve, delay or shuffle; at
    the end `extra` more random ones on each launch."""
    full = schedules(bound)
    found = [(0, full[0]), *((i, full[0]) for i in range(1, len(launches)))]
    found += [(0, s) for s in full[1:]]
    for i in range(1, len(launches)):
        found += [(i, s) for s in full[1:] if s.startswith(("starve:", "random:", "late:"))]
    found += [(i, f"random:{100 + k}") for k in range(extra) for i in range(len(launches))]
    return found


def judge(
    bound: BoundKernel,
    launches: tuple[Launch, ...],
    *,
    ordered: bool = True,
    ragged: bool = False,
    patient: bool = False,
    extra: int = 0,
) -> Judgement:
    """Runs until the first failure.

    ordered, ragged: see `subjects.Subject`. patient: after a wrong result go on, to tell `schedule` or `fault` from `wrong`
    (a defined result that is another function of the inputs). extra: more random schedules per launch.
    Raises nothing that a mutant causes; interrupts pass.
    """
    left, runs, wrong = TOTAL_S, 0, None
    first: dict[int, dict[str, np.ndarray]] = {}
    declined: set[int] = set()
    steps = plan(bound, launches, extra)
    for number, schedule in steps:
        if left <= 0:
            break
        if number in declined:
            continue
        where = f"launch {number}, {schedule}"
        launch = launches[number]
        limit = min(RUN_S, left)
        begin = signal_time()
        try:
            with processor_time(limit):
                problem = launch.problem()
                out = interpret(bound, problem.tensors, problem.scalars, schedule=schedule, sms=launch.sms)
        except OutOfTime:
            if limit < RUN_S:
                break
            return Judgement("timeout", "timeout", f"no end within {RUN_S:.0f} s of processor time", where, runs=runs)
        except ValueFault as fault:
            if fault.kind == "where":
                declined.add(number)
                continue
            # the mutant asks of the data what its contract does not promise, or leaves out rows that the data name: what
            # the data are is not in the program
            if fault.kind == "assume" or (ragged and fault.kind == "out-unwritten"):
                found = Judgement("wrong", fault.kind, fault.message, where, fault.span.line, runs)
                wrong = wrong or found
                if not patient:
                    return found
                continue
            if fault.kind == "unsupported":
                return Judgement("unsupported", fault.kind, fault.message, where, fault.span.line, runs)
            return Judgement("fault", fault.kind, fault.message, where, fault.span.line, runs)
        except CakeError as fault:
            d = fault.diagnostic
            return Judgement("fault", d.rule, d.message, where, d.span.line, runs)
        except ZeroDivisionError as fault:  # of the program's own index arithmetic
            return Judgement("fault", "division", str(fault), where, runs=runs)
        except Exception as bug:  # a bug of the value reading is a result, not the end of the run
            return Judgement("crash", type(bug).__name__, str(bug)[:300], where, runs=runs)
        left -= signal_time() - begin
        runs += 1
        if ordered and number in first:
            other = [n for n, a in out.items() if a.tobytes() != first[number][n].tobytes()]
            if other:
                return Judgement(
                    "schedule", "schedule", f"other bits in {', '.join(other)} than under greedy", where, runs=runs
                )
        first.setdefault(number, out)
        try:
            says = problem.judge(out)
        except Exception as bug:  # a reference that stumbles over a wrong shape or value says no
            says = [f"the reference cannot read the result: {bug}"]
        if says and wrong is None:
            wrong = Judgement("wrong", "wrong", says[0][:300], where, runs=runs)
        if wrong is not None and not patient:
            return wrong
    if wrong is not None:
        return wrong
    if not runs:
        return Judgement("declined", "where", "`where` refuses every launch of the judge")
    return Judgement("passed", runs=runs, message="" if left > 0 else f"{runs} of {len(steps)} runs within the budget")


def signal_time() -> float:
    """Processor seconds of this process."""
    import time

    return time.process_time()
