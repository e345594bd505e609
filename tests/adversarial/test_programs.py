"""Cheats that Cake IR can say, past the verifier: the binder, the interpreter or the judge names each by its cause.

That right programs pass the same judge on the same shapes is `tests/test_corpus_kernels.py`.
"""

from __future__ import annotations

import pytest

from analyses import interpret
from cake_ir.diagnostics import CakeError
from corpus.check import check_cpu
from corpus.contract import contracts
from corpus.kernels import kernel
from tests.adversarial.cases import ROWS
from tests.adversarial.programs import PROGRAMS, Program


def judged(program: Program) -> tuple[str, str]:
    """(cause, message) of the first failure; `ok` without one."""
    try:
        bound = program.bound()
    except CakeError as exc:
        return exc.diagnostic.rule, exc.diagnostic.message
    contract = contracts()[kernel(program.kernel).contract]
    masked = [d for d in contract.distributions if d == "masked_rows"]
    result = check_cpu(
        bound, contract, interpret=interpret, distributions=("normal", *masked), seed=3, secret=7,
        schedules=("greedy", "random:4"), stop_after=1,
    )  # fmt: skip
    bad = next((c for c in result.cases if c.verdict in ("failed", "error")), None)
    return (bad.cause, bad.message) if bad else ("ok", result.summary) if result.passed else ("skipped", result.summary)


@pytest.mark.parametrize(
    "program", [pytest.param(p, id=f"{name}-{p.kernel}") for name, all_of in PROGRAMS.items() for p in all_of]
)
def test_each_is_named_by_its_cause(program: Program) -> None:
    cause, message = judged(program)
    assert cause == program.cause, message


def test_programs_are_rows_of_the_table() -> None:
    known = {c.name for c in ROWS}
    assert set(PROGRAMS) - known == {"missing_sync"}, "a race that no fixture can make certain on a device"
