"""Proofs of the order reading: what is proved holds for larger trip counts and shapes too, and faults that show late are refuted or
left unproved, with the premise named."""

from __future__ import annotations

import random
from typing import Any

import pytest

from analyses import verify_text
from analyses.order import check_order, cutoff
from analyses.order.forms import Broken
from analyses.order.log import Log
from analyses.order.machine import Machine
from analyses.order.premises import premises
from cake_ir import bind, parse
from cake_ir.bound import BoundKernel
from cake_ir.derive import Derived, derive
from cake_ir.skeleton import SkeletonLimit
from cake_ir.witness import Witness, traces
from tests.analyses.hazard_table.cases import source
from tests.analyses.order.drawn import program
from tests.analyses.order.programs import SPLIT_K, base, bound, edit
from tests.mutation.mutants import mutations, text_of
from tests.mutation.subjects import subjects

ORDER = ("progress", "barrier protocol", "cluster lifetime", "data order", "arrival counts", "expected bytes")
B0, B1, B2 = source("b0"), source("b1"), source("b2")
RELEASE = "            with elected():\n                arrive(empty[k])\n"
WAIT = "            wait(empty[k - STAGES])\n"
TILE_WAIT = "            wait(drained[t - 2])\n"

TWO_RINGS = """
@kernel(target="sm_90a")
def two(a: In[bf16, M, K], d: Out[bf16, M, K], *, S1: (2, 3, 4) = 3, S2: (2, 5) = 5):
    where(K % 8 == 0)
    launch(ctas=ceil_div(M, 64))
    math = role(warpgroup)
    producer = role(thread)
    a_s = smem(bf16, 64, 64, stages=S1, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=S2, swizzle=128)
    fa = mbarrier(stages=S1)
    ea = mbarrier(stages=S1)
    fb = mbarrier(stages=S2)
    eb = mbarrier(stages=S2)
    row = cta * 64
    for k in range(ceil_div(K, 64)):
        with producer:
            wait(ea[k - S1])
            expect(fa[k])
            tma_load(a_s[k], a[row:, k * 64:], signal=fa[k])
            wait(eb[k - S2])
            expect(fb[k])
            tma_load(b_s[k], a[row:, k * 64:], signal=fb[k])
        with math:
            wait(fa[k])
            x = cast(load(a_s[k], vec(8, 8)[64, 64]), f32)
            wait(fb[k])
            y = cast(load(b_s[k], vec(8, 8)[64, 64]), f32)
            fence_async()
            arrive(ea[k])
            arrive(eb[k])
            store(d[row:, k * 64:], cast(x + y, bf16))
"""


OWN_LOOPS = B0.replace(
    "    for k in range(KT):\n        with producer:\n", "    with producer:\n        for k in range(KT):\n"
).replace(
    "        with math as wg:\n            wait(full[k])",
    "    with math as wg:\n        for k in range(KT):\n            wait(full[k])",
)

