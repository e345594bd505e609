"""Products of synchronisation steps, by kind of machinery: the verdict is predicted by a formula or by a count of a few lines.

The TMA ring and the cp.async ring are in tests/analyses/hazard_table/test_products.py.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import pytest

from analyses import verify_text
from tests.analyses.hazard_table.cases import source


def errors(text: str, **bindings: Any) -> list[str]:
    """Rules of the findings that reject the program."""
    report = verify_text(text, bindings)
    assert report.accepted == (not any(d.severity == "error" for d in report.diagnostics))
    return [d.rule for d in report.diagnostics if d.severity == "error"]


def pairs(steps: dict[str, Any]) -> list[tuple[str, ...]]:
    """Nothing left out, each step, each two."""
    return [c for n in (0, 1, 2) for c in itertools.combinations(steps, n)]


def without(
    text: str, steps: dict[str, tuple[str, frozenset[str]]], off: tuple[str, ...]
) -> tuple[str, frozenset[str]]:
    """The program without the steps, and the rules that may name what is missing."""
    for step in off:
        assert text.count(steps[step][0]) == 1, step
        text = text.replace(steps[step][0], "")
    return text, frozenset[str]().union(*(steps[s][1] for s in off))


# ---- wgmma groups: how many may stay pending, and which stage is released then -------------------------------------------


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("pending", [0, 1, 2])
def test_wgmma_groups_and_the_stage_released_behind_them(stages: int, pending: int) -> None:
    """After the commit of product k, wgmma_wait(p) leaves products k - p + 1 .. k running; stage k - late is released then, and
    the producer fills stage k + 1 only when that of k + 1 - stages is free."""
    for late in range(stages + 1):
        text = source("b0").replace("wgmma_wait(0)", f"wgmma_wait({pending})")
        release = "            with elected():\n                arrive(empty[k])\n"
        assert release in text
        text = text.replace(
            release,
            f"            if k >= {late}:\n                with elected():\n                    arrive(empty[k - {late}])\n",
        ).replace("        stmatrix(", "        wgmma_wait(0)\n        stmatrix(")
        expected = []
        if late < pending:
            expected = ["data/wgmma-release-before-wait"]
        elif late >= stages:
            expected = ["sync/deadlock"]
        assert errors(text, STAGES=stages) == expected, (stages, pending, late)


# ---- bulk stores: groups that may still be read from, by the number of stages and the commits ------------------------------

STORES = """
@kernel(target="sm_90a")
def stores(x: In[bf16, M, 64], y: Out[bf16, M, 64], *, S: range(1, 5) = 2):
    where(M > 0)
    launch(ctas=1)
    math = role(warpgroup)
    d_s = smem(bf16, 64, 64, stages=S, swizzle=128)
    for j in range(ceil_div(M, 64)):
        with math:
            with elected():
                bulk_wait_read(DEPTH)
            sync(warpgroup)
            store(d_s[j], load(x[j * 64:, :], vec(8, 8)[64, 64]))
            fence_async()
            sync(warpgroup)
            with elected():
                tma_store(y[j * 64:, :], d_s[j])
                COMMIT
    with math:
        with elected():
            bulk_wait_read(0)
