"""Alignment that the text proves: what the rules accept is what lowering emits, and what they say helps."""

from __future__ import annotations

import pytest

from analyses import verify_text
from cake_ir import bind, parse
from cake_ir.bound import Op, walk
from cake_ir.facts import cp_async_piece, facts_of
from lowering import emit

COPY = """
@kernel(target="sm_80")
def shifted(x: In[bf16, M, N], y: Out[bf16, M, 64]):
    where({where}, M <= 65536)
    launch(ctas=M)
    team = role(warp)
    tile = smem(bf16, 1, {width})
    with team:
        cp_async(tile.cols({at}, 64), x[cta:, {start}:])
        cp_async_commit()
        cp_async_wait(0)
        sync(warp)
        store(y[cta:, :], load(tile.cols({at}, 64), vec(2)[1, 64]))
"""

CASES = [
    ("N % 8 == 0", 0, "0", 16),
    ("N % 8 == 0", 0, "8 * cta", 16),
    ("N % 8 == 0", 0, "4 * cta", 8),
    ("N % 4 == 0", 0, "0", 8),
    ("N % 2 == 0", 0, "0", 4),
    ("N % 8 == 0", 0, "2", 4),
    ("N % 8 == 0", 0, "cta", 0),
    ("N % 8 == 0", 0, "1", 0),
    ("N > 8", 0, "0", 0),
    ("N % 8 == 0", 2, "0", 4),  # the shared side is part of it
    ("N % 8 == 0", 1, "0", 0),
]


@pytest.mark.parametrize(("where", "at", "start", "piece"), CASES)
def test_cp_async_takes_the_widest_piece_that_both_sides_prove(where: str, at: int, start: str, piece: int) -> None:
    text = COPY.format(where=where, at=at, start=start, width=72)
    bound = bind(parse(text).file).bound  # type: ignore[arg-type]
    assert bound is not None
    op = next(s for s in walk(bound.body) if isinstance(s, Op) and s.name == "cp_async")
    assert cp_async_piece(facts_of(bound), op.operands["view"], op.operands["region"])[0] == piece
    rules = [d.rule for d in verify_text(text).diagnostics if d.severity == "error"]
    assert rules == ([] if piece else ["hardware/cp-async-alignment"])
    if piece:
        assert f"cp_async_{piece}" in emit(bound).cuda


def test_a_stride_without_a_factor_is_answered_with_the_where_that_helps() -> None:
    text = COPY.format(where="N > 8", at=0, start="0", width=72)
    (found,) = [d for d in verify_text(text).diagnostics if d.severity == "error"]
    assert "where(N % 8 == 0)" in found.message
    assert verify_text(text.replace("N > 8", "N % 8 == 0")).accepted


ROWS = """
@kernel(target="sm_90a")
def rows(x: In[bf16, M, D], y: Out[bf16, M, 256], *, PART: (256, 512) = 256):
    where({where})
    launch(ctas=M)
    team = role(warp)
    with team:
        w = cta % 4
        v = load(x[cta, {start}:], vec(8).cols[256])
        store(y[cta, :], v)
"""


@pytest.mark.parametrize(
    ("where", "start", "part"),
    [
        ("D % 8 == 0", "w * PART", None),
        ("D % 8 == 0", "w * PART + 1", "1 more than a multiple of 8 elements, so never aligned"),
        ("D % 8 == 0", "M", "where(M % 8 == 0)"),
        ("D % 8 == 0", "D // 2", "moves 8 B per access"),
        ("D > 0", "0", "where(D % 8 == 0)"),
        ("D % 2 == 0", "0", "moves 4 B per access"),
    ],
)
def test_a_narrow_access_is_advised_against_with_its_reason(where: str, start: str, part: str | None) -> None:
    report = verify_text(ROWS.format(where=where, start=start))
    assert report.accepted
    found = [d for d in report.diagnostics if d.rule == "performance/unproved-alignment"]
    assert [d.span.line for d in found] == ([] if part is None else [9])
    assert part is None or part in found[0].message
