"""Faults that the mutation run once found accepted, and right programs that it found rejected: each stays decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analyses import ValueFault, interpret, verify
from cake_ir import bind, parse
from cake_ir.bound import BoundKernel
from tests.reference.products import gemm

ROOT = Path(__file__).parents[2]
SKETCHES = ROOT / "tests" / "data" / "sketches"
KERNELS = ROOT / "corpus" / "kernels"


def bound(path: Path, edits: tuple[tuple[str, str], ...], kernel: str | None = None, **bindings: Any) -> BoundKernel:
    """A kernel of a file after exact replacements (each must occur)."""
    text = path.read_text(encoding="utf-8")
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    file = parse(text).file
    assert file is not None
    result = bind(file, bindings, None if len(file.kernels[0].targets) == 1 else "sm_90a", kernel)
    assert result.bound is not None, [d.render() for d in result.diagnostics]
    return result.bound


REJECTED: dict[str, tuple[Path, str | None, tuple[tuple[str, str], ...], str]] = {
    "a store to the next tile": (
        SKETCHES / "02_kmeans_sm90.cake", None, (("store(label[b, row + 64 * wg:]", "store(label[b, row + 64 * wg + 64:]"),),
        "data/output-unwritten",
    ),
    "one CTA for all tiles": (
        SKETCHES / "02_kmeans_sm90.cake", None, (("launch(ctas=tiles.count)", "launch(ctas=1)"),), "data/output-unwritten",
    ),
    "one row too many": (
        KERNELS / "rmsnorm.cake", None, (("launch(ctas=M)", "launch(ctas=M + 1)"),), "data/global-out-of-bounds",
    ),
    "a transposed store off by a tile": (
        SKETCHES / "10_tinygemm_sm90.cake", None, (("store(out[col:, row:].T", "store(out[col + 8:, row:].T"),),
        "data/output-unwritten",
    ),
    "an output stored twice": (
        KERNELS / "softmax.cake", None,
        (("for c in range(w * CHUNK, N, WARPS * CHUNK)",
          "for c in range(0, N, WARPS * CHUNK)"), ("for c in range(w * CHUNK, N, WARPS * CHUNK)", "for c in range(0, N, WARPS * CHUNK)")),
        "data/output-written-twice",
    ),
    "a region before the tensor": (
        SKETCHES / "07_kda.cake", "kda_prefill", (("tma_load(k_s[n], k[t:, h, :]", "tma_load(k_s[n], k[t - 1:, h, :]"),),
        "data/global-out-of-bounds",
    ),
    "a first part that may not exist": (
        SKETCHES / "08_knn_sm90.cake", "knn_merge", (("    where(P > 0)\n", ""),), "data/global-out-of-bounds",
    ),
    "a named barrier below the first": (
        SKETCHES / "06_attention_sm90.cake", None, (("arrive(turn[0])", "arrive(turn[-2])"),), "derive/named-index",
    ),
    "a grid that is even on every witness": (
        SKETCHES / "06_attention_sm90.cake", None, (("launch(ctas=tiles.count)", "launch(ctas=tiles.count, cluster=2)"),),
        "schedule/grid-not-divisible",
    ),
    "a ring of one slot behind a ring of two": (
        SKETCHES / "07_kda.cake", "kda_prefill", (("free = mbarrier(stages=STAGES)", "free = mbarrier(stages=STAGES - 1)"),),
        "sync/phase-missed",
    ),
    "a slot below the first of a ring of one": (
        SKETCHES / "08_knn_sm90.cake", "knn_partial", (("tma_load(c_s[n], db", "tma_load(c_s[n - 1], db"),), "sync/negative-use",
    ),
    "a ring of one slot refilled unguarded": (
        SKETCHES / "08_knn_sm90.cake", "knn_partial", (("wait(free[n - STAGES])", "wait(q_full[n - STAGES])"),),
        "data/slot-reuse-without-wait",
    ),
}  # fmt: skip
BINDINGS = {"kda_prefill": {"STAGES": 2}, "knn_partial": {"STAGES": 1, "D": 64}}


@pytest.mark.parametrize("name", REJECTED)
def test_is_rejected_by_this_rule_alone(name: str) -> None:
    path, kernel, edits, rule = REJECTED[name]
    report = verify(bound(path, edits, kernel, **BINDINGS.get(kernel or "", {})))
    assert {d.rule for d in report.diagnostics if d.severity == "error"} == {rule}, [
        d.render() for d in report.diagnostics
    ]


def test_tiles_of_unlike_swizzle_over_each_other_are_compared_by_their_bytes() -> None:
    edits = (
        ("a_s = smem(bf16, BM, BK, stages=STAGES, swizzle=128)", "a_s = smem(bf16, BM, BK, stages=STAGES, swizzle=64)"),
    )
    report = verify(bound(KERNELS / "gemm_sm80.cake", edits, STAGES=3))
    assert report.accepted, [d.render() for d in report.diagnostics if d.severity == "error"]


def test_a_tile_may_be_read_by_the_other_name_of_the_same_bytes() -> None:
    edits = (("wgmma(s, q_s.rows(64 * wg, 64), k_s[0]", "wgmma(s, o_s.rows(64 * wg, 64), k_s[0]"),)
    report = verify(bound(SKETCHES / "06_attention_sm90.cake", edits, D=64, BK=64))
    assert report.accepted, [d.render() for d in report.diagnostics if d.severity == "error"]


def test_an_empty_group_behind_the_last_wait_keeps_nothing_pending() -> None:
    edits = (("            bulk_wait_read(0)\n", "            bulk_wait_read(0)\n            bulk_commit()\n"),)
    report = verify(bound(KERNELS / "gemm_sm90.cake", edits, BN=128, STAGES=2))
    assert report.accepted, [d.render() for d in report.diagnostics if d.severity == "error"]


@pytest.mark.parametrize(
    ("old", "kind"),
    [("", None), ("                sync(warpgroup)\n                stmatrix", "race-unit")],
    ids=["right", "no sync"],
)
def test_a_wait_of_one_thread_is_carried_to_its_unit_by_a_sync(old: str, kind: str | None) -> None:
    edits = ((old, "                stmatrix"),) if old else ()
    kernel = bound(KERNELS / "gemm_sm90.cake", edits, BN=128, STAGES=2)
    problem = gemm(130, 264, 72)
    if kind is None:
        assert not problem.judge(interpret(kernel, problem.tensors, problem.scalars))
    else:
        with pytest.raises(ValueFault) as fault:
            interpret(kernel, problem.tensors, problem.scalars)
        assert fault.value.kind == kind
        assert not verify(kernel).accepted


def test_a_cta_without_a_tile_does_not_disturb_asserted_counts() -> None:
    from tests.reference.search import kmeans

    kernel = bound(
        KERNELS / "kmeans_assign.cake", (("launch(ctas=min(tiles.count, device.sms))", "launch(ctas=min(tiles.count, device.sms) + 1)"),),
        DP=64, WG=2, BC=64, STAGES=2,
    )  # fmt: skip
    problem = kmeans(1, 100, 65, 8)
    assert not problem.judge(interpret(kernel, problem.tensors, problem.scalars))
