"""Hazards of sections 3, 4, 5 and 10: proxies, groups, matrix products, ragged ends, and what follows another kernel."""

from __future__ import annotations

from tests.analyses.hazard_table.cases import Case, case

FENCE = "        fence_async()\n        sync(math)\n"
RETURN = "            with elected():\n                arrive(empty[k])\n"
STORE = (
    "                tma_store(d[row:, col:], d_s)\n                bulk_commit()\n                bulk_wait_read(0)\n"
)
P_FENCE = "            fence_async()\n            sync(warpgroup)\n"
CP = (
    "                cp_async(a_s[n].rows(part, 16), a[row + part:, n * 64:])\n"
    "                cp_async(b_s[n].rows(part, 16), b[col + part:, n * 64:])\n"
)
LOOP_CP = "            if n < KT:\n" + CP + "            cp_async_commit()\n        cp_async_wait(0)\n"
LOAD = (
    "                x = tmem_load(acc_t[t].cols(64 * j, 64), tmem_d[128, 64])\n                tmem_load_wait()\n"
    "                store(d[row:, col + 64 * j:], cast(x, bf16))\n            arrive(drained[t])\n"
)
BULK = "                with elected():\n                    bulk_wait_read(1)\n"

TAIL = (
    "            if (j + 1) * BK > length:\n"
    "                zero = fragment(bf16, vec(8, D // 8)[BK // 2, D], 0)\n"
    "                store(v_s[j].rows(BK // 2 * wg, BK // 2), zero, when=row_index(zero) + (j * BK + BK // 2 * wg) >= length)\n"
    "                fence_async()\n                sync(math)\n"
)

