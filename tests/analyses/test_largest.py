"""The largest program among the tests: twelve roles, thirty barriers, a cluster; what it costs is counted, not timed."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from analyses import verify_text
from cake_ir import bind, parse
from cake_ir.effort import spent

TEXT = (Path(__file__).parents[1] / "data" / "large" / "fused_sm90.cake").read_text(encoding="utf-8")


def test_it_is_as_large_as_it_says() -> None:
    file = parse(TEXT).file
    bound = file and bind(file).bound
    assert bound is not None and len(bound.roles) == 12 and len(bound.barriers) == 30 and bound.launch.cluster == 2


def test_it_is_accepted_within_bounded_work_and_memory() -> None:
    before = spent()
    tracemalloc.start()
    try:
        report = verify_text(TEXT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report.accepted, [d.render() for d in report.diagnostics]
    assert spent() - before < 100_000  # steps; 1.5 s on the machine of docs/verifier.md
    assert peak < 500 << 20


@pytest.mark.parametrize(
    "line, rule",
    [
        ("                wait(b1_full[n])\n", "data/read-before-arrival"),
        ("                wait(b2_free[n - STAGES])\n", "data/slot-reuse-without-wait"),
        ("                arrive(b0_free[n])\n", "derive/no-arrival"),
        ("            arrive(m1_full[t])\n", "derive/no-arrival"),
        ("                expect(a_full[n])\n", "derive/unexpected-bytes"),
        ("                    arrive(a_free[n].on(1))\n", "derive/unequal-arrivals"),
        ("    sync(cluster)\n", "sync/cluster-exit"),
    ],
)
def test_a_dropped_step_is_named(line: str, rule: str) -> None:
    assert line in TEXT
    report = verify_text(TEXT.replace(line, "", 1))
    assert [d.rule for d in report.diagnostics if d.severity == "error"] == [rule]
