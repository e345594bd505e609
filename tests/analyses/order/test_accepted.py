"""Programs that look wrong and are right: none of them may give a finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyses.order import check_order, findings
from cake_ir import parse
from cake_ir.derive import derive
from tests.analyses.order.programs import CORPUS, RESTART, SPLIT_K, TURNS, base, bound, edit, read


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.cake")), ids=lambda p: p.stem)
def test_corpus_kernels(path: Path) -> None:
    text = path.read_text()
    file = parse(text).file
    assert file is not None
    assert [d.render() for k in file.kernels for d in read(text, kernel=k.name)] == []


@pytest.mark.parametrize("name", ["gemm_sm90", "gemm_sm100", "gemm_sm80", "kmeans_assign", "softmax"])
def test_unedited_programs(name: str) -> None:
    assert read(base(name)) == []


@pytest.mark.parametrize("name", ["gemm_sm90", "gemm_sm100", "kmeans_assign"])
def test_two_stages(name: str) -> None:
    assert read(base(name), STAGES=2) == []


def test_one_cta_instead_of_a_pair() -> None:
    assert read(base("gemm_sm100"), CG=1) == []


def test_two_loaders_on_one_barrier_and_warps_that_take_every_fourth_use() -> None:
    assert read(SPLIT_K) == []


def test_named_barrier_counts_arrivers_and_waiters() -> None:
    assert read(TURNS) == []


def test_copy_just_before_its_own_expect() -> None:
    text = edit(
        base("kmeans_assign"),
        "expect(x_full[0])\n        tma_load(x_s, x[b, row:, :], signal=x_full[0])",
        "tma_load(x_s, x[b, row:, :], signal=x_full[0])\n        expect(x_full[0])",
    )
    assert read(text) == []


def test_restarted_numbers_where_the_parity_fits() -> None:
    assert read(RESTART.replace("GRAIN", "2 * STAGES")) == []


def test_restarted_numbers_where_it_does_not() -> None:
    assert [d.rule for d in read(RESTART.replace("GRAIN", "3"))] == [findings.PHASE_DRIFT]


def test_unused_barrier() -> None:
    text = edit(base("kmeans_assign"), "    x_full = mbarrier()", "    spare = mbarrier()\n    x_full = mbarrier()")
    assert read(text) == []


def test_release_without_fence_after_asynchronous_readers_only() -> None:
    """TMA, wait, wgmma, wait, release: no proxy fence is needed between asynchronous accesses."""
    text = base("kmeans_assign")
    assert "fence_async" not in text
    assert read(text) == []


def test_properties_say_what_was_checked() -> None:
    kernel = bound(base("gemm_sm90"))
    result = check_order(kernel, derive(kernel))
    verdicts = {p.name: p.verdict for p in result.properties}
    assert verdicts["progress"] == verdicts["data order"] == "checked"
    assert verdicts["dependent launch"] == "proved"
    assert any("witness shapes" in line for line in result.coverage)
    assert any("0 uses" in line for line in result.coverage), "K > 0 excludes the empty ring: it must be said"


def test_refuted_property_names_the_rule() -> None:
    kernel = bound(edit(base("gemm_sm90"), "fence_async()", ""))
    result = check_order(kernel, derive(kernel))
    refuted = [p for p in result.properties if p.verdict == "refuted"]
    assert [(p.name, p.reason) for p in refuted] == [("data order", findings.FENCE_WRITE)]


def test_every_rule_has_a_contract() -> None:
    ids = {v for k, v in vars(findings).items() if k.isupper() and isinstance(v, str)}
    assert ids == set(findings.CONTRACTS)
