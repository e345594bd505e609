"""One-edit faults: the value reading must show each as a fault or a wrong number under some schedule."""

from __future__ import annotations

import re

import numpy as np
import pytest

from analyses import ValueFault, interpret
from tests.analyses.value_programs import KERNELS, SKETCHES, Program, bind_text, gemm, kmeans, tinygemm

KMEANS = kmeans(SKETCHES / "02_kmeans_sm90.cake", 1, 130, 700, 72, STAGES=2)
GEMM90 = gemm(SKETCHES / "01_gemm_sm90.cake", 520, 264, 456, BN=128, STAGES=2)
GEMM80 = gemm(SKETCHES / "03_gemm_sm80.cake", 136, 136, 456, STAGES=3)
GEMM100 = gemm(SKETCHES / "04_gemm_sm100.cake", 520, 264, 200, BN=128, STAGES=2)
TINY = tinygemm()
LONG = tinygemm(3600)  # every CTA fills its stages more than once
ISSUER = re.search(r"(\w+) = role\(thread\)\n\n", GEMM100.path.read_text())
assert ISSUER is not None
ISSUE = ISSUER[1]
RELEASE = "arrive(free[n - 1].on(0))\n{0}arrive(free[n - 1].on(1))"

# name -> (program, edits, {schedule: outcome}); one outcome may name several kinds
FAULTS: dict[str, tuple[Program, list[tuple[str, str]], dict[str, str]]] = {
    "x read before its copy": (KMEANS, [("        wait(x_full[0])\n", "")], {"newest": "poison"}),
    "stage read before its copy": (
        KMEANS,
        [("            wait(full[n])\n", "")],
        {"late:tma": "phase lag poison", "starve:producer": "poison"},
    ),
    "stage overwritten while read": (KMEANS, [("            wait(free[n - STAGES])\n", "")], {"greedy": "phase"}),
    "lag too long": (KMEANS, [("free[n - STAGES]", "free[n - STAGES - 1]")], {"greedy": "phase"}),
    "release before wgmma has read": (
        KMEANS,
        [
            (
                "            wgmma_wait(0)\n            arrive(free[n])\n",
                "            arrive(free[n])\n            wgmma_wait(0)\n",
            )
        ],
        {"late:wgmma": "wrong"},
    ),
    "accumulator read while pending": (KMEANS, [("            wgmma_wait(0)\n", "")], {"greedy": "pending-register"}),
    "group never committed": (KMEANS, [("            wgmma_commit()\n", "")], {"greedy": "pending-register"}),
    "no expect": (KMEANS, [("            expect(full[n])\n", "")], {"greedy": "deadlock"}),
    "no release": (KMEANS, [("            arrive(free[n])\n", "")], {"greedy": "deadlock"}),
    "accumulates onto nothing": (KMEANS, [("init=True", "init=False")], {"greedy": "poison"}),
    "rows written twice": (KMEANS, [("row + 64 * wg:], index", "row:], index")], {"greedy": "out-twice"}),
    "rows never written": (
        KMEANS,
        [("        store(label", "        if wg == 0:\n            store(label")],
        {"greedy": "out-unwritten"},
    ),
    "one warpgroup releases for both": (
        KMEANS,
        [("            arrive(free[n])\n", "            if wg == 0:\n                arrive(free[n])\n")],
        {"late:wgmma": "wrong"},
    ),
    "tail scores count": (KMEANS, [("wgmma_d.cols[BC], fill=inf", "wgmma_d.cols[BC]")], {"greedy": "wrong"}),
    "index outside the tensor": (KMEANS, [("c[b, n * BC:, :]", "c[b + 1, n * BC:, :]")], {"greedy": "bounds"}),
    "view outside the buffer": (
        KMEANS,
        [("x_s.rows(64 * wg, 64)", "x_s.rows(64 * wg + row, 64)")],
        {"greedy": "bounds"},
    ),
    "copy starts between 16-byte pieces": (
        GEMM90,
        [("k * BK:], signal", "k * BK + 1:], signal")],
        {"greedy": "tma-coordinate"},
    ),
    "fence before the unit has met": (
        GEMM90,
        [
            (
                "                fence_async()\n                sync(warpgroup)\n",
                "                sync(warpgroup)\n                fence_async()\n",
            )
        ],
        {"eager": "poison"},
    ),
    "a copy may overtake reads that nobody fenced": (
        LONG,
        [("            fence_async()\n", "")],
        {"greedy": "race-proxy"},
    ),
    "no proxy fence": (GEMM90, [("                fence_async()\n", "")], {"greedy": "poison"}),
    "store tile reused too early": (GEMM90, [("bulk_wait_read(1)", "bulk_wait_read(2)")], {"late:store": "wrong"}),
    "ends while a store reads": (
        GEMM90,
        [("    with math as wg:\n        with elected():\n            bulk_wait_read(0)\n", "")],
        {"greedy": "exit"},
    ),
    "only the own CTA is told": (
        GEMM90,
        [
            (RELEASE.format(" " * 24), "arrive(free[n - 1].on(0))"),
            (RELEASE.format(" " * 16), "arrive(free[n - 1].on(0))"),
        ],
        {"greedy": "deadlock"},
    ),
    "half of b never arrives": (GEMM90, [(", multicast=cluster", "")], {"greedy": "poison"}),
    "one thread stores what others still write": (
        GEMM90,
        [("                fence_async()\n                sync(warpgroup)\n", "                fence_async()\n")],
        {"greedy": "poison"},
    ),
    "unequal releases": (GEMM90, [("free[n - 1].on", "free[n].on")], {"greedy": "arrivals deadlock phase"}),
    "peer ends too early": (GEMM90, [("    sync(cluster)\n", "")], {"late:wgmma": "exit", "starve:math.1": "exit"}),
    "wgmma wait too shallow": (GEMM90, [("wgmma_wait(1)", "wgmma_wait(2)")], {"late:wgmma": "wrong"}),
    "second tile accumulates": (GEMM90, [("init=k == 0", "init=n == 0")], {"greedy": "poison"}),
    "last products not awaited": (
        GEMM90,
        [("            wgmma_wait(0)\n            with", "            with")],
        {"greedy": "pending-register"},
    ),
    "cp.async not awaited": (GEMM80, [("            cp_async_wait(STAGES - 2)\n", "")], {"greedy": "poison"}),
    "cp.async wait too shallow": (
        GEMM80,
        [("cp_async_wait(STAGES - 2)", "cp_async_wait(STAGES - 1)")],
        {"greedy": "poison"},
    ),
    "no sync in the loop": (
        GEMM80,
        [("(STAGES - 2)\n            sync(math)\n", "(STAGES - 2)\n")],
        {"greedy": "poison", "starve:math.7": "poison"},
    ),
    "overlay written while read": (
        GEMM80,
        [("        cp_async_wait(0)\n        sync(math)\n", "        cp_async_wait(0)\n")],
        {"greedy": "wrong"},
    ),
    "overlay read before written": (
        GEMM80,
        [("cast(acc, bf16))\n        sync(math)\n", "cast(acc, bf16))\n")],
        {"greedy": "wrong poison"},
    ),
    "accumulator reused before drained": (
        GEMM100,
        [("wait(drained[t - 2])", "wait(drained[t - 3])")],
        {"late:store": "lag wrong"},
    ),
    "tmem load before the product is done": (
        GEMM100,
        [
            ("            wait(done[t])\n", ""),
            ("                tmem_load_wait()\n", "                wait(done[t])\n                tmem_load_wait()\n"),
        ],
        {"eager": "poison wrong"},
    ),
    "tmem load not awaited": (GEMM100, [("                tmem_load_wait()\n", "")], {"greedy": "pending-register"}),
    "drained too early": (GEMM100, [("if j == BN // 64 - 1:", "if j == 0:")], {"starve:epi": "wrong lag"}),
    "peer's epilogue not counted": (GEMM100, [("drained[t].on(0)", "drained[t]")], {"late:store": "wrong lag"}),
    "peer's stage not released": (GEMM100, [("free[n], multicast=cluster", "free[n]")], {"greedy": "deadlock"}),
    "expect without copies": (
        GEMM100,
        [("                if lead:\n                    expect(full[n])\n", "                expect(full[n])\n")],
        {"greedy": "tx"},
    ),
    "partial sums not met": (TINY, [("    sync(cluster)\n", "")], {"greedy": "poison"}),
    "partial sums in the wrong CTA": (TINY, [(".on(0), acc)", ", acc)")], {"greedy": "poison"}),
    "reads ahead of the ring": (TINY, [("            wait(full[n])\n", "")], {"greedy": "lag phase poison"}),
}
CASES = [(name, s) for name, (_, _, seen) in FAULTS.items() for s in seen]


