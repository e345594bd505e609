"""Global indices and 32-bit index arithmetic: the symbolic verdict against plain enumeration, and programs whose verdict a formula
gives."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from analyses import verify_text
from analyses.bounds import decide
from analyses.report import Report
from analyses.symbolic import Algebra, Poly, add, const, evaluate, mul
from cake_ir import bind, parse
from cake_ir.diagnostics import CakeError
from cake_ir.facts import EXTENT_MAX, INT_MAX
from corpus import kernels
from lowering import emit, plan

ROOT = Path(__file__).parents[2]

COPY = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    {where}
    launch(ctas=ceil_div(M, {tile}))
    team = role(warp, count={tile})
    with team as w:
        r = {tile} * cta + w
        {head}
            store(y[r, :], load(x[r, :], vec(1).cols[32]))
"""

FLAT = """
@kernel(target="sm_90a")
def rows(x: In[u8, M, {n}], y: Out[u8, M, {n}]):
    {where}
    launch(ctas=M)
    team = role(warp)
    with team:
        at = cta * {n}
        store(y[at // {n}, :], load(x[at // {n}, :], vec(1).cols[{n}]))
"""


def rules(report: Report) -> set[str]:
    return {d.rule for d in report.diagnostics if d.severity == "error"}


def verdict(report: Report, name: str) -> str:
    return next(p.verdict for p in report.properties if p.name == name)


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("modulus", [1, 2, 4, 6, 8])
@pytest.mark.parametrize("tile", [1, 2, 4])
def test_tail_of_a_tile_needs_a_guard_or_a_fact(tile: int, modulus: int, guarded: bool) -> None:
    where = f"where(M % {modulus} == 0)" if modulus > 1 else "where(M > 0)"
    text = COPY.format(tile=tile, where=where, head="if r < M:" if guarded else "if cta >= 0:")
    report = verify_text(text)
    right = guarded or modulus % tile == 0
    assert (rules(report) == set()) is right, [d.render() for d in report.diagnostics]
    if not right:
        assert rules(report) == {"data/global-out-of-bounds"}
    assert verdict(report, "global bounds") == ("proved" if right else "refuted")


@pytest.mark.parametrize("limit", [None, 1 << 20, INT_MAX // 128, 1 << 30])
@pytest.mark.parametrize("n", [32, 128])
def test_a_flat_index_fits_exactly_where_the_extents_say_so(n: int, limit: int | None) -> None:
    where = f"where(M <= {limit})" if limit else "where(M > 0)"
    report = verify_text(FLAT.format(n=n, where=where))
    largest = (limit or EXTENT_MAX) - 1
    right = largest * n <= INT_MAX
    assert rules(report) == (set() if right else {"data/index-overflow"}), [d.render() for d in report.diagnostics]
    assert verdict(report, "index arithmetic") == ("proved" if right else "refuted")


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("y[i, :]", "y[i - 1, :]", "data/global-out-of-bounds"),
        ("y[i, :]", "y[i + 1, :]", "data/global-out-of-bounds"),
        ("when=i >= 0", "when=i >= -1", "data/global-out-of-bounds"),
        (", when=i >= 0", "", "data/global-out-of-bounds"),
        ("assume(i < T)", "assume(i <= T)", "data/global-out-of-bounds"),
        ("when=i >= 0", "when=i >= 1", None),
        ("fill=-1", "fill=0", None),
        ("assume(i < T)", "assume(i < T - 1)", None),
    ],
)
def test_gathered_rows_follow_masks_assumptions_and_fills(old: str, new: str, rule: str | None) -> None:
    text = (ROOT / "tests" / "data" / "hazards" / "scatter_rows.cake").read_text()
    assert old in text
    assert verdict(verify_text(text), "global bounds") == "proved"
    assert rules(verify_text(text.replace(old, new))) == ({rule} if rule else set())


