"""The worked example of docs/contracts.md loads, its judge works and its kernel passes."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from analyses import interpret
from cake_ir import parse
from cake_ir.binding import bind
from corpus.check import check_cpu, judge_selftest
from corpus.contract import Contract, contracts
from corpus.distributions import BATTERY, DRAWS

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "contracts.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    found = re.search(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_layernorm_example_works_as_written(tmp_path: Path) -> None:
    (tmp_path / "layernorm.py").write_text(block("python"))
    contract = contracts(tmp_path)["layernorm"]
    assert "rejects a no-op" in judge_selftest(contract)
    parsed = parse(block("cake"))
    assert parsed.file is not None, parsed.diagnostics
    done = bind(parsed.file, {}, "sm_80", None)
    assert done.bound is not None, done.diagnostics
    result = check_cpu(done.bound, contract, interpret=interpret, distributions=("normal", "near_max", "constant_rows"))
    assert result.passed, result.summary


def test_every_distribution_and_contract_is_documented() -> None:
    offered = {*BATTERY, *contracts(), *DRAWS} - {"tiny"}  # tiny only accompanies near_max
    assert all(f"`{name}`" in TEXT for name in offered)
    assert all(
        f"`{field.name}`" in TEXT
        for field in fields(Contract)
        if field.name not in ("cap", "bench_distribution", "origin")
    )
