"""Fixes: each offered one is verified on a copy, changes only what it says, and does not synchronise wider than needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyses import verify_text, with_fixes
from analyses.fixtext import Source, apply, call_argument, index_of, indices, places
from cake_ir.diagnostics import Edit, Span

KERNELS = {p.stem: p.read_text() for p in (Path(__file__).parents[2] / "corpus" / "kernels").glob("*.cake")}


def drop(text: str, line: str, occurrence: int = 0) -> str:
    """The text without the n-th line that reads `line`."""
    lines = text.split("\n")
    at = [i for i, one in enumerate(lines) if one.strip() == line][occurrence]
    return "\n".join(lines[:at] + lines[at + 1 :])


CASES = [
    ("gemm_sm90", drop(KERNELS["gemm_sm90"], "sync(warpgroup)"), "sync(warpgroup)"),
    ("gemm_sm80", drop(KERNELS["gemm_sm80"], "sync(math)", 1), "sync(math)"),
    ("softmax", drop(KERNELS["softmax"], "sync(rows)"), "sync(rows)"),
    ("gemm_sm100", KERNELS["gemm_sm100"].replace("drained[t - 2]", "drained[t - 3]"), "drained[t - 2]"),
    ("gemm_sm100", drop(KERNELS["gemm_sm100"], "tmem_load_wait()"), "tmem_load_wait()"),
    ("gemm_sm90", KERNELS["gemm_sm90"].replace("expect(full[n])", "arrive(full[n])"), "expect"),
    ("gemm_sm90", KERNELS["gemm_sm90"].replace("expect(full[n])", "expect(full[n + 1])"), "full[n]"),
    ("kmeans_assign", drop(KERNELS["kmeans_assign"], "arrive(free[n])"), "arrive(free[n])"),
]


def moved(text: str, line: str, occurrence: int, above: str) -> str:
    """The text with the n-th line that reads `line` put above the first that reads `above`, at its indentation."""
    lines = drop(text, line, occurrence).split("\n")
    at = next(i for i, one in enumerate(lines) if one.strip() == above)
    pad = " " * (len(lines[at]) - len(lines[at].lstrip()))
    return "\n".join([*lines[:at], pad + line, *lines[at:]])


CASES += [
    ("gemm_sm100", moved(KERNELS["gemm_sm100"], "wait(done[t])", 0, "wait(drained[t - 2])"), "wait(done[t])"),
    ("gemm_sm100", moved(KERNELS["gemm_sm100"], "wait(full[n])", 0, "wait(free[n - STAGES + s])"), "wait(full[n])"),
    ("gemm_sm100", KERNELS["gemm_sm100"].replace("wait(full[n])", "wait(done[n])"), "wait on full, not done"),
    (
        "gemm_sm100",
        KERNELS["gemm_sm100"].replace("free = mbarrier(stages=STAGES, ", "free = mbarrier("),
        "stages=STAGES",
    ),
    (
        "gemm_sm90",
        KERNELS["gemm_sm90"].replace("expect(full[n])", "expect(full[n])\n                expect(full[n])"),
        "once is enough: expect(full[n])",
    ),
    (
        "gemm_sm90",
        moved(KERNELS["gemm_sm90"], "arrive(free[n - 1].on(1))", 1, "fence_async()"),
        "beside its twin: arrive(free[n - 1].on(1))",
    ),
    ("kmeans_assign", KERNELS["kmeans_assign"].replace("t += 1", "t += 2"), "t += 1"),
    (
        "kmeans_assign",
        moved(KERNELS["kmeans_assign"], "arrive(free[n])", 0, "expect(full[n])"),
        "where its data are used: arrive(free[n])",
    ),
    (
        "kmeans_assign",
        moved(KERNELS["kmeans_assign"], "sync(turn[wg])", 0, "best = fragment(f32, wgmma_d[64, 8], inf)"),
        "take or pass the turn here: sync(turn[wg])",
    ),
]


@pytest.mark.parametrize(
    ("kernel", "text", "part"), CASES, ids=lambda x: x if isinstance(x, str) and len(x) < 30 else ""
)
def test_the_offered_fix_is_verified_and_names_the_missing_thing(kernel: str, text: str, part: str) -> None:
    report = verify_text(text, fixes=True)
    fixes = [f for d in report.diagnostics for f in d.fixes]
    assert fixes and all(f.verified for f in fixes), [d.render() for d in report.diagnostics]
    assert part in fixes[0].title or any(part in e.new for e in fixes[0].edits), fixes[0]
    again = verify_text(apply(text, fixes[0].edits))
    assert again.accepted, [d.render() for d in again.diagnostics]


def test_a_fix_of_one_fault_is_offered_although_another_remains() -> None:
    text = drop(drop(KERNELS["gemm_sm90"], "fence_async()"), "wait(full[n])")
    report = verify_text(text, fixes=True)
    tries = 0
    while not report.accepted and tries < 3:
        fix = next(f for d in report.diagnostics for f in d.fixes)
        text = apply(text, fix.edits)
        report = verify_text(text, fixes=True)
        tries += 1
    assert report.accepted and tries == 2


def test_a_fault_without_a_mechanical_repair_gets_none() -> None:
    text = KERNELS["gemm_sm90"].replace("cluster=2)", "cluster=32)")
    report = verify_text(text, fixes=True)
    assert not report.accepted and not [f for d in report.diagnostics for f in d.fixes]


def test_no_time_means_no_fixes_and_the_same_findings() -> None:
    text = drop(KERNELS["gemm_sm90"], "wait(full[n])")
    found = verify_text(text).diagnostics
    assert with_fixes(found, text, budget=0) == found and not [f for d in found for f in d.fixes]


def test_edits_apply_from_the_end_and_may_insert_at_the_end_of_the_text() -> None:
    text = "a = 1\nb = 2"
    edits = (
        Edit(span=Span(line=1, col=5, end_line=1, end_col=6), new="10"),
        Source(text).after(2, "c = 3"),
    )
    assert apply(text, edits) == "a = 10\nb = 2\nc = 3"


def test_reading_calls_and_indices_of_a_line() -> None:
    code = (
        "tma_load(b_s[n].rows(half, BN // 2), b[col + half:, k * BK:], signal=full[n + f[1]].on(0), multicast=cluster)"
    )
    assert call_argument(code, "signal") == "full[n + f[1]].on(0)"
    assert call_argument(code, "cache") is None
    assert index_of(code, "full") == "n + f[1]" and index_of(code, "free") is None
    assert indices(code)[0] == ("b_s", "n")


RING = """
@kernel(target="sm_90a")
def ring(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=4)
    team = role(warp)
    buf = smem(bf16, 16, 64, stages=3)
    with team:
        n = 0
        for t in range(cta, ceil_div(M, 16), 4):
            if n == 0:
                cp_async(buf[n], x[16 * t:, :])
                cp_async_commit()
            cp_async(buf[n + 1], x[16 * (t + 4):, :])
            cp_async_commit()
            cp_async_wait(1)
            sync(warp)
            v = load(buf[n], vec(8, 8)[16, 64])
            store(y[16 * t:, :], v)
            sync(warp)
            n += 1