def test_a_gathered_row_that_nothing_bounds_is_undecided() -> None:
    text = (ROOT / "tests" / "data" / "hazards" / "scatter_rows.cake").read_text()
    report = verify_text(text.replace("        assume(i < T)\n", ""))
    assert report.accepted
    assert verdict(report, "global bounds") == "undecided"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tail", COPY.format(tile=4, where="where(M > 0)", head="if cta >= 0:")),
        ("product", FLAT.format(n=128, where="where(M > 0)")),
        ("part", COPY.replace("32]", "N]", 2).format(tile=4, where="where(M > 0)", head="if r < M:")),
    ],
)
def test_a_guard_is_offered_and_verifies(name: str, text: str) -> None:
    report = verify_text(text, fixes=True)
    (found,) = [d for d in report.diagnostics if d.severity == "error"]
    assert found.fixes and all(f.verified for f in found.fixes), name


@pytest.mark.parametrize("kernel", kernels(), ids=lambda k: k.name)
def test_corpus_kernels_are_proved_for_all_shapes(kernel: Any) -> None:
    file = parse(kernel.path.read_text(encoding="utf-8")).file
    assert file is not None
    bound = bind(file, kernel.bindings, file.kernels[0].targets[0], file.kernels[0].name).bound
    assert bound is not None
    found = decide(bound)
    assert found.proved and not found.open and not found.refuted


def test_a_launch_refuses_what_32_bits_do_not_hold() -> None:
    text = """
@kernel(target="sm_90a")
def sums(x: In[f32, M, N, 32], y: Out[f32, M, N, 32]):
    launch(ctas=device.sms)
    team = role(warp)
    with team:
        for t in range(cta, M * N, cta_count):
            store(y[t // N, t % N, :], load(x[t // N, t % N, :], vec(1).cols[32]))
"""
    report = verify_text(text)
    assert report.accepted and verdict(report, "index arithmetic") == "proved"
    file = parse(text).file
    assert file is not None
    bound = bind(file).bound
    assert bound is not None
    emitted = emit(bound)
    assert plan(emitted, {"M": 1 << 15, "N": (1 << 16) - 1}).grid == 132
    with pytest.raises(CakeError, match="does not fit 32 bits"):
        plan(emitted, {"M": 1 << 15, "N": 1 << 16})
    with pytest.raises(CakeError, match="outside 1"):
        plan(emitted, {"M": EXTENT_MAX + 1, "N": 1})