OWN_TILES = """
@kernel(target="sm_100a")
def own(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[bf16, M, N], *, STAGES: range(2, 5) = 2):
    where(K > 0, K % 8 == 0, N % 8 == 0)
    tiles = tile_space(ceil_div(M, 128), ceil_div(N, 256))
    launch(ctas=min(tiles.count, device.sms))
    epilogue = role(warpgroup)
    producer = role(thread)
    issuer = role(thread)
    a_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)
    b_s = smem(bf16, 256, 64, stages=STAGES, swizzle=128)
    acc_t = tmem(f32, 128, 256, stages=2, owner=issuer)
    full = mbarrier(stages=STAGES)
    empty = mbarrier(stages=STAGES)
    done = mbarrier(stages=2)
    drained = mbarrier(stages=2)
    with producer:
        n = 0
        for tile_m, tile_n in tiles.persistent():
            for k in range(ceil_div(K, 64)):
                wait(empty[n - STAGES])
                expect(full[n])
                tma_load(a_s[n], a[tile_m * 128:, k * 64:], signal=full[n])
                tma_load(b_s[n], b[tile_n * 256:, k * 64:], signal=full[n])
                n += 1
    with issuer:
        m = 0
        t = 0
        for tile_m, tile_n in tiles.persistent():
            wait(drained[t - 2])
            for k in range(ceil_div(K, 64)):
                wait(full[m])
                tcgen05_mma(acc_t[t], a_s[m], b_s[m], init=k == 0)
                tcgen05_commit(empty[m])
                m += 1
            tcgen05_commit(done[t])
            t += 1
    with epilogue:
        u = 0
        for tile_m, tile_n in tiles.persistent():
            wait(done[u])
            for j in unroll(4):
                x = tmem_load(acc_t[u].cols(64 * j, 64), tmem_d[128, 64])
                tmem_load_wait()
                store(d[tile_m * 128:, tile_n * 256 + 64 * j:], cast(x, bf16))
            arrive(drained[u])
            u += 1
"""


def when(text: str, step: str, condition: str) -> str:
    """The program with one step under a condition."""
    assert text.count(step) == 1
    pad = " " * (len(step) - len(step.lstrip()))
    return text.replace(step, f"{pad}if {condition}:\n" + "".join(f"    {line}\n" for line in step.splitlines()))


PROVED: dict[str, tuple[str, dict[str, Any]]] = {
    "one tile": (B0, {"STAGES": 2}),
    "one tile, four stages": (B0, {}),
    "persistent tiles": (B1, {"STAGES": 2}),
    "commit groups, guards at the end": (B2, {"STAGES": 2}),
    "rings of three and five": (TWO_RINGS, {}),
    "rings of two and five": (TWO_RINGS, {"S1": 2}),
    "the last release left out": (when(B0, RELEASE, "k + 1 < KT"), {"STAGES": 2}),
    "waits from the first full ring on": (when(B0, WAIT, "k >= STAGES"), {"STAGES": 2}),
    "named barriers in turn": (base("kmeans_assign"), {"STAGES": 2}),
    "a pair of CTAs": (base("gemm_sm100"), {"STAGES": 2}),
    "roles with loops of their own": (OWN_LOOPS, {"STAGES": 2}),
    "roles with tile loops of their own": (OWN_TILES, {}),
    "no loop": (base("softmax"), {}),
}
"""Right programs that have the form of the argument."""

LATE: dict[str, tuple[str, str]] = {
    "one release left out": (when(B0, RELEASE, "k != 37"), "sync/deadlock"),
    "releases that end": (when(B0, RELEASE, "k < 40"), "sync/deadlock"),
    "every seventh release left out": (when(B0, RELEASE, "k % 7 != 6"), "sync/deadlock"),
    "one wait left out": (when(B0, WAIT, "k != 37"), "data/slot-reuse-without-wait"),
    "waits that end": (when(B0, WAIT, "k < 25"), "data/slot-reuse-without-wait"),
    "waits in short loops only": (when(B0, WAIT, "KT < 20"), "data/slot-reuse-without-wait"),
    "one tile does not wait": (when(B1, TILE_WAIT, "t != 9"), "data/overwritten-while-read"),
}
"""Faults that no shape with 2S + 1 uses shows: refuted by a run that reaches the constant."""