"""
COMMITS = {"each": "bulk_commit()", "second": "if j % 2 == 1:\n                    bulk_commit()", "never": ""}


def reread(stages: int, depth: int, commits: str, rounds: int) -> str | None:
    """Why a run is wrong: a stage is written again while its store may still read it, or a store is not waited for at the end."""
    closed, group, open_ones = 0, dict[int, int](), list[int]()
    for j in range(rounds):
        done = closed - depth
        if j >= stages and group.get(j - stages, closed + 1) > done:
            return "again"
        open_ones.append(j)
        if commits == "each" or (commits == "second" and j % 2 == 1):
            closed += 1
            group |= dict.fromkeys(open_ones, closed)
            open_ones.clear()
    return "end" if open_ones else None


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("commits", COMMITS)
def test_bulk_groups_are_counted_as_the_formula_says(commits: str, stages: int) -> None:
    for depth in range(4):
        text = STORES.replace("DEPTH", str(depth)).replace("COMMIT", COMMITS[commits])
        wrong = {reread(stages, depth, commits, n) for n in range(1, 2 * stages + 4)} - {None}
        found = errors(text, S=stages)
        assert bool(found) == bool(wrong), (stages, depth, commits, found, wrong)
        if "again" in wrong:
            assert set(found) <= {"data/bulk-wait-depth", "sync/bulk-read-at-exit"}, (depth, found)
        elif wrong:
            assert found == ["sync/bulk-read-at-exit"], (depth, found)


# ---- named barriers: two warpgroups in turn --------------------------------------------------------------------------------

TURNS = """
@kernel(target="sm_90a")
def turns(x: In[f32, M, 64], y: Out[f32, M, 64]):
    launch(ctas=1)
    math = role(warpgroup, count=2)
    turn = named_barrier(2)
    with math as wg:
        if wg == 1:
            pass_first
    for k in range(ceil_div(M, 128)):
        with math as wg:
            enter
            v = load(x[k * 128 + 64 * wg:, :], vec(4, 4)[64, 64])
            leave
            store(y[k * 128 + 64 * wg:, :], v)
    with math as wg:
        if wg == 0:
            last
"""
TURN_STEPS = {
    "pass_first": "arrive(turn[0])",
    "enter": "sync(turn[wg])",
    "leave": "arrive(turn[1 - wg])",
    "last": "sync(turn[0])",
}


def in_turn(on: set[str], rounds: int) -> bool:
    """Whether every sync is joined, no unit enters a round before the one before is complete and the unit has met somebody since
    (its warps do not move together), and none stays open."""
    todo: dict[int, list[tuple[str, int]]] = {0: [], 1: []}
    for wg in (0, 1):
        if wg == 1 and "pass_first" in on:
            todo[wg].append(("arrive", 0))
        for _ in range(rounds):
            todo[wg] += [("sync", wg)] if "enter" in on else []
            todo[wg] += [("arrive", 1 - wg)] if "leave" in on else []
        if wg == 0 and "last" in on:
            todo[wg].append(("sync", 0))
    members = {b: {wg for wg in todo if any(x == b for _, x in todo[wg])} for b in (0, 1)}
    entered: dict[tuple[int, int], int] = defaultdict(int)
    at, waiting = {0: 0, 1: 0}, dict[int, int]()
    alone: dict[int, set[int]] = {0: set(), 1: set()}
    moved = True
    while moved:
        moved = False
        for wg in (0, 1):
            while at[wg] < len(todo[wg]):
                what, b = todo[wg][at[wg]]
                if wg not in waiting:
                    if min(entered[(b, m)] for m in members[b]) < entered[(b, wg)]:
                        return False  # the round that it entered last is still open
                    if b in alone[wg]:
                        return False
                    entered[(b, wg)] += 1
                    waiting[wg] = entered[(b, wg)]
                if what == "sync" and min(entered[(b, m)] for m in members[b]) < waiting[wg]:
                    break
                del waiting[wg]
                alone[wg] = set() if what == "sync" else alone[wg] | {b}
                at[wg] += 1
                moved = True
    ended = all(at[wg] == len(todo[wg]) for wg in todo)
    return ended and all(len({entered[(b, m)] for m in members[b]}) <= 1 for b in members)


@pytest.mark.parametrize("off", [c for n in range(5) for c in itertools.combinations(TURN_STEPS, n)], ids=", ".join)
def test_turns_of_named_barriers(off: tuple[str, ...]) -> None:
    text = TURNS
    for step, op in TURN_STEPS.items():
        text = text.replace(f"            {step}\n", "" if step in off else f"            {op}\n")
    text = text.replace("        if wg == 1:\n    for", "    for").replace("    with math as wg:\n    for", "    for")
    if "last" in off:
        text = text[: text.rindex("    with math as wg:")]
    on = set(TURN_STEPS) - set(off)
    expected = all(in_turn(on, n) for n in range(4))
    found = errors(text)
    assert bool(found) != expected, (off, found)
    assert set(found) <= {"sync/deadlock", "sync/named-left-open", "sync/named-overrun"}, found


# ---- a cluster: half a tile from each CTA to both ---------------------------------------------------------------------------

PAIR = """
@kernel(target="sm_90a")
def pair(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[bf16, M, N], *, S: range(2, 5) = 3):
    where(K > 0, K % 8 == 0, N % 8 == 0)
    tiles = tile_space(ceil_div(M, 256), ceil_div(N, 128))
    launch(ctas=2 * tiles.count, cluster=2)
    math = role(warpgroup, count=2)
    producer = role(thread)
    a_s = smem(bf16, 128, 64, stages=S, swizzle=128)
    b_s = smem(bf16, 128, 64, stages=S, swizzle=128)
    full = mbarrier(stages=S)
    free = mbarrier(stages=S)
    tile_m, tile_n = tiles.at(cluster_id)
    row = (2 * tile_m + cluster_rank) * 128
    col = tile_n * 128
    half = cluster_rank * 64
    with math as wg:
        acc = fragment(f32, wgmma_d[64, 128])
    for k in range(ceil_div(K, 64)):
        with producer:
            wait(free[k - S])
            expect(full[k])
            tma_load(a_s[k], a[row:, k * 64:], signal=full[k])
            tma_load(b_s[k].rows(half, 64), b[col + half:, k * 64:], signal=full[k], multicast=cluster)
        with math as wg:
            wait(full[k])
            wgmma(acc, a_s[k].rows(64 * wg, 64), b_s[k], init=k == 0)
            wgmma_commit()
            wgmma_wait(0)
            with elected():
                arrive(free[k].on(0))
                arrive(free[k].on(1))
    with math as wg:
        store(d[row + 64 * wg:, col:], cast(acc, bf16))
    sync(cluster)