@pytest.mark.parametrize(("name", "schedule"), CASES, ids=[f"{n}-{s}" for n, s in CASES])
def test_fault_shows(name: str, schedule: str) -> None:
    program, edits, seen = FAULTS[name]
    assert program.outcome(program.bound(edits), schedule) in seen[schedule].split()


@pytest.mark.parametrize(
    "program", [KMEANS, GEMM90, GEMM80, GEMM100, TINY], ids=["k-means", "sm_90a", "sm_80", "sm_100a", "tiny"]
)
def test_without_a_fault_the_same_inputs_are_right(program: Program) -> None:
    assert program.outcome(program.bound(), "greedy") == "right"


def fault(program: Program, edits: list[tuple[str, str]], schedule: str = "greedy") -> ValueFault:
    with pytest.raises(ValueFault) as caught:
        interpret(program.bound(edits), program.tensors, program.scalars, schedule=schedule)
    return caught.value


def test_a_fault_says_where_and_why() -> None:
    f = fault(GEMM90, FAULTS["no proxy fence"][1])
    line = GEMM90.path.read_text().replace("                fence_async()\n", "").splitlines()[f.span.line - 1]
    assert "tma_store" in line
    assert f.diagnostic.subject.role == "math"
    assert f.diagnostic.rule == "value/poison"
    assert any("fence_async" in note for note, _ in f.notes)