OPEN: dict[str, tuple[str, str]] = {
    "a square": (when(B0, RELEASE, "k * k != 400"), "not a comparison of a running count with a constant"),
    "an extent that has nothing to do with the loop": (when(B0, WAIT, "M < 9000"), "M depends on the shape"),
    "a count that runs over tiles": (
        when(B1, "                wait(empty[n - STAGES])\n", "n != 25"),
        "n, which runs on over the rounds",
    ),
    "a count kept from before the loop": (
        edit(
            B1.replace("a_s[n]", "a_s[base + k]"),
            "        for k in range(KT):\n",
            "        base = n\n        for k in range(KT):\n",
        ),
        "base keeps a count of another round",
    ),
    "lengths that differ between CTAs of a cluster": (SPLIT_K, "changes with cluster_rank"),
    "one loop after the other": (
        edit(
            B0,
            "    with math as wg:\n        stmatrix",
            "    for i in range(KT):\n        sync(cta)\n    with math as wg:\n        stmatrix",
        ),
        "two loops follow one another",
    ),
    "the shorter of two extents": (
        B0.replace("for k in range(KT)", "for k in range(min(KT, ceil_div(N, 64)))"),
        "with 0 rounds",
    ),
}
"""Right or wrong, but not of the form: they stay checked, and the reason names the premise and the line."""


def facts(text: str, **bindings: Any) -> tuple[BoundKernel, Derived]:
    kernel = bound(text, **bindings)
    return kernel, derive(kernel)


@pytest.mark.parametrize("name", PROVED)
def test_right_programs_are_proved_and_hold_far_beyond_the_cutoff(name: str) -> None:
    text, bindings = PROVED[name]
    kernel, derived = facts(text, **bindings)
    result = check_order(kernel, derived, prove=True)
    assert not [d for d in result.diagnostics if d.severity == "error"]
    assert result.cutoff is not None and result.cutoff.holds, result.cutoff
    assert all(p.verdict == "proved" for p in result.properties), result.properties
    shape = premises(cutoff.joined(kernel))
    draw = random.Random(name)
    for _ in range(2 if shape.loops else 0):
        wide = (9, 15) if len(shape.loops) == 2 else (50,)
        trips = tuple(draw.randint(low, high) for low, high in zip(shape.least, wide, strict=False))
        cutoff.run(cutoff.joined(kernel), derived, shape, trips, [False, True])  # raises Broken for any finding


@pytest.mark.parametrize("name", PROVED)
def test_proved_programs_show_nothing_at_large_random_shapes(name: str) -> None:
    text, bindings = PROVED[name]
    kernel, derived = facts(text, **bindings)
    draw = random.Random(name)
    cluster = kernel.launch.cluster
    ran = 0
    for _ in range(40):
        dims = tuple((n, 8 * draw.choice((1, draw.randint(2, 40), draw.randint(41, 200)))) for n in kernel.dims)
        w = Witness(dims, cluster, tuple(range(cluster)), cluster, derived.witnesses[0].oracle, "drawn")
        try:
            found = traces(kernel, w)
        except (ValueError, IndexError, SkeletonLimit):  # `where` excludes the shape, or it is too long to run here
            continue
        log = Log(kernel)
        log.begin(w)
        Machine(kernel, derived, w, found, log).run()
        assert not any(log.found.values()), (w.describe(), log.diagnostics())
        ran += 1
        if ran == 3:
            break
    assert ran


@pytest.mark.parametrize("name", LATE)
def test_faults_behind_a_constant_are_refuted_with_a_shape_that_reaches_it(name: str) -> None:
    text, rule = LATE[name]
    report = verify_text(text)
    errors = [d for d in report.diagnostics if d.severity == "error"]
    assert [d.rule for d in errors] == [rule]
    assert "M=" in errors[0].message and "K=" in errors[0].message


@pytest.mark.parametrize("name", OPEN)
def test_other_forms_stay_checked_and_name_the_premise(name: str) -> None:
    text, premise = OPEN[name]
    kernel, derived = facts(text)
    result = check_order(kernel, derived, prove=True)
    open_ones = [p for p in result.properties if p.name in ORDER and p.verdict != "proved"]
    assert open_ones and all(p.verdict == "checked" and premise in p.reason for p in open_ones), open_ones
    assert "(line " in open_ones[0].reason or ", lines " in open_ones[0].reason


