"""Sums that go on from less than f32 are found in the text, and nothing else is."""

from __future__ import annotations

import pytest

from analyses import interpret
from analyses.accumulation import RULE, narrow_sums
from cake_ir import bind, parse
from cake_ir.bound import BoundKernel
from cake_ir.diagnostics import CakeError
from corpus import kernels
from corpus.check import check_cpu
from corpus.contract import contracts
from corpus.prepare import prepare
from tests.test_sketches import RUNS, bound_of

TEXTS = {k.name: k for k in kernels()}


def corpus_kernel(name: str, *changes: tuple[str, str]) -> BoundKernel:
    entry = TEXTS[name]
    text = entry.text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    parsed = parse(text)
    assert parsed.file is not None, parsed.diagnostics
    target = "sm_90a" if "sm_90a" in entry.targets else entry.targets[0]
    done = bind(parsed.file, dict(entry.bindings), target, entry.kernel)
    assert done.bound is not None, [d.render() for d in done.diagnostics]
    return done.bound


@pytest.mark.parametrize("name", TEXTS)
def test_no_corpus_kernel_is_flagged(name: str) -> None:
    assert narrow_sums(corpus_kernel(name)) == []


def test_programs_round_operands_and_results_but_sums_only_where_they_mean_to() -> None:
    found = {n: [(d.span.line, d.message) for d in narrow_sums(bound_of(r))] for n, r in RUNS.items()}
    assert {n: f for n, f in found.items() if f} == {
        # an inverse of small matrices in f16, and rows that are added up in a bf16 tensor
        "kda prefill": [(89, "inverse goes on with a partial sum that was rounded to f16")],
        "moe down": [(130, "bulk_reduce keeps its sum in bf16")],
    }


MMA = "mma(acc, fa, fb)\n"
SUM = "part = row_sum(cast(v, f32) * cast(v, f32))"
TOTAL = "total = total * exp2(peak - base) + row_sum(exp2(v - base))"


PLUS_MMA = MMA + "                acc = cast(cast(acc, bf16), f32)\n"
ROUNDED = SUM.replace("row_sum(", "cast(cast(row_sum(").replace("f32))", "f32)), bf16), f32)")
DECAYED = TOTAL.replace("total * exp2(peak - base)", "cast(cast(total, bf16), f32) * exp2(peak - base)")
PARTIAL = TOTAL.replace("row_sum(exp2(v - base))", "cast(cast(row_sum(exp2(v - base)), f16), f32)")


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("gemm_sm80", MMA, PLUS_MMA, "mma goes on with a partial sum that was rounded to bf16"),
        ("rmsnorm", SUM, ROUNDED, "row_sum goes on with a partial sum that was rounded to bf16"),
        ("rmsnorm", "part_s = smem(f32, WARPS)", "part_s = smem(f16, WARPS)", "row_sum goes on"),
        ("softmax", TOTAL, DECAYED, "total keeps its sum in bf16"),
        ("softmax", TOTAL, PARTIAL, "total goes on with a partial sum that was rounded to f16"),
    ],
    ids=["after each product", "between warps", "through shared memory", "in a recurrence", "before it is added"],
)  # fmt: skip
def test_narrow_partial_sums_are_named(name: str, old: str, new: str, says: str) -> None:
    changes = [(old, new)]
    if "smem(f16" in new:
        changes += [("store(part_s[w], part)", "store(part_s[w], cast(part, f16))"),
                    ("row_sum(load(part_s, vec(1).cols[WARPS]))", "row_sum(cast(load(part_s, vec(1).cols[WARPS]), f32))")]  # fmt: skip
    (found, *_) = narrow_sums(corpus_kernel(name, *changes))
    assert found.rule == RULE and says in found.message
    text = TEXTS[name].text()
    assert 1 < found.span.line <= text.count("\n") + 2


def test_rounding_inputs_operands_and_results_is_no_narrow_sum() -> None:
    bound = corpus_kernel("rmsnorm", (SUM, "part = row_sum(cast(cast(cast(v, f32) * cast(v, f32), bf16), f32))"))
    assert narrow_sums(bound) == [], "a rounded term is not a rounded sum; the oracle judges it"


def test_a_check_fails_by_the_text_alone_unless_the_contract_says_otherwise() -> None:
    from dataclasses import replace

    entry = TEXTS["softmax"]
    bound = corpus_kernel("softmax", (TOTAL, DECAYED))
    contract = contracts()["softmax"]
    shape = [{"M": 1, "N": 4}]  # one chunk: the rounding of an empty sum does not show in the numbers
    r = check_cpu(bound, contract, shape, interpret=interpret, distributions=("normal",), seed=1, secret=2)
    assert all(c.verdict == "passed" for c in r.cases) and not r.passed
    assert "total keeps its sum in bf16 (line " in r.summary and [d.rule for d in r.diagnostics] == [RULE]
    free = replace(contract, accumulate="any")
    assert check_cpu(bound, free, shape, interpret=interpret, distributions=("normal",), seed=1, secret=2).passed
    assert free.digest != contract.digest
    with pytest.raises(CakeError, match="keeps its sum in bf16"):
        prepare(entry.text().replace(TOTAL, DECAYED), "softmax", "check", shape, target="sm_90a")