"""
PAIR_STEPS: dict[str, tuple[str, frozenset[str]]] = {
    "wait for the stage": ("            wait(free[k - S])\n", frozenset({"data/slot-reuse-without-wait"})),
    "announce": ("            expect(full[k])\n", frozenset({"derive/unexpected-bytes"})),
    "wait for the copies": (
        "            wait(full[k])\n",
        frozenset({"data/read-before-arrival", "sync/copy-unawaited"}),
    ),
    "wait for the product": (
        "            wgmma_wait(0)\n",
        frozenset({"data/wgmma-release-before-wait", "data/accumulator-read-early"}),
    ),
    "release here": (
        "                arrive(free[k].on(0))\n",
        frozenset({"data/slot-reuse-without-wait", "derive/no-arrival", "sync/deadlock"}),
    ),
    "release there": (
        "                arrive(free[k].on(1))\n",
        frozenset({"data/slot-reuse-without-wait", "derive/no-arrival", "sync/deadlock"}),
    ),
    "stay for the peer": ("    sync(cluster)\n", frozenset({"sync/cluster-exit"})),
}


@pytest.mark.parametrize("off", pairs(PAIR_STEPS), ids=", ".join)
def test_a_pair_that_shares_tiles_is_right_with_all_steps_only(off: tuple[str, ...]) -> None:
    text, allowed = without(PAIR, PAIR_STEPS, off)
    if {"release here", "release there"} <= set(off):
        text = text.replace("            with elected():\n    with math", "    with math")
    found = errors(text)
    assert bool(found) == bool(off), off
    assert len(found) <= max(1, len(off)) and set(found) <= allowed, found


@pytest.mark.parametrize("ranks", [(0,), (1,), (0, 1), (0, 0), (1, 1), (0, 1, 1)])
def test_releases_count_per_cta(ranks: tuple[int, ...]) -> None:
    """Both CTAs write into both, so each needs the releases of both, and as many on every use."""
    both = "                arrive(free[k].on(0))\n                arrive(free[k].on(1))\n"
    text = PAIR.replace(both, "".join(f"                arrive(free[k].on({r}))\n" for r in ranks))
    assert bool(errors(text)) == (sorted(ranks) != [0, 1])


# ---- tcgen05: commits to both rings -----------------------------------------------------------------------------------------

TENSOR_STEPS: dict[str, tuple[str, frozenset[str]]] = {
    "wait for the stage": ("                wait(empty[n - STAGES])\n", frozenset({"data/slot-reuse-without-wait"})),
    "wait for the copies": (
        "                wait(full[n])\n",
        frozenset({"data/read-before-arrival", "sync/copy-unawaited"}),
    ),
    "commit the stage": (
        "                tcgen05_commit(empty[n])\n",
        frozenset({"derive/no-arrival", "sync/deadlock"}),
    ),
    "commit the tile": (
        "        with issuer:\n            tcgen05_commit(done[t])\n",
        frozenset({"derive/no-arrival", "sync/deadlock"}),
    ),
    "wait for the tile": (
        "            wait(done[t])\n",
        frozenset({"data/accumulator-read-early", "data/read-before-arrival", "data/tcgen05-commit-missing"}),
    ),
    "wait for the loads": ("                tmem_load_wait()\n", frozenset({"data/tmem-load-wait"})),
    "release the accumulator": ("            arrive(drained[t])\n", frozenset({"derive/no-arrival", "sync/deadlock"})),
    "wait for the accumulator": (
        "        with issuer:\n            wait(drained[t - 2])\n",
        frozenset({"data/overwritten-while-read", "data/slot-reuse-without-wait"}),
    ),
}


@pytest.mark.parametrize("off", pairs(TENSOR_STEPS), ids=", ".join)
def test_a_tensor_memory_ring_is_right_with_all_steps_only(off: tuple[str, ...]) -> None:
    text, allowed = without(source("b1"), TENSOR_STEPS, off)
    found = errors(text)
    # a release that nobody waits for may be left out with its wait; a wait for the stage cannot
    pointless = set(off) in ({"release the accumulator", "wait for the accumulator"},)
    assert bool(found) == bool(off), (off, found)
    assert len(found) <= max(1, len(off)), found
    assert pointless or set(found) <= allowed, found


# ---- dependent launch: what may stand before the wait ------------------------------------------------------------------------

LAUNCHED = """
@kernel(target="sm_90a")
def launched(x: DIRECTION[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    first = role(warp)
    second = role(warp)
BODY
"""
PLACES = ("before", "kernel", "role", "never")


@pytest.mark.parametrize("direction", ["In", "Const"])
@pytest.mark.parametrize("wait", PLACES)
@pytest.mark.parametrize("reader", ["first", "second"])
def test_what_may_stand_before_griddep_wait(direction: str, wait: str, reader: str) -> None:
    """`before`: both reads stand before a wait of the kernel; `kernel`: behind one; `role`: behind one of the role `first`."""
    read = "        v = load(x[cta, :], vec(1).cols[32])\n"
    write = "        store(y[cta, :], v)\n"
    inside = "        griddep_wait()\n" if wait == "role" and reader == "first" else ""
    body = "    griddep_wait()\n" if wait == "kernel" else ""
    if wait == "role" and reader != "first":
        body += "    with first:\n        griddep_wait()\n"
    body += f"    with {reader}:\n{inside}{read}"
    body += "    griddep_wait()\n" if wait == "before" else ""
    body += f"    with {reader}:\n{write}"
    found = errors(LAUNCHED.replace("DIRECTION", direction).replace("BODY", body))
    if wait in ("never", "kernel") or (wait == "role" and reader == "first"):
        wrong = False
    elif wait == "before":
        wrong = direction == "In"
    else:
        wrong = True  # the other role writes the output without having waited
    assert bool(found) == wrong, found
    assert set(found) <= {"sync/griddep-access-before-wait"}, found
