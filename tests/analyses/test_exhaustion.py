"""Programs that are built to exhaust the verifier end soon, with bounded work and memory, and in words.

Work is counted in steps (`cake_ir.effort`), never timed: the same program does the same steps on every machine.
"""

from __future__ import annotations

import tracemalloc

import pytest

from analyses import verify_text
from cake_ir.effort import spent
from tests.analyses.hostile import FAMILIES, barriers, nest_of_fragments, ops, ring

MOST = 150_000
"""Steps of a verification without fixes: about two seconds."""
WITH_FIXES = 450_000
"""With fixes: their budget, and the one candidate that may begin before it is used up."""
REFUSED = {
    "2000 barriers": "language/tokens",
    "6000 ops in a row": "language/size",
    "unrolled a million times": "language/too-large",
    "200 roles": "hardware/threads-per-block",
    "a million instances": "hardware/threads-per-block",
    "64 stages": "hardware/smem-capacity",
    "a million stages": "hardware/smem-capacity",
}
UNDECIDED = (
    "huge trip count", "trip count of extents multiplied", "nest of 20 loops", "nest of 50 loops of two", "40 squarings",
    "squaring in a loop", "a shift of extents", "no shape", "a far shape", "8 extents tied",
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_work_is_bounded(family: str) -> None:
    before = spent()
    report = verify_text(FAMILIES[family]())
    assert spent() - before < MOST
    rules = [d.rule for d in report.diagnostics]
    if family in REFUSED:
        assert REFUSED[family] in rules
    elif family in UNDECIDED:
        assert "derive/no-witness" in rules
        assert {"progress", "data order"} <= {p.name for p in report.undecided}
        assert not any(p.name in ("progress", "data order") and p.verdict == "proved" for p in report.properties)


@pytest.mark.parametrize("family", ["nest of 20 loops", "200 roles", "150 barriers", "huge trip count"])
def test_work_with_fixes_is_bounded(family: str) -> None:
    before = spent()
    verify_text(FAMILIES[family](), fixes=True)
    assert spent() - before < WITH_FIXES


@pytest.mark.parametrize("family", ["a million stages", "a million instances"])
def test_memory_is_bounded(family: str) -> None:
    text = FAMILIES[family]()
    tracemalloc.start()
    try:
        verify_text(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 << 20


def steps(text: str) -> int:
    before = spent()
    assert verify_text(text).accepted
    return spent() - before


def test_steps_grow_with_ops_and_stages_no_worse_than_linearly() -> None:
    """Twice the ops, or twice the stages, cost at most twice the steps and a constant."""
    for small, large in ((ops(20), ops(40)), (ops(40), ops(80)), (barriers(20), barriers(40))):
        assert steps(large) <= 2.2 * steps(small)
    loop = "for n in range(ceil_div(K, 64)):"
    for s in (2, 4, 8):
        assert steps(ring(loop, stages=2 * s)) <= 2.2 * steps(ring(loop, stages=s))


def test_loops_in_loops_around_a_fragment_cost_the_same_per_loop() -> None:
    """Liveness of a loop is found once per set of live fragments, not once per round of every loop around it."""
    from analyses import registers
    from cake_ir import bind, parse

    count = 0

    class Counted(registers._Liveness):
        def step(self, *args):  # type: ignore[no-untyped-def]
            nonlocal count
            count += 1
            return super().step(*args)

    found = {}
    for depth in (5, 10, 20):
        file = parse(nest_of_fragments(depth)).file
        bound = file and bind(file).bound
        assert bound is not None
        count = 0
        Counted(bound.roles[0], {}).block(bound.body, set())
        found[depth] = count
    assert found[20] <= 4.5 * found[5]
