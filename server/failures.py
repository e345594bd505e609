"""Whose fault is a failure: candidate, verifier, cost model or vocabulary.

The owner is decided from the symptom and from what the verifier says about the very program, never from the reporter's
opinion. Reports with the same signature are one record that counts up. The signature leaves out numbers, names and
paths, so that the same fault in another variant meets the same record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from server.results import Result

Owner = Literal["candidate", "verifier", "cost_model", "vocabulary"]
Symptom = Literal[
    "wrong_result", "crash", "hang", "compile_error", "false_rejection", "mispredicted_time", "inexpressible"
]

_VOLATILE = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?|'[^']*'|\"[^\"]*\"|/\S+")


@dataclass(frozen=True)
class Ruling:
    owner: Owner
    reason: str
    next: str


def rule_on(symptom: Symptom, verdict: str | None, error_rules: Sequence[str], cpu_check: str | None) -> Ruling:
    """Name the owner.

    `verdict`: accepted, rejected or None (no program given). `cpu_check`: passed, failed or None (not interpreted).
    """
    if symptom == "inexpressible":
        return Ruling(
            "vocabulary",
            "the wanted hardware behaviour has no op",
            "name the instruction and the place it is needed in `expected`",
        )
    if symptom == "mispredicted_time":
        return Ruling(
            "cost_model",
            "the estimate and the measurement are said to disagree, and no measurement of it is stored",
            "time it with compile_and_bench and report that measurement_id: a calibration record rests on a stored time",
        )
    if symptom == "false_rejection":
        rules = ", ".join(sorted(set(error_rules))) or "no rule"
        if verdict == "accepted":
            return Ruling(
                "candidate", "the program given is accepted as it stands", "report the variant that is rejected"
            )
        return Ruling(
            "verifier",
            f"reported as rejected without cause by {rules}",
            "attach what shows the program is right in `observed`",
        )
    if verdict == "rejected":
        rules = ", ".join(sorted(set(error_rules)))
        return Ruling("candidate", f"the verifier rejects this program: {rules}", "repair these findings first")
    if symptom == "wrong_result":
        if cpu_check == "failed":
            return Ruling(
                "candidate", "accepted, but its numbers are wrong when interpreted as well", "repair the computation"
            )
        if cpu_check == "passed":
            return Ruling(
                "verifier",
                "accepted and right when interpreted, yet wrong on the device: an unmodelled hardware effect",
                "attach shape and device in `observed`",
            )
        return Ruling(
            "candidate",
            "accepted, but not yet checked against a contract by interpretation",
            "run compile_and_bench with until=check",
        )
    if verdict is None:
        return Ruling(
            "candidate", "no program was named, so the verifier could not be asked", "report again with ir_id"
        )
    return Ruling(
        "verifier",
        f"the program was accepted and still ends in {symptom.replace('_', ' ')}: a missing rule",
        "the program is kept as a seed for the rule",
    )


def shape_of(text: str) -> str:
    """An error text without numbers, addresses, quoted names and paths."""
    return " ".join(_VOLATILE.sub("#", text).split())[:300].lower()


def failure_result(failure_id: str, ruling: Ruling, symptom: str, count: int, record: Mapping[str, Any]) -> Result:
    seen = "recorded" if count == 1 else f"already known, now seen {count} times"
    return Result(
        summary=f"failure {seen}; owner: {ruling.owner}, because {ruling.reason}",
        status="ok",
        ids={"failure_id": failure_id, **{k: record[k] for k in ("ir_id", "variant_id") if record[k]}},
        data={
            "owner": ruling.owner,
            "reason": ruling.reason,
            "symptom": symptom,
            "count": count,
            "rules": record["rules"],
        },
        next=ruling.next,
    )
