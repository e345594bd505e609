"""Explanations of programs whose limiter is known: class, place and cost of the terms, neighbours, advice that holds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from analyses import verify_text
from analyses.cost.changes import changes
from analyses.cost.estimate import Estimate, estimate_on
from analyses.cost.explain import Explanation, as_dict, explain
from analyses.cost.limiters import CLASSES, bound_class, occupancy_limit
from analyses.cost.machine import Machine
from analyses.cost.terms import TERMS
from analyses.fixtext import apply
from cake_ir import bind, parse, targets
from cake_ir import bound as B
from server.programs import apply_edits
from server.results import text_edits

SHEET = Machine.of(targets.get("sm_90a"), None)
"""The data sheet: what a calibration says may change, who limits these programs does not."""
WIDE = replace(SHEET, hbm_read=1e15, hbm_write=1e15, l2=1e15, port=1e6)
"""The same with endless memory."""

RING = """
@kernel(target="sm_90a")
def stream(x: In[bf16, M, 64], y: Out[f32, G, 16]):
    where(M % 16 == 0, M > 0)
    launch(ctas=G)
    producer = role(thread)
    reader = role(warp)
    tile = smem(bf16, 16, 64, stages=1)
    full = mbarrier(stages=1)
    free = mbarrier(stages=1)
    with reader:
        total = fragment(f32, vec(4, 16).rows[16], 0.0)
    for n in range(M // 16):
        with producer:
            wait(free[n - 1])
            expect(full[n])
            tma_load(tile[n], x[16 * n:, :], signal=full[n])
        with reader:
            wait(full[n])
            total = total + row_sum(cast(load(tile[n], vec(4, 16)[16, 64]), f32))
            fence_async()
            arrive(free[n])
    with reader:
        store(y[cta, :], total)
"""
TUNABLE = (
    RING.replace("y: Out[f32, G, 16])", "y: Out[f32, G, 16], *, DEPTH: range(1, 1000000) = 1)")
    .replace("stages=1", "stages=DEPTH")
    .replace("n - 1", "n - DEPTH")
)
PRODUCT = """
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[f32, M, N], *, WIDE: (64, 128, 256) = 128, DEEP: range(2, 9) = 6):
    where(K > 0, K % 64 == 0, M % 128 == 0, N % WIDE == 0)
    tiles = tile_space(M // 128, N // WIDE)
    launch(ctas=tiles.count)
    producer = role(thread, warps=4)
    math = role(warpgroup, count=2)
    a_s = smem(bf16, 128, 64, stages=DEEP, swizzle=128)
    b_s = smem(bf16, WIDE, 64, stages=DEEP, swizzle=128)
    full = mbarrier(stages=DEEP)
    free = mbarrier(stages=DEEP)
    i, j = tiles.at(cta)
    with math as wg:
        acc = fragment(f32, wgmma_d[64, WIDE])
    for n in range(K // 64):
        with producer:
            wait(free[n - DEEP])
            expect(full[n])
            tma_load(a_s[n], a[128 * i:, 64 * n:], signal=full[n])
            tma_load(b_s[n], b[WIDE * j:, 64 * n:], signal=full[n])
        with math as wg:
            wait(full[n])
            wgmma(acc, a_s[n].rows(64 * wg, 64), b_s[n], init=n == 0)
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
    with math as wg:
        store(d[128 * i + 64 * wg:, WIDE * j:], acc)
"""
ROWS = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 1024], y: Out[f32, M, 1024], trips: i32):
    launch(ctas=M)
    units = role(warp, count=4)
    with units as w:
        v = load(x[cta, 256 * w:], vec(4).cols[256])
        for t in range(trips):
            v = v * 0.5 + 1.0
        store(y[cta, 256 * w:], v)
"""
MEET = """
@kernel(target="sm_90a")
def meet(x: In[f32, 64], y: Out[f32, G, 64], trips: i32):
    launch(ctas=G)
    left = role(warp, count=4)
    with left as w:
        for t in range(trips):
            sync(left)
        if w == 0:
            store(y[cta, :], load(x[:], vec(2).cols[64]))
"""
CHASE = """
@kernel(target="sm_90a")
def chase(x: In[f32, 4096], y: Out[f32, G, 512], trips: i32):
    launch(ctas=G)
    units = role(warp, count=4, registers=232)
    with units as w:
        v = fragment(f32, vec(4).cols[128], 0.0)
        for t in range(trips):
            v = v + load(x[128 * (t % 32):], vec(4).cols[128])
        store(y[cta, 128 * w:], v)
"""
TURN = """
@kernel(target="sm_90a")
def turn(x: In[f32, 64, 64], y: Out[f32, G, 64, 64], trips: i32):
    launch(ctas=G)
    units = role(warp, count=8)
    tile = smem(f32, 64, 64)
    with units as w:
        v = load(x[8 * w:, :], vec(4, 16)[8, 64])
        for t in range(trips):
            store(tile.rows(8 * w, 8), v)
            sync(warp)
            v = load(tile.rows(8 * w, 8), vec(4, 16)[8, 64])
            sync(warp)
        store(y[cta, 8 * w:, :], v)
"""
HALF = """
@kernel(target="sm_90a")
def half(x: In[f32, M, 1024], y: Out[f32, M, 1024], *, UNITS: (2, 4) = 4):
    launch(ctas=M)
    units = role(warp, count=UNITS)
    with units as w:
        store(y[cta, 256 * w:], load(x[cta, 256 * w:], vec(4).cols[256]))
"""
AGAIN = (
    RING.replace("x: In[bf16, M, 64], y: Out[f32, G, 16])", "x: In[bf16, G, 512, 64], y: Out[f32, G, 16], passes: i32)")
    .replace("    where(M % 16 == 0, M > 0)\n", "")
    .replace("range(M // 16)", "range(32 * passes)")
    .replace("x[16 * n:, :]", "x[cta, 16 * (n % 32):, :]")
    .replace("stages=1", "stages=8")
    .replace("n - 1", "n - 8")
)
"""Each CTA reads its own rows again and again."""
SQUARE = {"M": 4096, "N": 4096, "K": 4096}
KNOWN: dict[str, tuple[str, dict[str, int], Machine, str]] = {
    # by class: program, shape, machine, a part of the line that the first limiter names
    "tensor": (PRODUCT, {"M": 128 * 66, "N": 256, "K": 8192}, WIDE, "wgmma("),
    "hbm": (ROWS, {"M": 132 * 128, "trips": 0}, SHEET, "load("),
    "l2": (AGAIN, {"G": 132 * 4, "passes": 8}, replace(SHEET, l2=SHEET.l2 / 8, hbm_read=1e15), "tma_load("),
    "smem": (TURN, {"G": 132 * 8, "trips": 400}, SHEET, "tile.rows("),
    "issue": (ROWS, {"M": 132 * 12, "trips": 2000}, SHEET, "v * 0.5"),
    "latency": (RING, {"M": 4096, "G": 132}, SHEET, "tma_load("),
    "barrier wait": (MEET, {"G": 132, "trips": 1000}, SHEET, "sync(left)"),
    "occupancy": (CHASE, {"G": 132 * 16, "trips": 300}, SHEET, "load("),
    "tail": (PRODUCT, {"M": 128 * 133, "N": 128, "K": 8192}, WIDE, "launch("),
    "launch": (ROWS, {"M": 4, "trips": 0}, SHEET, "launch("),
}  # fmt: skip


def told(
    text: str, shape: dict[str, int], machine: Machine = SHEET, neighbours: bool = False, **more: Any
) -> Explanation:
    return explain(text, shape, machine=machine, neighbours=neighbours, **more)


def timed(text: str, shape: dict[str, int], bindings: dict[str, Any] | None = None) -> Estimate:
    parsed = parse(text)
    assert parsed.file is not None, [d.render() for d in parsed.diagnostics]
    bound = bind(parsed.file, bindings).bound
    assert bound is not None
    return estimate_on(bound, shape, SHEET, explain=False)


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_limiter_gives_its_class_and_its_line(name: str) -> None:
    text, shape, machine, line = KNOWN[name]
    assert verify_text(text).accepted
    found = told(text, shape, machine)
    assert found.bound_class == name == found.estimate.bound_class and found.why.startswith(f"{name}: "), found.why
    first = next(x for x in found.limiters if CLASSES.get(x.what) == ("latency" if name == "occupancy" else name))
    assert line in text.split("\n")[first.line - 1], first
    assert first.cost_us == found.costs[first.what] and first.message and 0 < first.share <= 1


def test_costs_are_what_the_time_falls_by() -> None:
    found = told(RING, {"M": 1024, "G": 132})
    parsed = parse(RING)
    assert parsed.file is not None
    bound = bind(parsed.file).bound
    assert bound is not None and set(found.costs) == set(TERMS)
    for term in ("ring", "launch", "tensor"):
        less = estimate_on(bound, {"M": 1024, "G": 132}, SHEET, without=frozenset({term}), explain=False)
        assert found.costs[term] == pytest.approx(max(0.0, found.estimate.time_us - less.time_us))
    ring = next(x for x in found.limiters if x.what == "ring")
    assert "the ring of tile has 1 stage:" in ring.message and (ring.role, ring.op) == ("producer", "tma_load")
    # the reader waits for the barrier, and longer for the copies that signal it than for its own load of what they brought
    late = next(x for x in found.limiters if x.what == "load latency")
    assert (late.role, late.op) == ("producer", "tma_load") and "`tma_load(tile[n]" in late.message


def test_no_dear_term_leaves_the_busiest_resource() -> None:
    found = told(ROWS, {"M": 64, "trips": 0}).estimate
    assert bound_class({"hbm": 0.0, "ring": 0.001 * found.time_us}, found) == found.bound_by
    waits = {"load latency": 0.5 * found.time_us}
    assert bound_class(waits, replace(found, waves=3.0), "registers") == "occupancy"
    assert (
        bound_class(waits, replace(found, waves=0.5), "registers")
        == bound_class(waits, replace(found, waves=3.0))
        == "latency"
    )
    assert occupancy_limit({"threads": 16, "registers": 4, "shared memory": 9, "blocks": 32}) == "registers"
    assert occupancy_limit({"threads": 16, "registers": 12, "shared memory": 9, "blocks": 32}) == ""


# ---- neighbours and advice


def test_one_more_stage_is_advised_as_edits_that_hold() -> None:
    shape = {"M": 2048, "G": 132}
    found = told(RING, shape, neighbours=True)
    best = found.advice[0]
    assert "stages of tile (stages 1 -> " in best.title and "ring then costs" in best.why
    assert any(
        n.what.startswith("one more stage of tile (stages 1 -> 2)") and (n.saves_us or 0) > 0 for n in found.sensitivity
    )
    assert best.diagnostic.severity == "advice" and best.diagnostic.fixes == (best.fix,) and best.fix.verified
    stages = best.fix.edits[0].new
    pairs = text_edits(RING, best.fix)
    assert pairs is not None
    edited = apply_edits(RING, pairs)
    assert (
        edited
        == apply(RING, best.fix.edits)
        == RING.replace("stages=1", f"stages={stages}").replace("n - 1", f"n - {stages}")
    )
    assert verify_text(edited).accepted
    assert timed(edited, shape).time_us == pytest.approx(best.time_us) and best.time_us < 0.97 * found.estimate.time_us
    json.dumps(as_dict(found))


def test_a_tunable_is_advised_as_a_binding_under_the_name_it_was_given_by() -> None:
    shape = {"M": 2048, "G": 132}
    found = told(TUNABLE, shape, neighbours=True, bindings={"stream.DEPTH": 1})
    best = found.advice[0]
    assert set(best.bindings) == {"stream.DEPTH"} and not best.fix.edits and not best.diagnostic.fixes
    stages = best.bindings["stream.DEPTH"]
    assert f"(DEPTH 1 -> {stages})" in best.title and verify_text(TUNABLE, {"DEPTH": stages}).accepted
    assert timed(TUNABLE, shape, {"DEPTH": stages}).time_us == pytest.approx(best.time_us)
    assert sum("DEPTH" in a.title for a in found.advice) == 1, "one offer of each tunable"
    times = [a.time_us for a in found.advice]
    assert times == sorted(times) and len(times) <= 3


def test_a_larger_step_is_tried_only_while_the_smaller_one_helps() -> None:
    fast = told(TUNABLE, {"M": 2048, "G": 132}, neighbours=True, bindings={"DEPTH": 64})
    assert [n.bindings for n in fast.sensitivity if n.bindings.get("DEPTH", 0) > 64] == [{"DEPTH": 65}]  # type: ignore[operator]
    slow = told(TUNABLE, {"M": 2048, "G": 132}, neighbours=True)
    tried = sorted(int(n.bindings["DEPTH"]) for n in slow.sensitivity if n.bindings)
    assert tried[:2] == [2, 4] and tried[-1] < 64


def test_rejected_neighbours_name_their_rule() -> None:
    found = told(PRODUCT, SQUARE, neighbours=True, bindings={"DEEP": 7})
    rejected = {n.what: n for n in found.sensitivity if n.time_us is None}
    more = next(n for what, n in rejected.items() if what.startswith("one more stage of a_s, b_s"))
    assert more.rule == "hardware/smem-capacity" and "more than a block has" in more.message
    count = next(n for what, n in rejected.items() if what.startswith("fewer warpgroups"))
    assert count.rule and not count.verified
    # what does not fit comes again with the stages that do
    wide = [n for n in found.sensitivity if n.bindings.get("WIDE") == 256]
    assert {n.bindings.get("DEEP") for n in wide} == {None, 4}
    assert (
        next(n for n in wide if "DEEP" in n.bindings).time_us and next(n for n in wide if "DEEP" not in n.bindings).rule
    )
    assert all(n.saves_us == pytest.approx(found.estimate.time_us - n.time_us) for n in found.sensitivity if n.time_us)


def test_what_is_fast_and_wrong_is_not_advised() -> None:
    found = told(HALF, {"M": 132 * 64}, neighbours=True)
    wrong = next(n for n in found.sensitivity if n.bindings == {"UNITS": 2})
    assert wrong.verified is False and wrong.rule == "data/output-unwritten" and wrong.time_us is None
    assert all(a.bindings.get("UNITS") != 2 for a in found.advice)


def test_registers_that_keep_ctas_away_are_lowered() -> None:
    found = told(CHASE, {"G": 132 * 16, "trips": 100}, neighbours=True)
    best = found.advice[0]
    assert found.bound_class == "occupancy" and best.title.startswith("fewer registers of units (registers 232 -> ")
    assert "CTAs an SM instead of 2" in best.why and best.time_us < 0.8 * found.estimate.time_us
    free = CHASE.replace(", registers=232", "")
    assert all(n.kind != "registers" for n in told(free, {"G": 132, "trips": 8}, neighbours=True).sensitivity)


def test_advice_keeps_the_distance_that_the_model_resolves() -> None:
    shape = {"M": 2048, "G": 132}
    assert told(RING, shape, neighbours=True).advice
    assert not told(RING, shape, neighbours=True, resolution=50.0).advice


# ---- what a number is


def kinds(text: str) -> dict[tuple[str, ...], str]:
    parsed = parse(text)
    assert parsed.file is not None
    bound = bind(parsed.file).bound
    assert isinstance(bound, B.BoundKernel)
    found = changes(text, parsed.file.kernels[0], bound.tunables, frozenset({"cluster", "griddepcontrol"}))
    return {(*c.bindings, *(e.new for e in c.edits)): c.kind for c in found}


def test_a_number_is_what_it_drives_whatever_its_name() -> None:
    found = kinds(PRODUCT)
    assert found["WIDE",] == "tile" and found["DEEP",] == "stages"
    assert found["64", "64"] == "swizzle" and found[", cluster=2",] == "cluster"
    assert found["3",] == found["1",] == "roles"
    assert "dependent launch" in found.values()
    swapped = PRODUCT.replace("WIDE", "STAGES").replace("DEEP", "BN")
    renamed = kinds(swapped)
    assert renamed["STAGES",] == "tile" and renamed["BN",] == "stages"


def test_what_callers_see_is_left_alone() -> None:
    text = HALF.replace("y: Out[f32, M, 1024]", "y: Out[f32, M, 256 * UNITS]")
    assert ("UNITS" in str(kinds(HALF))) and ("UNITS" not in str(kinds(text)))


def test_constants_and_conditions_are_followed_to_what_they_drive() -> None:
    text = (
        PRODUCT.replace("128 * i", "BM * i").replace("M // 128", "M // BM").replace("smem(bf16, 128", "smem(bf16, BM")
    )
    text = text.replace("    tiles =", "    WGS = 2\n    BM = 64 * WGS\n    tiles =").replace("count=2", "count=WGS")
    text = text.replace("DEEP: range(2, 9) = 6", "DEEP: range(2, 9) = 6, EARLY: (False, True) = False")
    text = text.replace("    i, j = ", "    if EARLY:\n        griddep_wait()\n        griddep_launch()\n    i, j = ")
    found = kinds(text)
    assert verify_text(text).accepted
    assert found["3",] == "roles" and found["EARLY",] == "dependent launch"
