"""Which op wrote what is wrong: a failed case joined with the program that it came from.

The GPU worker has no program text, so this runs where the IR is: in the check by interpretation, and in the server's
CPU worker for what a GPU has answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cake_ir.bound import BoundKernel
from cake_ir.diagnostics import CakeError, Diagnostic, Subject, error
from corpus.check import CaseResult
from corpus.contract import Case, Contract
from corpus.signature import scalar_values, solve_dims

RULE = "contract/wrong-result"
LAW = "A kernel computes what its contract says, in every element."
MAX_INPUT_BYTES = 1 << 28
"""Inputs up to this size are drawn again, where loaded integers decide which op writes an element."""


def blame(
    bound: BoundKernel, contract: Contract, case: CaseResult, sms: int, inputs: Mapping[str, Any] | None = None
) -> CaseResult:
    """The case with `owner` (see `analyses.owners.Ownership.to_json`), the writer in its message, and a diagnostic at
    its line. As it is, when it names no element. sms: multiprocessors of the launch, unless the case says."""
    if case.at is None or case.verdict != "failed" or case.owner is not None:
        return case
    from analyses.owners import owner

    tensor, index = case.at["tensor"], tuple(case.at["index"])
    try:
        dims, scalars = solve_dims(bound, contract, case.shape), scalar_values(bound, contract, case.shape)
        found = owner(bound, dims, scalars, case.at.get("sms", sms), tensor, index, data=inputs)
    except (CakeError, LookupError, ValueError, ArithmeticError):  # the verdict stands without its writer
        return case
    return case.model_copy(
        update={
            "owner": found.to_json(),
            "message": f"{case.message}; {found.text()}",
            "diagnostic": case.diagnostic or _diagnostic(bound, case, found),
        }
    )


def blame_job(
    bound: BoundKernel, contract: Contract, cases: list[CaseResult], seed: int, secret: str, sms: int
) -> list[CaseResult]:
    """The same for cases that a GPU has answered; inputs are drawn again from the disclosed seeds where they matter."""
    from analyses.owners import needs_data

    out = []
    for c in cases:
        data: Mapping[str, Any] | None = None
        if c.at is not None and c.verdict == "failed" and needs_data(bound, c.at["tensor"]):
            case = Case(c.shape, c.distribution, seed, int(c.secret or secret, 16), c.dtypes)
            if contract.bytes(c.shape, c.dtypes) <= MAX_INPUT_BYTES:
                data = contract.inputs(case)
        out.append(blame(bound, contract, c, sms, data))
    return out


def _diagnostic(bound: BoundKernel, case: CaseResult, found: Any) -> Diagnostic | None:
    if not found.owners or case.at is None:
        return None
    o = found.owners[0]
    place = f"{case.at['tensor']}[{', '.join(map(str, case.at['index']))}]"
    worst = case.worst or {}
    seen = f": expected {worst['expected']:.9g}, got {worst['got']:.9g}" if _numbers(worst) else ""
    text = f"{place} is wrong ({case.cause}){seen}; {found.text()}"
    subject = Subject(kernel=bound.name, role=o.role, resource=case.at["tensor"], stage=o.stage, op=o.op)
    return error(RULE, "numeric", text, o.span, contract=LAW, subject=subject)


def _numbers(worst: Mapping[str, Any]) -> bool:
    return all(isinstance(worst.get(k), (int, float)) for k in ("expected", "got"))