CASES: list[Case] = [
    # H24 thread stores, then a TMA store, without a fence of every writer in between
    case("H24", "b0", "        fence_async()\n", "", "data/proxy-fence-missing-write", "stmatrix("),
    case(
        "H24",
        "b0",
        FENCE,
        "        sync(math)\n        with elected():\n            fence_async()\n",
        "data/proxy-fence-missing-write",
        "stmatrix(",
    ),
    case(
        "H24", "b0", FENCE, "        sync(math)\n        fence_async()\n", "data/proxy-fence-missing-write", "stmatrix("
    ),
    case(
        "H24",
        "b0",
        FENCE,
        "        with elected():\n            fence_async()\n        sync(math)\n",
        "data/proxy-fence-missing-write",
        "stmatrix(",
    ),
    Case(
        "H24",
        "b0",
        (
            (FENCE, "        sync(math)\n"),
            (STORE, STORE.replace("bulk_commit()", "fence_async()\n                bulk_commit()")),
        ),
        "data/proxy-fence-missing-write",
        "stmatrix(",
    ),
    case("H24", "persistent", "                fence_async()\n", "", "data/proxy-fence-missing-write", "stmatrix("),
    # H25 thread stores, then a product that reads them
    case(
        "H25", "b4_smem_p_sm90", P_FENCE, "            sync(warpgroup)\n", "data/proxy-fence-missing-write", "stmatrix("
    ),
    case(
        "H25",
        "b4_smem_p_sm90",
        P_FENCE,
        "            sync(warpgroup)\n            fence_async()\n",
        "data/proxy-fence-missing-write",
        "stmatrix(",
    ),
    case("H25", "b4_smem_p_sm90", P_FENCE, "            fence_async()\n", "data/lane-race", "wgmma(out"),
    case(
        "H25",
        "b4",
        "                fence_async()\n                sync(math)\n",
        "                sync(math)\n",
        "data/proxy-fence-missing-write",
        "store(v_s[j]",
    ),
    # H26 plain readers of a stage release it to TMA
    case(
        "H26", "b0_scaled_sm90", "            fence_async()\n", "", "data/proxy-fence-missing-release", "factor = load("
    ),
    case(
        "H26",
        "b0_scaled_sm90",
        "            fence_async()\n            arrive(empty[k])\n",
        "            arrive(empty[k])\n            fence_async()\n",
        "data/proxy-fence-missing-release",
        "factor = load(",
    ),
    case(
        "H26",
        "b0_scaled_sm90",
        "            arrive(empty[k])\n",
        "            with elected():\n                arrive(empty[k])\n",
        "sync/release-misses-lanes",
        "arrive(empty[k])",
    ),
    # H28
    case("H28", "poll_sm90", "        fence_async(space=gmem)\n", "", "data/proxy-fence-global", "tma_load("),
    case(
        "H28",
        "poll_sm90",
        "        fence_async(space=gmem)\n",
        "        fence_async()\n",
        "data/proxy-fence-global",
        "tma_load(",
    ),
    # H29 cp.async is generic
    case(
        "H29",
        "b0_cp_async_sm90",
        "            fence_async()\n",
        "",
        "data/proxy-fence-missing-write",
        "cp_async(a_s[n]#1",
    ),
    case(
        "H29",
        "b0_cp_async_sm90",
        "            fence_async()\n            sync(math)\n",
        "            sync(math)\n            fence_async()\n",
        "data/proxy-fence-missing-write",
        "cp_async(a_s[n]#1",
    ),
    # H30 a fence that orders nothing
    Case(
        "H30",
        "b2",
        (
            (
                "            sync(math)\n            for",
                "            fence_async()\n            sync(math)\n            for",
            ),
        ),
        "performance/fence-redundant",
        "fence_async()",
        "advice",
        target="sm_90a",
    ),
    case("H30", "b4_smem_p_sm90", "        y = cast(", "        fence_async()\n        y = cast(", None),
    # H33 depth and place of the bulk wait
    case("H33", "persistent", "bulk_wait_read(1)", "bulk_wait_read(2)", "data/bulk-wait-depth", "bulk_wait_read(2)"),
    case(
        "H33",
        "persistent",
        "d_s = smem(bf16, BM, 64, stages=2,",
        "d_s = smem(bf16, BM, 64, stages=1,",
        "data/bulk-wait-depth",
        "bulk_wait_read(1)",
    ),
    Case(
        "H33",
        "persistent",
        (
            (BULK + "                sync(warpgroup)\n                stmatrix(", "                stmatrix("),
            ("                fence_async()\n", "                fence_async()\n" + BULK),
        ),
        "data/bulk-wait-depth",
        "stmatrix(",
    ),
    case(
        "H33",
        "persistent",
        BULK + "                sync(warpgroup)\n",
        BULK + "                sync(warp)\n",
        "data/unsynchronised-write",
        "stmatrix(",
    ),
    case("H33", "persistent", BULK, "", "data/bulk-wait-depth", "stmatrix("),
    case("H33", "persistent", "                    bulk_commit()\n", "", "data/bulk-wait-depth", "stmatrix("),
    case("H33", "b0", "                bulk_wait_read(0)\n", "", "sync/bulk-read-at-exit", "tma_store("),
    case(
        "H33",
        "b0",
        "                bulk_wait_read(0)\n",
        "                bulk_wait_read(1)\n",
        "sync/bulk-read-at-exit",
        "tma_store(",
    ),
    # a proxy fence is no read wait
    case("H33", "persistent", BULK, "                fence_async()\n", "data/bulk-wait-depth", "stmatrix("),
    # H35 the wait stands in another thread than the issue
    Case(
        "H35",
        "persistent",
        (
            (
                BULK,
                "                with warps() as w:\n                    if w == 1:\n"
                "                        with elected():\n                            bulk_wait_read(1)\n",
            ),
        ),
        "data/group-owner",
        "bulk_wait_read(1)",
    ),
    Case(
        "H35",
        "b0",
        (
            ("                bulk_wait_read(0)\n", ""),
            ("        if wg == 0:\n", "        if wg == 1:\n            bulk_wait_read(0)\n        if wg == 0:\n"),
        ),
        "sync/bulk-read-at-exit",
        "tma_store(",
    ),
    # H36 an alias written while its other name is still read
    # H37 the commit stands behind the wait
    case(
        "H37",
        "b2",
        "            cp_async_commit()\n        for k in range(KT):\n"
        "            n = k + STAGES - 1\n            cp_async_wait(STAGES - 2)\n",
        "        for k in range(KT):\n            n = k + STAGES - 1\n            cp_async_wait(STAGES - 2)\n",
        "data/cp-async-wait-count",
        "fa = ldmatrix",
    ),
    Case(
        "H37",
        "b2",
        (
            ("            cp_async_wait(STAGES - 2)\n            sync(math)\n", ""),
            (
                "            cp_async_commit()\n        cp_async_wait(0)\n",
                "            cp_async_wait(STAGES - 2)\n            sync(math)\n            cp_async_commit()\n        cp_async_wait(0)\n",
            ),
        ),
        "data/cp-async-wait-count",
        "fa = ldmatrix",
    ),
    # H38 the wait counts groups, not stages
    case(
        "H38",
        "b2",
        "cp_async_wait(STAGES - 2)",
        "cp_async_wait(STAGES - 1)",
        "data/cp-async-wait-count",
        "cp_async_wait(STAGES - 1)",
    ),
    case(
        "H38",
        "b2",
        LOOP_CP,
        "            if n < KT:\n" + CP + "                cp_async_commit()\n        cp_async_wait(0)\n",
        "data/cp-async-wait-count",
        "cp_async_wait(STAGES - 2)",
    ),
    case(
        "H38",
        "b2",
        LOOP_CP,
        LOOP_CP.replace(
            CP,
            CP.replace(
                "\n                cp_async(b_s",
                "\n            cp_async_commit()\n            if n < KT:\n                cp_async(b_s",
            ),
        ),
        None,
    ),
    # a stage in two groups, a depth that counts stages
    Case(
        "H38",
        "b2",
        (
            (
                "            if n < KT:\n" + CP + "            cp_async_commit()\n        for k",
                "            if n < KT:\n"
                + CP.replace(
                    "\n                cp_async(b_s",
                    "\n            cp_async_commit()\n            if n < KT:\n                cp_async(b_s",
                )
                + "            cp_async_commit()\n        for k",
            ),
            (
                LOOP_CP,
                LOOP_CP.replace(
                    CP,
                    CP.replace(
                        "\n                cp_async(b_s",
                        "\n            cp_async_commit()\n            if n < KT:\n                cp_async(b_s",
                    ),
                ),
            ),
            ("cp_async_wait(STAGES - 2)", "cp_async_wait(2 * (STAGES - 2))"),
        ),
        None,
    ),
    # H40 operands released before the product has read them
    case(
        "H40",
        "b0",
        "            wgmma_wait(0)\n" + RETURN,
        RETURN + "            wgmma_wait(0)\n",
        "data/wgmma-release-before-wait",
        "arrive(empty[k])",
    ),
    case(
        "H40",
        "b0",
        "            wgmma_wait(0)\n",
        "            wgmma_wait(1)\n",
        "data/wgmma-release-before-wait",
        "arrive(empty[k])",
    ),
    case("H40", "b0", "            wgmma_wait(0)\n", "", "data/wgmma-release-before-wait", "arrive(empty[k])"),
    case("H40", "b0", "            wgmma_commit()\n", "", "data/wgmma-release-before-wait", "arrive(empty[k])"),
    case(
        "H40",
        "persistent",
        "wgmma_wait(1)",
        "wgmma_wait(2)",
        "data/wgmma-release-before-wait",
        "arrive(free[n - 1].on(0))#1",
    ),
    Case(
        "H40",
        "persistent",
        (
            (
                "                if k > 0:\n                    with elected():\n"
                "                        arrive(free[n - 1].on(0))\n                        arrive(free[n - 1].on(1))\n",
                "                with elected():\n                    arrive(free[n].on(0))\n                    arrive(free[n].on(1))\n",
            ),
            (
                "            wgmma_wait(0)\n            with elected():\n"
                "                arrive(free[n - 1].on(0))\n                arrive(free[n - 1].on(1))\n",
                "            wgmma_wait(0)\n",
            ),
        ),
        "data/wgmma-release-before-wait",
        "arrive(free[n].on(0))",
    ),
    # H42 the accumulator is touched while the product is pending
    case(
        "H42",
        "b4_smem_p_sm90",
        "            wgmma_wait(0)\n            x = select(",
        "            x = select(",
        "data/accumulator-read-early",
        "x = select(",
    ),
    case(
        "H42",
        "b0_scaled_sm90",
        "            wgmma_wait(0)\n            acc = acc + part * factor[:, None]\n",
        "            acc = acc + part * factor[:, None]\n            wgmma_wait(0)\n",
        "data/accumulator-read-early",
        "acc = acc + part",
    ),
    case(
        "H42",
        "b4",
        "        wgmma_wait(0)\n        if wg == 0:\n",
        "        if wg == 0:\n",
        "data/accumulator-read-early",
        "stmatrix(o_s",
    ),
    # H46 tensor memory released while a load is pending
    case(
        "H46", "b1", LOAD, LOAD.replace("                tmem_load_wait()\n", ""), "data/tmem-load-wait", "store(d[row:"
    ),
    case(
        "H46",
        "b1",
        LOAD,
        "                x = tmem_load(acc_t[t].cols(64 * j, 64), tmem_d[128, 64])\n                if j == 3:\n"
        "                    arrive(drained[t])\n"
        "                tmem_load_wait()\n                store(d[row:, col + 64 * j:], cast(x, bf16))\n",
        "data/tmem-load-wait",
        "arrive(drained[t])",
    ),
    case(
        "H46",
        "b1",
        "            arrive(drained[t])\n",
        "            with elected():\n                arrive(drained[t])\n",
        "sync/release-misses-lanes",
        "arrive(drained[t])",
    ),
    # H48 the accumulator is touched without the commit's barrier
    case(
        "H48",
        "b1",
        "            wait(done[t])\n",
        "            wait(full[n - 1])\n",
        "data/tcgen05-commit-missing",
        "x = tmem_load",
    ),
    case("H48", "b1", "            wait(done[t])\n", "", "data/tcgen05-commit-missing", "x = tmem_load"),
    case(
        "H48",
        "b1",
        "                tcgen05_commit(empty[n])\n",
        "                arrive(empty[n])\n",
        "data/tcgen05-commit-missing",
        "arrive(empty[n])",
    ),
    case(
        "H48",
        "b1",
        "            tcgen05_commit(done[t])\n",
        "            arrive(done[t])\n",
        "data/tcgen05-commit-missing",
        "arrive(done[t])",
    ),
    Case(
        "H48",
        "b1",
        (
            (
                "                tcgen05_mma(acc_t[t], a_s[n], b_s[n], init=k == 0)\n                tcgen05_commit(empty[n])\n",
                "                tcgen05_commit(empty[n])\n                tcgen05_mma(acc_t[t], a_s[n], b_s[n], init=k == 0)\n",
            ),
        ),
        "data/tcgen05-commit-missing",
        "tcgen05_commit(empty[n])",
    ),
    # H49 columns that others still read are overwritten
    Case(
        "H49",
        "tmem_alias_sm100",
        (
            ("        tmem_store_wait()\n        arrive(stored[0])\n", "        tmem_store_wait()\n"),
            ("        wait(stored[0])\n", "        wait(done[0])\n"),
            ("    stored = mbarrier()\n", ""),
        ),
        "data/unsynchronised-read",
        "z = tmem_load",
    ),
    case("H49", "tmem_alias_sm100", "        tmem_store_wait()\n", "", "data/tmem-store-wait", "z = tmem_load"),
    # H59 the first product accumulates onto what was there
    case("H59", "b1", "init=k == 0", "init=n == 0", "data/uninitialised-accumulator", "tcgen05_mma("),
    case("H59", "b0", ", init=k == 0", "", "data/uninitialised-accumulator", "wgmma(acc"),
    case("H59", "b1", "where(K > 0, ", "where(", "data/uninitialised-memory", "x = tmem_load"),
    case("H59", "b0", "where(K > 0, ", "where(", "data/uninitialised-register", "stmatrix("),
    # H80 rows past the valid length enter a product
    case("H80", "b4", TAIL, "", "data/tail-not-zeroed", "wgmma(out, weights"),
    # H85 an accumulating output that nothing cleared
    case(
        "H85",
        "b0_scaled_sm90",
        "        store(d[row + 64 * wg:, col:], cast(acc, bf16))",
        "        atomic_add(d[row + 64 * wg:, col:], cast(acc, bf16))",
        "data/update-of-output",
        "atomic_add(",
    ),
    # H87 data of the predecessor are touched before the dependency wait
    case(
        "H87",
        "dependent_sm90",
        "        griddep_wait()\n        expect(x_full[0])\n        tma_load(x_s, x[row:, :], signal=x_full[0])\n",
        "        expect(x_full[0])\n        tma_load(x_s, x[row:, :], signal=x_full[0])\n        griddep_wait()\n",
        "sync/griddep-access-before-wait",
        "tma_load(x_s",
    ),
    case("H87", "dependent_sm90", "w: Const[", "w: In[", "sync/griddep-access-before-wait", "tma_load(w_s"),
    case(
        "H87",
        "dependent_sm90",
        "        griddep_wait()\n        store(",
        "        store(",
        "sync/griddep-access-before-wait",
        "store(y",
    ),
]