def test_counts_and_bytes_are_proved_with_the_rest() -> None:
    report = verify_text(B0, {"STAGES": 2}, prove=True)
    verdicts = {p.name: p.verdict for p in report.properties if p.name in ORDER}
    assert set(verdicts.values()) == {"proved"} and len(verdicts) == len(ORDER)


def test_what_costs_more_than_verify_spends_is_said() -> None:
    kernel, derived = facts(base("gemm_sm90"))
    (progress,) = [p for p in check_order(kernel, derived).properties if p.name == "progress"]
    assert progress.verdict == "checked" and "ask for it with prove" in progress.reason


def test_a_shape_is_found_for_trip_counts() -> None:
    kernel, derived = facts(B1)
    shape = premises(cutoff.joined(kernel))
    w = cutoff.realise(kernel, derived, shape, (5, 3))
    assert w is not None
    issuer = next(t for t in traces(kernel, w) if t.role.name == "issuer")
    products = [e for e in issuer.events if getattr(e.node, "name", "") == "tcgen05_mma"]
    assert len(products) == 15
    assert len({e.path[0] for e in products}) == 5


def test_the_cutoff_grows_with_the_ring() -> None:
    tops = []
    for stages in (2, 3, 4, 5):
        kernel, _ = facts(B0, STAGES=stages)
        tops.append(max(cutoff.trip_counts(premises(cutoff.joined(kernel)))))
    assert tops == sorted(set(tops)) and all(t[0] > 2 * s + 1 for t, s in zip(tops, (2, 3, 4, 5), strict=True))


@pytest.mark.parametrize(
    ("old", "new"),
    [("wait(empty[n - STAGES])", "wait(empty[n - STAGES - 1])"), ("wait(drained[t - 2])", "wait(drained[t - 3])")],
)
def test_runs_show_what_a_proof_would_hide(old: str, new: str) -> None:
    """The premises say nothing about faults: a wrong program of the right form is refuted by the runs themselves."""
    kernel, derived = facts(edit(B1, old, new), STAGES=2)
    shape = premises(cutoff.joined(kernel))
    with pytest.raises(Broken, match="the runs show"):
        for trips in cutoff.trip_counts(shape):
            cutoff.run(cutoff.joined(kernel), derived, shape, trips, [False, True])


def hold_beyond(kernel: BoundKernel, derived: Derived, draw: random.Random) -> bool:
    """Whether the kernel is proved; then it is run at larger trip counts as well, which must show nothing."""
    result = check_order(kernel, derived, prove=True)
    if result.cutoff is None or not result.cutoff.holds:
        return False
    read = cutoff.joined(kernel)
    shape = premises(read)
    wide = (12, 18) if len(shape.loops) == 2 else (45,)
    for _ in range(2):
        trips = tuple(draw.randint(low, high) for low, high in zip(shape.least, wide, strict=False))
        cutoff.run(read, derived, shape, trips, [False, True])
    return True


@pytest.mark.parametrize("seed", range(3))
def test_drawn_programs_that_are_proved_hold_beyond_the_cutoff(seed: int) -> None:
    draw = random.Random(seed)
    proved = refuted = 0
    for _ in range(16):
        kernel, derived = facts(program(draw))
        held = derived.ok and hold_beyond(kernel, derived, draw)
        proved += held
        refuted += not held
    assert proved >= 2 and refuted >= 2


def test_mutants_that_are_proved_hold_beyond_the_cutoff() -> None:
    subject = next(s for s in subjects() if s.name == "sketch/02_kmeans_sm90/kmeans_assign")
    draw = random.Random(11)
    mutants = list(mutations(subject))
    draw.shuffle(mutants)
    proved = 0
    for m in mutants[:40]:
        parsed = parse(text_of(m))
        assert parsed.file is not None
        kernel = bind(parsed.file, dict(subject.bindings[0]), subject.target).bound
        if kernel is not None and (derived := derive(kernel)).ok:
            proved += hold_beyond(kernel, derived, draw)
    assert proved >= 3