"""


@pytest.mark.parametrize(
    ("old", "new", "title"),
    [
        ("load(buf[n],", "load(buf[n + 1],", "read use n instead of n + 1: buf[n] (in line 17)"),
        (
            "            n += 1\n",
            "",
            "advance the use number at the end of the loop: n += 1 (after line 19: `sync(warp)`)",
        ),
        ("cp_async_wait(1)", "cp_async_wait(2)", "wait for older groups: cp_async_wait(1) (in line 15)"),
    ],
)
def test_a_wrong_use_number_is_repaired_before_a_wait_is_deepened(old: str, new: str, title: str) -> None:
    assert verify_text(RING).accepted and RING.count(old) == 1
    text = RING.replace(old, new)
    found = verify_text(text, fixes=True).diagnostics
    assert [f.title for f in found[0].fixes] == [title]
    depth = 0 if "wait" not in old else 1
    assert f"at most {depth} may stay pending here" in found[0].message
    assert apply(text, found[0].fixes[0].edits) == RING


SUMS = """
@kernel(target="sm_90a")
def norm(x: In[f32, M, 512], y: Out[f32, M, 512]):
    launch(ctas=M)
    parts = role(warp, count=4)
    sums = smem(f32, 4)
    with parts as w:
        v = load(x[cta, 128 * w:], vec(4).cols[128])
        store(sums[w], row_sum(v))
        sync(parts)
        s = row_sum(load(sums, vec(1).cols[4]))
        sync(parts)
        store(sums[w], row_sum(v * v))
        sync(parts)
        q = row_sum(load(sums, vec(1).cols[4]))
        store(y[cta, 128 * w:], v * s + q)
"""


def test_a_tile_used_twice_blames_the_store_that_overwrites_and_the_fix_names_its_line() -> None:
    text = drop(SUMS, "sync(parts)", 1)
    (found,) = verify_text(text, fixes=True).diagnostics
    assert (found.rule, found.span.line, found.related[0].span.line) == ("data/overwritten-while-read", 12, 11)
    assert "overwrites sums while parts[" in found.message
    assert found.fixes[0].title == "order the accesses: sync(parts) (before line 12: `store(sums[w], row_sum(v * v))`)"
    assert verify_text(SUMS).accepted and apply(text, found.fixes[0].edits) == SUMS


def test_places_of_edits_are_named_for_people() -> None:
    src = Source("with a:\n    one\n    two\n\nwith b:\n    three\n")
    assert places(src, (src.before(3, "x"),)) == "before line 3: `two`"
    assert places(src, (src.after(3, "x"),)) == "after line 3: `two`"
    assert places(src, (src.before(5, "x"),)) == "before line 5: `with b:`"
    assert places(src, (src.delete(2), src.replace(6, "three", "3"))) == "line 2 goes; in line 6"  # type: ignore[arg-type]
    assert places(src, src.move(2, 2, 3)) == "line 2 goes; after line 3: `two`"
    long = Source("a" * 80 + "\n")
    assert places(long, (long.before(1, "x"),)) == f"before line 1: `{'a' * 59}…`"
