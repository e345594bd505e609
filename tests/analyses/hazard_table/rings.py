"""Wrong slots, wrong barriers, wrong issuers: edits of rings, pairs and of attention that are not copies of known bugs."""

from __future__ import annotations

from tests.analyses.hazard_table.cases import Case, case

PRODUCER = "    producer = role(thread, warps=4, registers=40)"
ISSUE = (
    "            expect(full[k])\n"
    "            tma_load(a_s[k], a[row:, k * 64:], signal=full[k])\n"
    "            tma_load(b_s[k], b[col:, k * 64:], signal=full[k])\n"
)
WAIT = "            wait(empty[k - STAGES])\n"
END = "    with math as wg:\n        with elected():\n            bulk_wait_read(0)\n    sync(cluster)\n"
V_RELEASE = "            if j > 0:\n                arrive(v_free[j - 1])\n"
O_FENCE = "        fence_async()\n        sync(warpgroup)\n        with elected():\n            tma_store"


def inside(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in text.splitlines())


CASES: list[Case] = [
    # the wrong slot of a ring
    case(
        "slot",
        "b0",
        "a_s[k].rows(64 * wg, 64)",
        "a_s[k + 1].rows(64 * wg, 64)",
        "data/uninitialised-memory",
        "wgmma(acc",
    ),
    case(
        "slot",
        "b0",
        "a_s[k].rows(64 * wg, 64)",
        "a_s[k - 1].rows(64 * wg, 64)",
        "data/uninitialised-memory",
        "wgmma(acc",
    ),
    case("slot", "b0", "tma_load(b_s[k], b", "tma_load(b_s[k + 1], b", "data/uninitialised-memory", "wgmma(acc"),
    case(
        "slot",
        "b0",
        "a_s[k].rows(64 * wg, 64)",
        "a_s[0].rows(64 * wg, 64)",
        "data/released-before-read",
        "arrive(empty[k])",
    ),
    case("slot", "b0", "tma_load(a_s[k], a", "tma_load(b_s[k], a", "data/write-into-flight", "tma_load(b_s[k], b"),
    case(
        "slot",
        "b1",
        "tmem_load(acc_t[t].cols",
        "tmem_load(acc_t[t + 1].cols",
        "data/uninitialised-memory",
        "x = tmem_load",
    ),
    case("slot", "b1", "tcgen05_mma(acc_t[t],", "tcgen05_mma(acc_t[0],", "data/overwritten-while-read", "tcgen05_mma("),
    case(
        "slot", "b2", "ldmatrix(a_s[k].rows", "ldmatrix(a_s[k + 1].rows", "data/uninitialised-memory", "fa = ldmatrix"
    ),
    case("slot", "b2", "n = k + STAGES - 1", "n = k + STAGES", "data/uninitialised-memory", "fa = ldmatrix"),
    case(
        "slot",
        "b2",
        "n = k + STAGES - 1",
        "n = k + STAGES - 2",
        "data/cp-async-wait-count",
        "cp_async_wait(STAGES - 2)",
    ),
    case("slot", "b2", "unroll(STAGES - 1)", "unroll(STAGES)", "data/cp-async-wait-count", "cp_async_wait(STAGES - 2)"),
    # the wrong use of a barrier, or the wrong barrier
    case("use", "b0", "wait(full[k])", "wait(full[k - 1])", "data/read-before-arrival", "wgmma(acc"),
    case("use", "b0", "wait(full[k])", "wait(full[0])", "data/read-before-arrival", "wgmma(acc"),
    case("use", "b0", "wait(full[k])", "wait(full[k + 1])", "sync/deadlock", "wait(full[k + 1])"),
    case("use", "b0", "arrive(empty[k])", "arrive(empty[k - 1])", "sync/negative-use", "arrive(empty[k - 1])"),
    case("use", "b0", "arrive(empty[k])", "arrive(full[k])", "derive/no-arrival", "wait(empty[k - STAGES])"),
    case(
        "use",
        "b0",
        "k * 64:], signal=full[k])\n        with",
        "k * 64:], signal=empty[k])\n        with",
        "derive/unexpected-bytes",
        "signal=empty[k])",
    ),
    case(
        "use",
        "b0",
        "wait(empty[k - STAGES])",
        "wait(full[k - STAGES])",
        "data/slot-reuse-without-wait",
        "tma_load(a_s[k]",
    ),
    case("use", "b1", "wait(drained[t - 2])", "wait(done[t - 2])", "data/overwritten-while-read", "tcgen05_mma("),
    case("use", "b1", "            arrive(drained[t])\n", "", "derive/no-arrival", "wait(drained[t - 2])"),
    case("use", "b1", "                tcgen05_commit(empty[n])\n", "", "derive/no-arrival", "wait(empty[n - STAGES])"),
    # who issues, and who is told in a pair
    Case(
        "issuer",
        "b0",
        (
            (PRODUCER, PRODUCER.replace("thread, warps=4", "warpgroup")),
            (ISSUE, "            with warps() as w:\n                with elected():\n" + inside(ISSUE, 8)),
        ),
        "derive/double-expect",
        "expect(full[k])",
    ),
    Case(
        "issuer",
        "b0",
        (
            (PRODUCER, PRODUCER.replace("thread, warps=4", "warpgroup")),
            (
                WAIT + ISSUE,
                "            with warps() as w:\n                if w == 0:\n                    with elected():\n"
                + inside(WAIT + ISSUE, 12),
            ),
        ),
        None,
    ),
    Case(
        "issuer",
        "b0",
        (
            (PRODUCER, PRODUCER.replace("thread, warps=4", "warp, count=4")),
            (
                "        with producer:\n" + WAIT + ISSUE,
                "        with producer as p:\n            if p == k % 4:\n                with elected():\n"
                + inside(WAIT + ISSUE, 8),
            ),
        ),
        None,
    ),
    case(
        "pair",
        "b3",
        "                if lead:\n                    wait(full[n])",
        "                if cluster_rank == 1:\n                    wait(full[n])",
        "sync/deadlock",
        "wait(full[n])",
    ),
    case(
        "pair",
        "b3",
        "signal=full[n].on(0))\n                tma_load(b_s",
        "signal=full[n])\n                tma_load(b_s",
        "derive/unexpected-bytes",
        "tma_load(a_s[n]",
    ),
    case("pair", "b3", ", cta_group=2", "", "hardware/mma-shape", "tcgen05_mma("),
    case(
        "pair",
        "b3",
        "tcgen05_commit(done[t], multicast=cluster)",
        "tcgen05_commit(done[t])",
        "sync/deadlock",
        "wait(done[t])",
    ),
    case(
        "pair",
        "b3",
        "for k in range(KT):",
        "for k in range(KT + cluster_rank):",
        "derive/unexpected-bytes",
        "tma_load(a_s[n]",
    ),
    case(
        "pair",
        "persistent",
        "for k in range(KT):",
        "for k in range(KT + cluster_rank):",
        "derive/unexpected-bytes",
        "tma_load(b_s[n]",
    ),
    case(
        "pair",
        "persistent",
        END,
        END.replace("    sync", "    if cluster_rank == 0:\n        sync"),
        "sync/non-uniform-control",
        "sync(cluster)",
    ),
    # the end of a cluster: the producer may drain the ring instead of a rendezvous, all of it
    case(
        "end",
        "persistent",
        "    sync(cluster)\n",
        "    with producer:\n        for s in range(STAGES):\n            wait(free[n - STAGES + s])\n",
        None,
    ),
    case(
        "end",
        "persistent",
        "    sync(cluster)\n",
        "    with producer:\n        for s in range(STAGES - 1):\n            wait(free[n - STAGES + s])\n",
        "sync/cluster-exit",
        "arrive(free[n - 1].on(0))#2",
    ),
    case(
        "end",
        "b3",
        "    with producer:\n        for s in range(STAGES):\n            wait(empty[n - STAGES + s])\n",
        "",
        "sync/cluster-exit",
        "tcgen05_commit(empty[n]",
    ),
    # attention
    case(
        "attention",
        "b4",
        "            wait(k_free[j - STAGES])\n",
        "",
        "data/slot-reuse-without-wait",
        "tma_load(k_s[j]",
    ),
    case("attention", "b4", V_RELEASE, V_RELEASE.replace("j - 1", "j"), "sync/deadlock", "wait(v_free[j - STAGES])"),
    case(
        "attention",
        "b4",
        V_RELEASE,
        "            arrive(v_free[j])\n",
        "data/released-before-read",
        "arrive(v_free[j])",
    ),
    case("attention", "b4", "            wait(v_full[j])\n", "", "data/read-before-arrival", "wgmma(out, weights"),
    case(
        "attention",
        "b4",
        "                wait(k_full[j + 1])\n",
        "",
        "data/read-before-arrival",
        "k_s[j + 1], init=True)",
    ),
    case("attention", "b4", "        wait(q_full[0])\n", "", "data/read-before-arrival", "k_s[0], init=True)"),
    case(
        "attention",
        "b4",
        "            arrive(turn[1 - wg])\n        wgmma_wait(0)",
        "        wgmma_wait(0)",
        "sync/deadlock",
        "sync(turn[0])",
    ),
    case(
        "attention",
        "b4",
        "        if wg == 0:\n            sync(turn[0])\n",
        "",
        "sync/named-left-open",
        "arrive(turn[1 - wg])#2",
    ),
    case(
        "attention", "b4", "        if wg == 1:\n            arrive(turn[0])\n", "", "sync/deadlock", "sync(turn[wg])#1"
    ),
    case(
        "attention",
        "b4",
        O_FENCE,
        O_FENCE.replace("        fence_async()\n", "", 1),
        "data/proxy-fence-missing-write",
        "stmatrix(o_s",
    ),
    case(
        "attention", "b4", O_FENCE, O_FENCE.replace("        sync(warpgroup)\n", "", 1), "data/lane-race", "tma_store("
    ),
    # each warp meets its own lanes only; the thread that issues the copy is in one of them
    case(
        "attention", "b4", O_FENCE, O_FENCE.replace("sync(warpgroup)", "sync(warp)", 1), "data/lane-race", "tma_store("
    ),
    case("attention", "b4", "                sync(math)\n", "", "data/unsynchronised-read", "wgmma(out, weights"),
    case("attention", "b4", "            bulk_wait_read(0)\n", "", "sync/bulk-read-at-exit", "tma_store("),
    case(
        "attention",
        "b4",
        "blocks = max(1, ceil_div(reach, BK))",
        "blocks = ceil_div(reach, BK)",
        "sync/deadlock",
        "wait(k_full[0])",
    ),
]
CASES += [
    # a storing role
    case("storer", "storer_sm90", "            wait(d_free[t - 2])\n", "", "data/unsynchronised-write", "stmatrix("),
    case("storer", "storer_sm90", "            fence_async()\n", "", "data/proxy-fence-missing-write", "stmatrix("),
    case("storer", "storer_sm90", "            wait(d_full[t])\n", "", "data/unsynchronised-read", "tma_store("),
    case(
        "storer", "storer_sm90", "bulk_wait_read(1)", "bulk_wait_read(2)", "data/bulk-wait-depth", "bulk_wait_read(2)"
    ),
    case(
        "storer",
        "storer_sm90",
        "arrive(d_free[t - 1])\n        t",
        "arrive(d_free[t])\n        t",
        "derive/unequal-arrivals",
        "arrive(d_free[t])",
    ),
    case("storer", "storer_sm90", "        bulk_wait_read(0)\n", "", "sync/bulk-read-at-exit", "tma_store("),
    # turns
    case("turns", "pingpong_sm90", "                arrive(turn[1 - wg])\n", "", "sync/deadlock", "sync(turn[wg])#2"),
    case(
        "turns",
        "pingpong_sm90",
        "        if t % 2 == wg:\n            sync(turn[wg])\n",
        "        if wg == 0:\n            sync(turn[wg])\n",
        "sync/deadlock",
        "sync(turn[wg])#2",
    ),
    case(
        "turns",
        "pingpong_sm90",
        "            if t % 2 == wg:\n                acc",
        "            if t % 2 == 0:\n                acc",
        "sync/deadlock",
        "sync(turn[wg])#2",
    ),
    case(
        "turns",
        "pingpong_sm90",
        "wait(free[n + k - STAGES])",
        "wait(free[k - STAGES])",
        "data/slot-reuse-without-wait",
        "tma_load(a_s",
    ),
    # cp.async that signals
    case(
        "signal",
        "cp_arrive_sm80",
        "            cp_async_arrive(full[k])\n",
        "            arrive(full[k])\n",
        "data/cp-async-wait-count",
        "fa = ldmatrix",
    ),
    case(
        "signal",
        "cp_arrive_sm80",
        "            wait(free[k - STAGES])\n",
        "",
        "data/slot-reuse-without-wait",
        "cp_async(a_s",
    ),
    case("signal", "cp_arrive_sm80", "            wait(full[k])\n", "", "data/read-before-arrival", "fa = ldmatrix"),
    case(
        "signal",
        "cp_arrive_sm80",
        "            cp_async_arrive(full[k])\n",
        "            cp_async_commit()\n            cp_async_wait(0)\n            arrive(full[k])\n",
        None,
    ),
    case(
        "signal",
        "cp_arrive_sm80",
        "            cp_async(b_s[k].rows(16 * l, 16), b[col + 16 * l:, k * 64:])\n            cp_async_arrive(full[k])\n",
        "            cp_async_arrive(full[k])\n            cp_async(b_s[k].rows(16 * l, 16), b[col + 16 * l:, k * 64:])\n",
        "data/read-before-arrival",
        "fb = ldmatrix",
    ),
    # one CTA loads for both
    case(
        "multicast",
        "multicast_sm90",
        "            wait(full[k - STAGES])\n",
        "",
        "sync/phase-overrun",
        "expect(full[k])",
    ),
    case(
        "multicast",
        "multicast_sm90",
        "arrive(free[k].on(0))",
        "arrive(free[k])",
        "data/released-before-read",
        "arrive(free[k])",
    ),
    case(
        "multicast",
        "multicast_sm90",
        "                wait(free[k - STAGES])\n",
        "",
        "data/slot-reuse-without-wait",
        "tma_load(",
    ),
    case("multicast", "multicast_sm90", "    sync(cluster)\n", "", "sync/cluster-exit", "arrive(free[k].on(0))"),
    case("multicast", "multicast_sm90", ", multicast=cluster", "", "derive/expect-without-copies", "expect(full[k])"),
    case(
        "multicast",
        "multicast_sm90",
        "            fence_async()\n",
        "",
        "data/proxy-fence-missing-release",
        "v = load(",
    ),
    # shared memory of a peer
    case("peer", "peer_sm90", "        wait(got[0])\n", "", "data/unsynchronised-read", "store(y["),
    case(
        "peer",
        "peer_sm90",
        "        arrive(got[0].on(1 - cluster_rank))\n",
        "        arrive(got[0])\n",
        "data/unsynchronised-read",
        "store(y[",
    ),
    case("peer", "peer_sm90", "store(t.on(1 - cluster_rank), v)", "store(t, v)", None),
    case("peer", "dsmem_sm90", "    sync(cluster)\n", "", "data/unsynchronised-read", "store(y["),
    case(
        "peer", "dsmem_sm90", "part[cluster_rank].on(0)", "part[cluster_rank]", "data/uninitialised-memory", "store(y["
    ),
    case(
        "peer", "dsmem_sm90", "part[cluster_rank].on(0)", "part[0].on(0)", "data/unsynchronised-write", "store(part[0]"
    ),
]
