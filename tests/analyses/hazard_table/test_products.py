"""Products: every combination of the synchronisation steps of a ring, the verdict predicted by a formula."""

from __future__ import annotations

import itertools

import pytest

from analyses import verify_text
from tests.analyses.hazard_table.cases import source

# step of B0 -> (its lines, the rules that may name its absence)
RING: dict[str, tuple[str, frozenset[str]]] = {
    "wait for the stage": ("            wait(empty[k - STAGES])\n", frozenset({"data/slot-reuse-without-wait"})),
    "expect": ("            expect(full[k])\n", frozenset({"derive/unexpected-bytes"})),
    "wait for the copy": (
        "            wait(full[k])\n",
        frozenset({"data/read-before-arrival", "sync/copy-unawaited"}),
    ),
    "commit": (
        "            wgmma_commit()\n",
        frozenset({"data/wgmma-release-before-wait", "data/accumulator-read-early"}),
    ),
    "wait for the product": (
        "            wgmma_wait(0)\n",
        frozenset({"data/wgmma-release-before-wait", "data/accumulator-read-early"}),
    ),
    "release": (
        "            with elected():\n                arrive(empty[k])\n",
        frozenset({"derive/no-arrival", "sync/deadlock"}),
    ),
    "fence": ("        fence_async()\n", frozenset({"data/proxy-fence-missing-write"})),
    "sync": (
        "        sync(math)\n",
        frozenset({"data/unsynchronised-read", "data/lane-race", "data/proxy-fence-missing-write"}),
    ),
    "wait for the store": ("                bulk_wait_read(0)\n", frozenset({"sync/bulk-read-at-exit"})),
}


@pytest.mark.parametrize("off", [c for n in (0, 1, 2) for c in itertools.combinations(RING, n)], ids=", ".join)
def test_a_ring_is_right_with_all_steps_only(off: tuple[str, ...]) -> None:
    """Accepted when nothing is missing; otherwise every finding names a missing step, and at most one per step."""
    text = source("b0")
    for step in off:
        assert text.count(RING[step][0]) == 1
        text = text.replace(RING[step][0], "")
    errors = [d for d in verify_text(text).diagnostics if d.severity == "error"]
    assert bool(errors) == bool(off), off
    assert len(errors) <= len(off)
    allowed = frozenset[str]().union(*(RING[s][1] for s in off))
    assert {d.rule for d in errors} <= allowed, [d.render() for d in errors]


PROLOGUE = {
    "each": "            cp_async_commit()\n        for k in range(KT):\n",
    "once": "        cp_async_commit()\n        for k in range(KT):\n",
    "never": "        for k in range(KT):\n",
}
LOOP = {
    "always": "            cp_async_commit()\n        cp_async_wait(0)\n",
    "with copies": "                cp_async_commit()\n        cp_async_wait(0)\n",
    "never": "        cp_async_wait(0)\n",
}


def ready(prologue: str, loop: str, stages: int, depth: int, kt: int) -> bool:
    """Whether the wait of every iteration covers the group of the stage that it reads. Groups are numbered from 1 in the
    order of their commits; a copy belongs to the next commit after it, or to none."""
    commits, group, open_stages = 0, dict[int, int](), list[int]()

    def commit() -> None:
        nonlocal commits
        commits += 1
        for n in open_stages:
            group[n] = commits
        open_stages.clear()

    for n in range(stages - 1):
        if n < kt:
            open_stages.append(n)
        if prologue == "each":
            commit()
    if prologue == "once":
        commit()
    for k in range(kt):
        if group.get(k, commits + 1) > commits - depth:
            return False
        n = k + stages - 1
        if n < kt:
            open_stages.append(n)
        if loop == "always" or (loop == "with copies" and n < kt):
            commit()
    return True


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("loop", LOOP)
@pytest.mark.parametrize("prologue", PROLOGUE)
def test_cp_async_groups_are_counted_as_the_formula_says(prologue: str, loop: str, stages: int) -> None:
    base = source("b2").replace(PROLOGUE["each"], PROLOGUE[prologue]).replace(LOOP["always"], LOOP[loop])
    for depth in range(stages):
        want = all(ready(prologue, loop, stages, depth, kt) for kt in range(2 * stages + 2))
        text = base.replace("cp_async_wait(STAGES - 2)", f"cp_async_wait({depth})")
        report = verify_text(text, {"STAGES": stages}, "sm_80")
        shown = [d.render() for d in report.diagnostics]
        assert report.accepted == want, (depth, shown)
        errors = [d.rule for d in report.diagnostics if d.severity == "error"]
        assert errors == ([] if want else ["data/cp-async-wait-count"]), (depth, shown)


@pytest.mark.parametrize(("stages", "depth"), [(2, 0), (3, 0), (3, 1), (4, 2)])
def test_cp_async_needs_the_sync_as_well(stages: int, depth: int) -> None:
    text = source("b2").replace("cp_async_wait(STAGES - 2)\n            sync(math)\n", f"cp_async_wait({depth})\n")
    errors = [d.rule for d in verify_text(text, {"STAGES": stages}, "sm_80").diagnostics if d.severity == "error"]
    assert errors == ["data/unsynchronised-read"]
