"""Draws are the seed's, come from what the texts declare, and a rejection is recorded and drawn anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from corpus.ranking import draw
from corpus.ranking.draw import Draw, at_shape
from corpus.ranking.workloads import SETS, WORKLOADS, Fit, Workload
from corpus.tuning.candidates import Rejection

TINY = Workload(
    "tiny", "rmsnorm", "bf16", ("rmsnorm", "rmsnorm_rows"), ({"M": 4, "D": 1000}, {"M": 8, "D": 512}), ({"M": 3, "D": 768},),
    (), ({"M": 2, "D": 256},),
    fits={"DMAX": Fit("D")},
)  # fmt: skip


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The verifier and the compiler are played: they accept all but the candidates named here."""
    refused: list[str] = []

    def gate(chosen: Any, cache_dir: Any, progress: Any) -> Any:
        kept = [c for c in chosen if c.id not in refused]
        return (
            len(kept),
            kept,
            [Rejection(c.seed, "compile", "lowering/register-spill", "") for c in chosen if c.id in refused],
        )

    monkeypatch.setattr(draw, "verify_and_compile", gate)
    return refused


def test_the_seed_decides_and_rejections_are_drawn_anew(verified: list[str]) -> None:
    first = Draw(TINY, TINY.development, "sm_90a", 1).pool(6, None)
    ids = [c.id for c in first.pool]
    assert len(set(ids)) == 6 and {c.seed.kernel for c in first.pool} == set(TINY.kernels)
    assert [c.id for c in Draw(TINY, TINY.development, "sm_90a", 1).pool(6, None).pool] == ids
    assert [c.id for c in Draw(TINY, TINY.development, "sm_90a", 2).pool(6, None).pool] != ids
    verified.append(ids[2])
    again = Draw(TINY, TINY.development, "sm_90a", 1)
    drawn = again.pool(6, None)
    assert (
        len(drawn.pool) == 6
        and ids[2] not in {c.id for c in drawn.pool}
        and set(ids) - {ids[2]} < {c.id for c in drawn.pool}
    )
    assert (drawn.legal, drawn.verified) == (7, 6)
    assert [r.seed.id for r in drawn.rejections if r.gate == "compile"] == [ids[2]]
    assert drawn.tried == drawn.legal + sum(r.gate != "compile" for r in drawn.rejections)
    for s in range(len(TINY.development)):
        held = [c for c in drawn.pool if s in again.admitted[c.id]]
        assert held and all(c.seed.bindings.get("DMAX", 1024) in ((1024, 2048), (512, 1024))[s] for c in held)


def test_all_of_a_domain_is_drawn_and_then_no_more(verified: list[str]) -> None:
    small = replace(TINY, kernels=("rmsnorm",), development=({"M": 4, "D": 1000},))
    drawn = Draw(small, small.development, "sm_90a", 3).pool(100, None)
    # DMAX 1024 and 2048, four counts of warps each; the element type is the workload's
    assert {(c.seed.bindings["DMAX"], c.seed.bindings["WARPS"]) for c in drawn.pool} == {
        (d, w) for d in (1024, 2048) for w in (1, 2, 4, 8)
    }
    assert {c.seed.bindings["DT"] for c in drawn.pool} == {"bf16"}


def test_a_shape_draws_its_own_from_the_pool() -> None:
    pool = [(f"a{i}", "a") for i in range(20)] + [("b0", "b")]
    first = at_shape("w", {"M": 1}, pool, 6, 12)
    assert len(set(first)) == 12 and first == at_shape("w", {"M": 1}, pool, 6, 12) != at_shape(
        "w", {"M": 2}, pool, 6, 12
    )
    assert "b0" in first, "kernels are drawn before bindings"
    assert sorted(at_shape("w", {"M": 1}, pool, 6, 99)) == sorted(i for i, _ in pool)


def test_test_shapes_are_neither_development_shapes_nor_multiples_of_them() -> None:
    for w in WORKLOADS.values():
        assert w.family().dims and all(len(w.shapes(s)) >= 6 for s in SETS)
        for a in w.development:
            for b in w.test:
                assert len({b[d] / a[d] for d in a}) > 1, (a, b)
