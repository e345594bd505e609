"""Hazards of sections 1, 2 and 7: barriers, named barriers, clusters."""

from __future__ import annotations

from tests.analyses.hazard_table.cases import Case, case

WAIT = "            wait(empty[k - STAGES])\n"
RELEASE = "            with elected():\n                arrive(empty[k])\n"
COPIES = (
    "            tma_load(a_s[k], a[row:, k * 64:], signal=full[k])\n"
    "            tma_load(b_s[k], b[col:, k * 64:], signal=full[k])\n"
)
STORE = (
    "        if wg == 0:\n            with elected():\n                tma_store(d[row:, col:], d_s)\n"
    "                bulk_commit()\n                bulk_wait_read(0)\n"
)

CASES: list[Case] = [
    # H01 bytes are sent that no arrival announces
    case("H01", "b0", "            expect(full[k])\n", "", "derive/unexpected-bytes", "tma_load(a_s[k]"),
    case(
        "H01",
        "b0",
        "            expect(full[k])\n",
        "            arrive(full[k])\n",
        "derive/unexpected-bytes",
        "tma_load(a_s[k]",
    ),
    case(
        "H01",
        "b0",
        "            expect(full[k])\n",
        "            if k > 0:\n                expect(full[k])\n",
        "derive/unexpected-bytes",
        "tma_load(a_s[k]",
    ),
    case(
        "H01",
        "b0",
        "            expect(full[k])\n",
        "            if KT > 1:\n                expect(full[k])\n",
        "derive/unexpected-bytes",
        "tma_load(a_s[k]",
    ),
    case(
        "H01",
        "b3",
        "                if lead:\n                    expect(full[n])\n",
        "",
        "derive/unexpected-bytes",
        "tma_load(a_s[n]",
    ),
    case("H01", "b1", "                expect(full[n])\n", "", "derive/unexpected-bytes", "tma_load(a_s[n]"),
    # H02 arrivals that differ between uses, or from what is asserted
    case(
        "H02",
        "b0",
        "empty = mbarrier(stages=STAGES)",
        "empty = mbarrier(stages=STAGES, arrivals=1)",
        "derive/asserted-arrivals",
        "empty = mbarrier",
    ),
    case(
        "H02",
        "b0",
        "empty = mbarrier(stages=STAGES)",
        "empty = mbarrier(stages=STAGES, arrivals=256)",
        "derive/asserted-arrivals",
        "empty = mbarrier",
    ),
    case(
        "H02",
        "b1",
        "drained = mbarrier(stages=2)",
        "drained = mbarrier(stages=2, arrivals=1)",
        "derive/asserted-arrivals",
        "drained = mbarrier",
    ),
    case(
        "H02",
        "b3",
        "drained = mbarrier(stages=2)",
        "drained = mbarrier(stages=2, arrivals=4)",
        "derive/asserted-arrivals",
        "drained = mbarrier",
    ),
    case(
        "H02",
        "b0",
        RELEASE,
        "            if k > 0:\n                arrive(empty[k])\n            arrive(empty[k])\n",
        "derive/unequal-arrivals",
        "arrive(empty[k])#1",
    ),
    case(
        "H02",
        "b0",
        RELEASE,
        RELEASE.replace("with elected():", "if wg == 0:"),
        "data/slot-reuse-without-wait",
        "tma_load(a_s[k]",
    ),
    # H03 expected bytes
    case(
        "H03",
        "b0",
        "full = mbarrier(stages=STAGES)",
        "full = mbarrier(stages=STAGES, bytes=16384)",
        "derive/asserted-bytes",
        "full = mbarrier",
    ),
    case(
        "H03",
        "b0",
        "full = mbarrier(stages=STAGES)",
        "full = mbarrier(stages=STAGES, bytes=65536)",
        "derive/asserted-bytes",
        "full = mbarrier",
    ),
    case(
        "H03",
        "b3",
        "full = mbarrier(stages=STAGES)",
        "full = mbarrier(stages=STAGES, bytes=32768)",
        "derive/asserted-bytes",
        "full = mbarrier",
    ),
    case(
        "H03",
        "b0",
        "b[col:, k * 64:], signal=full[k])",
        "b[col:, k * 64:], signal=full[k + 1])",
        "derive/unexpected-bytes",
        "tma_load(b_s[k]",
    ),
    case(
        "H03",
        "b3",
        "                if lead:\n                    expect(full[n])\n",
        "                expect(full[n])\n",
        "derive/expect-without-copies",
        "expect(full[n])",
    ),
    case(
        "H03",
        "b0",
        "            tma_load(b_s[k]",
        "            if k > 0:\n                tma_load(b_s[k]",
        "derive/unequal-bytes",
        "expect(full[k])",
    ),
    case("H03", "persistent", ", multicast=cluster", "", "data/uninitialised-memory", "wgmma(acc"),
    # H05 the expectation comes after an arrival that may close the phase
    case(
        "H05",
        "b0",
        "            expect(full[k])\n" + COPIES,
        "            arrive(full[k])\n" + COPIES + "            expect(full[k])\n",
        None,
    ),
    case("H05", "b0", "            expect(full[k])\n" + COPIES, COPIES + "            expect(full[k])\n", None),
    # H06 first waits: a ring that starts free or not yet filled
    case("H06", "b0", "wait(empty[k - STAGES])", "wait(empty[k])", "sync/deadlock", "wait(empty[k])"),
    case("H06", "b0", "wait(full[k])", "wait(full[k - STAGES])", "data/read-before-arrival", "wgmma(acc"),
    case("H06", "b1", "wait(drained[t - 2])", "wait(drained[t])", "sync/deadlock", "wait(drained[t])"),
    case("H06", "b1", "wait(done[t])", "wait(done[t - 2])", "data/tcgen05-commit-missing", "x = tmem_load"),
    # H07 use numbers that restart or drift
    case(
        "H07",
        "persistent",
        "        for k in range(KT):\n",
        "        n = 0\n        for k in range(KT):\n",
        "sync/phase-drift",
        "expect(full[n])",
    ),
    case(
        "H07",
        "b1",
        "        for k in range(KT):\n",
        "        n = 0\n        for k in range(KT):\n",
        "sync/phase-drift",
        "expect(full[n])",
    ),
    case(
        "H07",
        "b0",
        "wait(empty[k - STAGES])",
        "wait(empty[k - STAGES - 1])",
        "data/slot-reuse-without-wait",
        "tma_load(a_s[k]",
    ),
    case(
        "H07",
        "b1",
        "wait(drained[t - 2])",
        "wait(drained[t - 3])",
        "data/overwritten-while-read",
        "tcgen05_mma(acc_t[t]",
    ),
    case(
        "H07",
        "b0",
        "            with elected():\n                arrive(empty[k])",
        "            with elected():\n                arrive(empty[k + 1])",
        "sync/deadlock",
        "wait(empty[k - STAGES])",
    ),
    # H09 a path without work skips its part of the handshake
    Case(
        "H09",
        "b0",
        (
            ("where(K > 0, ", "where("),
            ("wgmma_d[64, 128])", "wgmma_d[64, 128], 0)\n        wait(full[0])"),
        ),
        "sync/deadlock",
        "wait(full[0])",
    ),
    Case(
        "H09",
        "b0",
        (
            ("where(K > 0, ", "where("),
            ("wgmma_d[64, 128])", "wgmma_d[64, 128], 0)\n        if K > 0:\n            wait(full[0])"),
        ),
        None,
    ),
    # H10 roles disagree on the number of iterations
    Case(
        "H10",
        "b0",
        (
            (
                "    for k in range(KT):\n        with producer:\n",
                "    with producer:\n        for k in range(ceil_div(K, 64)):\n",
            ),
            (
                "        with math as wg:\n            wait(full[k])",
                "    with math as wg:\n        for k in range(K // 64):\n            wait(full[k])",
            ),
        ),
        "data/uninitialised-register",
        "stmatrix(",
    ),
    Case(
        "H10",
        "b0",
        (
            ("where(K > 0, ", "where(K >= 64, "),
            (
                "    for k in range(KT):\n        with producer:\n",
                "    with producer:\n        for k in range(ceil_div(K, 64)):\n",
            ),
            (
                "        with math as wg:\n            wait(full[k])",
                "    with math as wg:\n        for k in range(K // 64):\n            wait(full[k])",
            ),
        ),
        "sync/copy-unawaited",
        "tma_load(a_s[k]",
    ),
    Case(
        "H10",
        "b0",
        (
            (
                "    for k in range(KT):\n        with producer:\n",
                "    with producer:\n        for k in range(KT + 1):\n",
            ),
            (
                "        with math as wg:\n            wait(full[k])",
                "    with math as wg:\n        for k in range(KT):\n            wait(full[k])",
            ),
        ),
        "sync/copy-unawaited",
        "tma_load(a_s[k]",
    ),
    Case(
        "H10",
        "b0",
        (
            ("    for k in range(KT):\n        with producer:\n", "    with producer:\n        for k in range(KT):\n"),
            (
                "        with math as wg:\n            wait(full[k])",
                "    with math as wg:\n        for k in range(KT + 1):\n            wait(full[k])",
            ),
        ),
        "sync/deadlock",
        "wait(full[k])",
    ),
    Case(
        "H10",
        "b0",
        (
            ("    for k in range(KT):\n        with producer:\n", "    with producer:\n        for k in range(KT):\n"),
            (
                "        with math as wg:\n            wait(full[k])",
                "    with math as wg:\n        for k in range(KT):\n            wait(full[k])",
            ),
        ),
        None,
    ),
    # H12 lanes that may still stand in a wait when the elected one has gone on
    Case(
        "H12",
        "b0",
        (
            ("producer = role(thread, warps=4, registers=40)", "producer = role(warpgroup, registers=40)"),
            (
                "            expect(full[k])\n" + COPIES,
                "            with elected():\n"
                + "".join("    " + x + "\n" for x in ("            expect(full[k])\n" + COPIES).splitlines()),
            ),
        ),
        "sync/wait-not-converged",
        "wait(empty[k - STAGES])",
        "warning",
    ),
    # H16 handshake under a condition that only one side has
    case(
        "H16",
        "b0",
        WAIT,
        "            if k % 2 == 0:\n                wait(empty[k - STAGES])\n",
        "data/slot-reuse-without-wait",
        "tma_load(a_s[k]",
    ),
    case(
        "H16",
        "b0",
        "            wait(full[k])\n",
        "            if k % 2 == 0:\n                wait(full[k])\n",
        "data/read-before-arrival",
        "wgmma(acc",
    ),
    case(
        "H16",
        "b0",
        RELEASE,
        "            if k % 2 == 0:\n                arrive(empty[k])\n",
        "sync/deadlock",
        "wait(empty[k - STAGES])",
    ),
    Case(
        "H16",
        "b0",
        (
            (
                WAIT,
                "            if k % 2 == 0:\n                wait(empty[k - STAGES])\n"
                "            else:\n                wait(empty[k - STAGES])\n",
            ),
        ),
        None,
    ),
    Case(
        "H16",
        "poll_sm90",
        (
            (
                "        expect(full[0])\n        tma_load(x_s, x[32 * cta:, :], signal=full[0])\n",
                "        if ready == 1:\n            expect(full[0])\n            tma_load(x_s, x[32 * cta:, :], signal=full[0])\n",
            ),
        ),
        "derive/data-dependent",
        "expect(full[0])",
    ),
    # H18 a circle of waits
    case("H18", "handshake_sm90", "wait(back[i - 1])", "wait(back[i])", "sync/deadlock", "wait(back[i])"),
    case(
        "H18",
        "handshake_sm90",
        "            wait(there[i])\n            v = load(v_s, vec(1).cols[128])\n            arrive(back[i])\n",
        "            v = load(v_s, vec(1).cols[128])\n            arrive(back[i])\n            wait(there[i])\n",
        "data/unsynchronised-read",
        "v = load(",
    ),
    case(
        "H18",
        "handshake_sm90",
        "            arrive(there[i])\n",
        "            sync(both[0])\n            arrive(there[i])\n",
        "sync/deadlock",
        "wait(there[i])",
    ),
    # H19 participants of a rendezvous
    case(
        "H19",
        "b0",
        "        sync(math)\n" + STORE,
        "        if wg == 0:\n            sync(math)\n" + STORE,
        "sync/non-uniform-control",
        "sync(math)",
    ),
    # the count is what takes part: sole parties cannot wait for others
    case("H19", "handshake_sm90", "        arrive(both[0])\n", "        arrive(both[1])\n", None),
    case(
        "H19",
        "handshake_sm90",
        "    with right:\n        sync(both[0])\n",
        "    with right:\n        if M > 1:\n            sync(both[0])\n",
        "sync/named-left-open",
        "arrive(both[0])",
    ),
    # H21 numbers of named barriers
    case("H21", "handshake_sm90", "named_barrier(2)", "named_barrier(16)", "derive/named-ids", "arrive(both[0])"),
    # rounds of one number that may overlap
    case(
        "H21",
        "handshake_sm90",
        "            arrive(there[i])\n",
        "            arrive(both[0])\n            arrive(there[i])\n",
        "sync/named-overrun",
        "arrive(both[0])#2",
    ),
    # H22 a CTA-wide rendezvous that a subset reaches
    case(
        "H22",
        "b0",
        "    with math as wg:\n        stmatrix",
        "    if cta > 0:\n        sync(cta)\n    with math as wg:\n        stmatrix",
        None,
    ),
    case("H22", "b0", "        sync(math)\n", "        sync(cta)\n", "sync/cta-sync-divergent", "sync(cta)"),
    # H60
    case("H60", "b3", "    sync(cluster)\n", "", "sync/cluster-exit", "arrive(drained[t].on(0))"),
    case("H60", "persistent", "    sync(cluster)\n", "", "sync/cluster-exit", "arrive(free[n - 1].on(0))#2"),
    # H62
    case("H62", "b3", "wait(done[t])", "wait(done[t].on(0))", "hardware/remote-barrier", "wait(done[t].on(0))"),
    case("H62", "b3", "arrive(drained[t].on(0))", "arrive(drained[t])", "data/overwritten-while-read", "tcgen05_mma("),
    # H63
    case("H63", "cluster_sm90", "launch(ctas=C * M", "launch(ctas=C * M", "hardware/cluster-shape", "launch(", C=32),
    case(
        "H63",
        "cluster_sm90",
        "launch(ctas=C * M",
        "launch(ctas=C * M",
        "hardware/cluster-portable",
        "launch(",
        "warning",
        C=16,
    ),
    case("H63", "cluster_sm90", "launch(ctas=C * M", "launch(ctas=M", "schedule/grid-not-divisible", "launch(", C=4),
    case("H63", "cluster_sm90", "launch(ctas=C * M", "launch(ctas=C * M", None, C=8),
    case(
        "H63",
        "persistent",
        "launch(ctas=2 * min(tiles.count, device.sms // 2), cluster=2)",
        "launch(ctas=min(tiles.count, device.sms), cluster=2)",
        "schedule/grid-not-divisible",
        "launch(",
    ),
]
