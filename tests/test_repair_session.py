"""A client without a model repairs planted faults from tool answers alone."""

from __future__ import annotations

import asyncio

from tools.repair_session import FAULTS, ROOT, session

KINDS = {
    "dropped wait (producer)", "dropped arrive", "dropped expect", "dropped fence_async", "dropped sync", "wgmma_wait too shallow",
    "dropped wgmma_commit", "dropped bulk_wait_read", "wrong arrivals= assertion", "misspelt name", "wrong use number",
    "counter not advanced",
}  # fmt: skip


def test_faults_are_single_edits_of_corpus_kernels() -> None:
    assert len({f.kind for f in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        text = (ROOT / "corpus" / "kernels" / f"{fault.kernel}.cake").read_text(encoding="utf-8")
        assert fault.plant(text) != text


def test_twelve_planted_faults_are_repaired_by_reading_tool_answers() -> None:
    outcomes = asyncio.run(session([f for f in FAULTS if f.kind in KINDS]))
    assert len(outcomes) == len(KINDS) >= 10
    assert [o.kind for o in outcomes if not o.accepted] == []
    assert [o.kind for o in outcomes if not o.same] == []
    assert max(o.tries for o in outcomes) <= 2
    assert all(o.sent < 2_000 and o.read < 12_000 for o in outcomes), "edits travel, not programs"