@pytest.mark.parametrize("seed", range(40))
def test_what_is_proved_holds_for_all_small_values(seed: int) -> None:
    """Random goals over two extents, an index below a quotient, its remainder and a minimum: no proof of something false."""
    chance = random.Random(seed)
    a = Algebra()
    m, n = a.atom("M", [{}], [const(40)]), a.atom("N", [const(1)], [const(40)])
    k = chance.choice((2, 3, 4))
    tiles = a.floor_div(add(m, const(k - 1)), const(k))
    t = a.atom("t", [{}], [add(mul(tiles, n), const(-1))])
    row, col = a.floor_div(t, n), a.modulo(t, n)
    low = a.least(m, mul(n, const(2)))
    parts: list[Poly] = [m, n, tiles, t, row, col, low, const(1)]
    fact = add(m, mul(row, const(k)), -1) if chance.randrange(2) else {}
    proved = 0
    cases = [
        (x, y, u, v, w)
        for x, y in itertools.product((0, 1, 2, 5, 8, 9), (1, 2, 3, 7))
        for u in range(-(-x // k) * y)
        for v, w in [(u // y, u % y)]
        if not fact or x - k * v >= 0
    ]
    for _ in range(60):
        goal: Poly = {}
        for p in chance.sample(parts, 3):
            goal = add(goal, p, chance.choice((-k, -2, -1, 1, 2, k)))
        if not a.proves(goal, [fact] if fact else []):
            continue
        proved += 1
        for x, y, u, _, _ in cases:
            values = dict.fromkeys(range(len(a.atoms)), 0)
            for poly, value in ((m, x), (n, y), (t, u)):
                values[next(iter(poly))[0]] = value
            for i, at in enumerate(a.atoms):
                if at.made is not None:
                    op, p, q = at.made
                    b, c = evaluate(p, values), evaluate(q, values)
                    values[i] = b // c if op == "//" else b % c if op == "%" else min(b, c)
            assert evaluate(goal, values) >= 0, (goal, x, y, u)
    assert proved


SCATTER = """
@kernel(target="sm_90a")
def scatter(x: In[bf16, B, 64], to: In[i32, B], y: {direction}[bf16, B, 64]):
    launch(ctas=B)
    team = role(warp, count=2)
    with team as w:
        p = load(to[cta])
        assume(0 <= p < B)
        store(y[{row}, {col}:], load(x[cta, {col}:], vec(1).cols[32]))
"""


@pytest.mark.parametrize("direction", ["Out", "InOut"])
@pytest.mark.parametrize(("row", "col", "right"), [("p", "32 * w", True), ("p", "0", False), ("cta", "0", False)])
def test_rows_that_data_choose_are_taken_to_differ(direction: str, row: str, col: str, right: bool) -> None:
    report = verify_text(SCATTER.format(direction=direction, row=row, col=col))
    found = rules(report)
    if right:
        assert not found, [d.render() for d in report.diagnostics]
        assert verdict(report, "global races") == ("proved" if direction == "Out" else "undecided")
    elif row == "cta" or direction == "Out":
        assert found & {"data/output-written-twice", "data/global-race", "data/output-unwritten"}


@pytest.mark.parametrize("order", ["", "sync(team)", "sync(grid)"])
@pytest.mark.parametrize("shift", [0, 1])
def test_rows_of_neighbouring_blocks_are_read_after_a_grid_sync_only(order: str, shift: int) -> None:
    inner = f"        {order}\n" if order == "sync(team)" else ""
    outer = f"    {order}\n" if order == "sync(grid)" else ""
    text = f"""
@kernel(target="sm_90a")
def step(state: InOut[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=min(M, device.sms))
    team = role(warp)
    with team:
        for r in range(cta, M, cta_count):
            store(state[r, :], load(state[r, :], vec(1).cols[32]) * 2.0)
{inner}{outer}    with team:
        for r in range(cta, M, cta_count):
            store(y[r, :], load(state[(r + {shift}) % M, :], vec(1).cols[32]))
"""
    report = verify_text(text)
    wrong = shift == 1 and order != "sync(grid)"
    assert rules(report) == ({"data/global-race"} if wrong else set()), [d.render() for d in report.diagnostics]


@pytest.mark.parametrize(("rows", "verdict"), [("M", "checked"), ("1048576", "undecided")])
def test_holes_in_the_outputs_of_huge_grids_are_undecided(rows: str, verdict: str) -> None:
    text = f"""
@kernel(target="sm_90a")
def k(x: In[f32, {rows}, 32], y: Out[f32, {rows}, 32]):
    launch(ctas={"M" if rows == "M" else "1 << 20"})
    team = role(warp)
    with team:
        store(y[cta, :], load(x[cta, :], vec(1).cols[32]))
"""
    report = verify_text(text)
    assert report.accepted
    assert [p.verdict for p in report.properties if p.name == "global regions"] == [verdict]


@pytest.mark.parametrize(
    "spare,want", [("M - 1", "proved"), ("0", "proved"), ("M", "refuted"), ("-1", "refuted"), ("given", "undecided")]
)
def test_a_chosen_row_is_inside_when_both_choices_are(spare: str, want: str) -> None:
    text = f"""
@kernel(target="sm_90a")
def count(label: In[i32, N], sums: InOut[i32, M]):
    where(M > 0)
    launch(ctas=ceil_div(N, 32))
    team = role(warp)
    with team:
        given = load(label[32 * cta:], vec(1).cols[32])
        who = select(given < 0, {spare}, min(max(given, 0), M - 1))
        atomic_add(sums[who], fragment(i32, vec(1).cols[32], 1))
"""
    assert verdict(verify_text(text), "global bounds") == want


@pytest.mark.parametrize("fetch", ["", "        q = atomic_fetch_add(n[0:], one)\n"])
def test_what_an_atomic_returns_orders_no_blocks(fetch: str) -> None:
    """It is relaxed: a race stays one where numbers are fetched as well."""
    text = f"""
@kernel(target="sm_90a")
def k(n: InOut[i32, 4], y: Out[i32, M, 32], z: InOut[i32, M + 2, 32]):
    launch(ctas=M)
    r = role(warp)
    with r:
        one = fragment(i32, vec(1).cols[32], 1)
        q = one
{fetch}        store(z[cta, 0:], one)
        store(y[cta, 0:], q + load(z[cta + 2, 0:], vec(1).cols[32]))
"""
    report = verify_text(text if fetch else text.replace("n: InOut[i32, 4], ", ""))
    assert "data/global-race" in rules(report)
