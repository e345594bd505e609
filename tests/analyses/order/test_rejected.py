"""One fault, one finding: every case is a right program with one edit, and expects one rule at one source line."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from analyses.order import findings as rule
from tests.analyses.order.programs import RESTART, SPLIT_K, TURNS, base, edit, line_of, read


@dataclass(frozen=True)
class Case:
    """old -> new at the given occurrence (new empty: the line is deleted); the finding's rule and a part of its
    line."""

    program: str
    old: str
    new: str
    rule: str
    line: str
    occurrence: int = 0


def text_of(name: str) -> str:
    local = {"split_k": SPLIT_K, "turns": TURNS, "restart": RESTART.replace("GRAIN", "1")}
    return local[name] if name in local else base(name)


GEMM90 = [
    Case("gemm_sm90", "wait(free[n - STAGES])", "", rule.SLOT_REUSE, "tma_load(a_s[n]"),
    Case("gemm_sm90", "wait(free[n - STAGES])", "wait(free[n - STAGES - 1])", rule.SLOT_REUSE, "tma_load(a_s[n]"),
    Case("gemm_sm90", "wait(free[n - STAGES])", "wait(free[n])", rule.DEADLOCK, "wait(free[n])"),
    Case("gemm_sm90", "wait(full[n])", "", rule.READ_BEFORE_ARRIVAL, "wgmma(acc"),
    Case("gemm_sm90", "wgmma_wait(1)", "", rule.WGMMA_RELEASE, "arrive(free[n - 1].on(0))"),
    Case("gemm_sm90", "wgmma_wait(1)", "wgmma_wait(2)", rule.WGMMA_RELEASE, "arrive(free[n - 1].on(0))"),
    Case("gemm_sm90", "wgmma_wait(0)", "", rule.WGMMA_RELEASE, "arrive(free[n - 1].on(0))"),
    Case("gemm_sm90", "wgmma_commit()", "", rule.WGMMA_RELEASE, "arrive(free[n - 1].on(0))"),
    Case("gemm_sm90", "fence_async()", "", rule.FENCE_WRITE, "stmatrix(d_s[e]"),
    Case(
        "gemm_sm90",
        "fence_async()\n                sync(warpgroup)",
        "sync(warpgroup)\n                fence_async()",
        rule.FENCE_WRITE,
        "stmatrix(d_s[e]",
    ),
    Case("gemm_sm90", "bulk_wait_read(1)", "bulk_wait_read(2)", rule.BULK_DEPTH, "bulk_wait_read(2)"),
    Case(
        "gemm_sm90",
        "with elected():\n                    bulk_wait_read(1)\n                sync",
        "sync",
        rule.BULK_DEPTH,
        "stmatrix(d_s[e]",
    ),
    Case("gemm_sm90", "bulk_commit()", "", rule.BULK_DEPTH, "stmatrix(d_s[e]"),
    Case("gemm_sm90", "sync(warpgroup)", "", rule.UNSYNCED_WRITE, "stmatrix(d_s[e]"),
    Case("gemm_sm90", "sync(warpgroup)", "", rule.LANE_RACE, "tma_store(d[", occurrence=1),
    Case("gemm_sm90", "sync(cluster)", "", rule.CLUSTER_EXIT, "arrive(free[n - 1].on(0))"),
    Case("gemm_sm90", "bulk_wait_read(0)", "bulk_wait_read(1)", rule.BULK_AT_EXIT, "tma_store(d["),
    Case("gemm_sm90", "init=k == 0", "init=False", rule.UNINIT_ACC, "wgmma(acc"),
    Case("gemm_sm90", "init=k == 0", "init=n == 0", rule.UNINIT_ACC, "wgmma(acc"),
    Case("gemm_sm90", ", multicast=cluster", ", cache=evict_first", rule.UNINIT_MEMORY, "wgmma(acc"),
    Case("gemm_sm90", "tma_load(a_s[n],", "tma_load(a_s[n + 1],", rule.UNINIT_MEMORY, "wgmma(acc"),
    Case("gemm_sm90", "arrive(free[n - 1].on(1))", "", rule.DEADLOCK, "wait(free[n - STAGES])"),
    Case("gemm_sm90", "expect(full[n])", "", "derive/unexpected-bytes", "tma_load(a_s[n]"),
    Case(
        "gemm_sm90",
        "        for k in range(KT):",
        "        n = 0\n        for k in range(KT):",
        rule.PHASE_DRIFT,
        "expect(full[n])",
    ),
]

KMEANS = [
    Case(
        "kmeans_assign",
        "wgmma_wait(0)\n            arrive(free[n])",
        "arrive(free[n])\n            wgmma_wait(0)",
        rule.WGMMA_RELEASE,
        "arrive(free[n])",
    ),
    Case("kmeans_assign", "wgmma_wait(0)", "", rule.WGMMA_RELEASE, "arrive(free[n])"),
    Case("kmeans_assign", "wait(x_full[0])", "", rule.READ_BEFORE_ARRIVAL, "wgmma(acc"),
    Case("kmeans_assign", "wait(full[n])", "", rule.READ_BEFORE_ARRIVAL, "wgmma(acc"),
    Case("kmeans_assign", "wait(free[n - STAGES])", "", rule.SLOT_REUSE, "tma_load(c_s[n]"),
    Case("kmeans_assign", "arrive(free[n])", "", "derive/no-arrival", "wait(free[n - STAGES])"),
    Case("kmeans_assign", "expect(x_full[0])", "", "derive/unexpected-bytes", "tma_load(x_s"),
    Case(
        "kmeans_assign",
        "full = mbarrier(stages=STAGES)",
        "full = mbarrier(stages=STAGES, bytes=16384)",
        "derive/asserted-bytes",
        "full = mbarrier",
    ),
    Case(
        "kmeans_assign",
        "free = mbarrier(stages=STAGES)",
        "free = mbarrier(stages=STAGES, arrivals=2)",
        "derive/asserted-arrivals",
        "free = mbarrier",
    ),
]

GEMM100 = [
    Case("gemm_sm100", "wait(drained[t - 2])", "wait(drained[t - 20])", rule.OVERWRITTEN, "tcgen05_mma(acc_t[t]"),
    Case("gemm_sm100", "tmem_load_wait()", "", rule.TMEM_LOAD_WAIT, "store(d_s[e]"),
    Case(
        "gemm_sm100",
        "tmem_load_wait()\n                if j == BN // 64 - 1:\n                    arrive(drained[t].on(0))",
        "if j == BN // 64 - 1:\n                    arrive(drained[t].on(0))\n                tmem_load_wait()",
        rule.TMEM_LOAD_WAIT,
        "arrive(drained[t].on(0))",
    ),
    Case(
        "gemm_sm100",
        "                    arrive(drained[t].on(0))",
        "                    with elected():\n                        arrive(drained[t].on(0))",
        rule.RELEASE_MISSES_LANES,
        "arrive(drained[t].on(0))",
    ),
    Case("gemm_sm100", "wait(done[t])", "", rule.COMMIT_MISSING, "x = tmem_load"),
    Case(
        "gemm_sm100",
        "tcgen05_commit(free[n], multicast=cluster)",
        "arrive(free[n].on(0))\n                    arrive(free[n].on(1))",
        rule.COMMIT_MISSING,
        "arrive(free[n].on(0))",
    ),
    Case(
        "gemm_sm100",
        "tcgen05_commit(free[n], multicast=cluster)",
        "tcgen05_commit(free[n])",
        rule.DEADLOCK,
        "wait(free[n - STAGES + s])",
    ),
    Case(
        "gemm_sm100",
        "    with producer:\n        for s in range(STAGES):\n            wait(free[n - STAGES + s])\n",
        "\n",
        rule.CLUSTER_EXIT,
        "tcgen05_commit(free[n]",
    ),
    Case("gemm_sm100", "init=k == 0", "init=n == 0", rule.UNINIT_ACC, "tcgen05_mma(acc_t[t]"),
    Case("gemm_sm100", "fence_async()", "", rule.FENCE_WRITE, "store(d_s[e]"),
    Case("gemm_sm100", "wait(full[n])", "wait(full[n - 20])", rule.READ_BEFORE_ARRIVAL, "tcgen05_mma(acc_t[t]"),
]

GEMM80 = [
    Case(
        "gemm_sm80",
        "cp_async_wait(STAGES - 2)",
        "cp_async_wait(STAGES - 1)",
        rule.CP_ASYNC_COUNT,
        "cp_async_wait(STAGES - 1)",
    ),
    Case("gemm_sm80", "cp_async_commit()", "", rule.CP_ASYNC_COUNT, "cp_async_wait(STAGES - 2)", occurrence=1),
    Case("gemm_sm80", "cp_async_wait(STAGES - 2)", "", rule.CP_ASYNC_COUNT, "fa = ldmatrix"),
    Case(
        "gemm_sm80",
        "            cp_async_wait(STAGES - 2)\n            sync(math)\n",
        "            sync(math)\n            cp_async_wait(STAGES - 2)\n",
        rule.CP_ASYNC_COUNT,
        "fa = ldmatrix",
    ),
    Case("gemm_sm80", "sync(math)", "", rule.UNSYNCED_READ, "fa = ldmatrix"),
    Case("gemm_sm80", "sync(math)", "", rule.UNSYNCED_WRITE, "store(d_s.rows", occurrence=1),
    Case("gemm_sm80", "sync(math)", "", rule.UNSYNCED_READ, "load(d_s.rows", occurrence=2),
    Case("gemm_sm80", "mma_d[64, 32], 0)", "mma_d[64, 32])", rule.UNINIT_REGISTER, "store(d_s.rows"),
]

OTHERS = [
    Case("split_k", "fence_async()", "", rule.FENCE_RELEASE, "fa = ldmatrix"),
    Case(
        "split_k",
        "            arrive(free[n])",
        "            with elected():\n                arrive(free[n])",
        rule.RELEASE_MISSES_LANES,
        "arrive(free[n])",
    ),
    Case("split_k", "griddep_wait()", "", rule.GRIDDEP, "tma_load(x_s[n]"),
    Case("split_k", "griddep_wait()", "", rule.GRIDDEP, "store(out[", occurrence=1),
    Case("split_k", "sync(cluster)", "", rule.UNSYNCED_READ, "total = total + load(part_s[j]"),
    Case("split_k", "expect(full[n])", "", "derive/unexpected-bytes", "tma_load(x_s[n]", occurrence=1),
    Case("split_k", "STAGES: range(2, 17) = 4", "STAGES: range(2, 17) = 3", rule.WAIT_AHEAD, "wait(full[n])"),
    Case("turns", "            arrive(turn[1 - wg])", "", rule.DEADLOCK, "sync(turn[wg])"),
    Case("turns", "        if wg == 0:\n            sync(turn[0])\n", "\n", rule.NAMED_OPEN, "arrive(turn[1 - wg])"),
    Case("turns", "            sync(turn[wg])\n", "\n", rule.UNSYNCED_WRITE, "store(shared_s"),
    Case("turns", "sync(warpgroup)", "", rule.LANE_RACE, "v = load(shared_s", occurrence=0),
    Case("softmax", "sync(rows)", "", rule.UNSYNCED_READ, "peaks = load(peak_s"),
    Case("restart", "x_s[n]", "x_s[n]", rule.PHASE_DRIFT, "wait(full[n])"),
]


@pytest.mark.parametrize(
    "case",
    GEMM90 + KMEANS + GEMM100 + GEMM80 + OTHERS,
    ids=lambda c: f"{c.program}-{c.rule.split('/')[1]}-{c.old[:24].strip()}",
)
def test_one_edit_gives_one_finding_at_its_place(case: Case) -> None:
    text = edit(text_of(case.program), case.old, case.new, case.occurrence)
    found = read(text)
    assert [d.rule for d in found] == [case.rule], [(d.rule, line_of(text, d), d.message) for d in found]
    assert case.line in line_of(text, found[0])
    assert found[0].severity == "error"
    assert found[0].contract


def test_deadlock_says_who_waits_for_what() -> None:
    (found,) = read(edit(base("gemm_sm90"), "arrive(free[n - 1].on(1))", ""))
    assert "producer of CTA 1 waits for free[0] of CTA 1 (0 of 4 arrivals)" in found.message
    assert any("math" in step.text and "full[4]" in step.text for step in found.evidence)


def test_race_carries_both_places_and_the_release() -> None:
    text = edit(
        base("kmeans_assign"),
        "wgmma_wait(0)\n            arrive(free[n])",
        "arrive(free[n])\n            wgmma_wait(0)",
    )
    (found,) = read(text)
    lines = [text.split("\n")[r.span.line - 1].strip() for r in found.related]
    assert any(line.startswith("wgmma(") for line in lines)
    assert any(line.startswith("tma_load(c_s") for line in lines)
    assert next(step.text.split(":")[0] for step in found.evidence).startswith("math")


def test_bulk_depth_computes_the_admissible_depth() -> None:
    (found,) = read(edit(base("gemm_sm90"), "bulk_wait_read(1)", "bulk_wait_read(2)"))
    assert "at most 1 may stay pending" in found.message