def test_a_phase_fault_names_both_uses() -> None:
    f = fault(KMEANS, FAULTS["stage overwritten while read"][1])
    assert "use 2 of full" in f.message
    assert "at use 0" in f.message


def test_a_deadlock_says_who_waits_for_what() -> None:
    f = fault(KMEANS, FAULTS["no expect"][1])
    assert "producer of CTA 0" in f.message
    assert "waits for free[0]" in f.message
    assert "math[1] of CTA 0" in f.message
    assert "waits for full[0]" in f.message


def test_asserted_arrivals_are_checked() -> None:
    text = KMEANS.path.read_text()
    f = fault(KMEANS, [("free = mbarrier(stages=STAGES)", "free = mbarrier(stages=STAGES, arrivals=4)")])
    assert f.kind == "arrivals"
    assert "asserts 4 arrivals" in f.message
    assert text.splitlines()[f.span.line - 1].strip().startswith("free = mbarrier")


def test_asserted_bytes_are_checked() -> None:
    f = fault(KMEANS, [("full = mbarrier(stages=STAGES)", "full = mbarrier(stages=STAGES, bytes=1024)")])
    assert f.kind == "tx"
    assert "asserts 1024 bytes" in f.message


ASSUME = """
@kernel(target="sm_80")
def gather(x: In[f32, N, 32], who: In[i32, M], y: Out[f32, M, 32]):
    launch(ctas=M)
    rows = role(warp)
    with rows:
        r = load(who[cta])
        assume(0 <= r < N)
        store(y[cta, :], load(x[r, :], vec(1).cols[32]))
"""


def test_assumed_facts_are_checked() -> None:
    bound = bind_text(ASSUME)
    x = np.arange(96, dtype=np.float32).reshape(3, 32)
    good = interpret(bound, {"x": x, "who": np.array([2, 0], np.int32)})["y"]
    assert np.array_equal(good, x[[2, 0]])
    with pytest.raises(ValueFault, match="value/assume"):
        interpret(bound, {"x": x, "who": np.array([2, 3], np.int32)})


NEVER = """
@kernel(target="sm_80")
def pad(x: In[f32, M], y: Out[f32, M]):
    launch(ctas=1)
    rows = role(warp)
    s = smem(f32, 64)
    with rows:
        store(s.cols(0, 32), load(x[0:], vec(1).cols[32]))
        sync(warp)
        v = load(s, vec(2).cols[64])
        store(y[0:], KEEP)
"""


def test_padding_that_reaches_no_output_is_no_fault() -> None:
    x = np.arange(32, dtype=np.float32)
    bound = bind_text(NEVER.replace("KEEP", "v + 1.0"))
    assert np.array_equal(interpret(bound, {"x": x})["y"], x + 1)
    # a select hides what it does not take
    hidden = bind_text(NEVER.replace("KEEP", "select(col_index(v) < 32, v, 0.0)"))
    assert np.array_equal(interpret(hidden, {"x": x})["y"], x)


def test_poison_that_reaches_an_output_is_named() -> None:
    x = np.arange(33, dtype=np.float32)
    with pytest.raises(ValueFault) as caught:
        interpret(bind_text(NEVER.replace("KEEP", "v + 1.0")), {"x": x})
    assert caught.value.kind == "poison"
    assert "reads bytes of s that are not there yet" in caught.value.notes[0][0]


def test_a_workspace_can_start_undefined() -> None:
    text = """
@kernel(target="sm_80")
def bump(x: InOut[f32, M]):
    launch(ctas=1)
    rows = role(warp)
    with rows:
        store(x[0:], load(x[0:], vec(1).cols[32]) + 1.0)
"""
    bound = bind_text(text)
    assert interpret(bound, {"x": np.zeros(32, np.float32)})["x"].sum() == 32
    with pytest.raises(ValueFault, match="undefined values to x"):
        interpret(bound, {"x": np.zeros(32, np.float32)}, undefined={"x"})


def test_grid_constant_gemm_is_unharmed_by_starving_everyone() -> None:
    program = gemm(KERNELS / "gemm_sm90.cake", 136, 136, 136)
    bound = program.bound()
    for schedule in ("starve:producer", "starve:math", "starve:math.0", "starve:math.1"):
        assert program.outcome(bound, schedule) == "right"
