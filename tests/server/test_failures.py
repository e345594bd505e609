"""Owners and signatures of failures."""

from __future__ import annotations

import itertools

import pytest

from server.failures import Symptom, rule_on, shape_of


@pytest.mark.parametrize(
    ("symptom", "verdict", "rules", "cpu", "owner"),
    [
        ("inexpressible", None, [], None, "vocabulary"),
        ("mispredicted_time", "accepted", [], None, "cost_model"),
        ("false_rejection", "rejected", ["data/race"], None, "verifier"),
        ("false_rejection", "accepted", [], None, "candidate"),
        ("hang", "accepted", [], None, "verifier"),
        ("hang", "rejected", ["safety/deadlock"], None, "candidate"),
        ("crash", "accepted", [], "passed", "verifier"),
        ("crash", None, [], None, "candidate"),
        ("compile_error", "accepted", [], None, "verifier"),
        ("wrong_result", "accepted", [], "failed", "candidate"),
        ("wrong_result", "accepted", [], "passed", "verifier"),
        ("wrong_result", "accepted", [], None, "candidate"),
    ],
)
def test_the_owner_follows_from_the_evidence(
    symptom: Symptom, verdict: str | None, rules: list[str], cpu: str | None, owner: str
) -> None:
    ruling = rule_on(symptom, verdict, rules, cpu)
    assert ruling.owner == owner and ruling.reason and ruling.next
    assert all(rule in ruling.reason for rule in rules)


def test_every_combination_has_an_owner() -> None:
    symptoms = Symptom.__args__  # type: ignore[attr-defined]
    for symptom, verdict, cpu in itertools.product(
        symptoms, (None, "accepted", "rejected"), (None, "passed", "failed")
    ):
        assert rule_on(symptom, verdict, ["x/y"], cpu).owner in ("candidate", "verifier", "cost_model", "vocabulary")


def test_a_signature_ignores_numbers_names_and_paths() -> None:
    a = shape_of("kernel 'abc' hung after 10.5 s at 0x7f00 in /tmp/x/y.cake")
    assert a == shape_of("kernel 'other' hung after 3 s  at 0x1 in /home/z.cake")
    assert a != shape_of("kernel 'abc' crashed after 10 s at 0x7f00 in /tmp/x")
