"""Programs that look wrong and are right, and the hazards that only these programs can show (aliases, fp8, unused)."""

from __future__ import annotations

from tests.analyses.hazard_table.cases import Case, case

ISSUE = "            expect(full[k])\n            tma_load(a_s[k], a[row:, k * 64:], signal=full[k])\n"
MMA = "            wgmma(acc, a_s[k].rows(64 * wg, 64), b_s[k], init=k == 0)\n"
RESTARTED = (
    ("                expect(full[n])\n", "                expect(full[k])\n"),
    ("tma_load(a_s[n], a[row:, k * 64:], signal=full[n])", "tma_load(a_s[k], a[row:, k * 64:], signal=full[k])"),
    ("tma_load(b_s[n], b[col:, k * 64:], signal=full[n])", "tma_load(b_s[k], b[col:, k * 64:], signal=full[k])"),
    ("                wait(full[n])\n", "                wait(full[k])\n"),
    ("tcgen05_mma(acc_t[t], a_s[n], b_s[n], init=k == 0)", "tcgen05_mma(acc_t[t], a_s[k], b_s[k], init=k == 0)"),
)
PROMOTED = (
    "            part = fragment(f32, wgmma_d[64, 128])\n            wait(full[k])\n"
    "            wgmma(part, a_s[k], b_s[k], init=True)\n"
)

CASES: list[Case] = [
    # 1 arrivers and waiters of one named barrier; a turn handed on
    case("list-1", "handshake_sm90", "named_barrier(2)", "named_barrier(1)", None),
    case("list-1", "b4", "named_barrier(2)", "named_barrier(3)", None),
    # the last round multiplies a stage that nothing filled, and nobody looks at the sums
    case(
        "list-1",
        "b4",
        "                wait(k_full[j + 1])\n                wgmma(s,",
        "                wait(k_full[j + 1])\n            wgmma(s,",
        None,
    ),
    # 2 bytes of a copy go to a product: no proxy fence
    case("list-2", "b0", MMA, MMA, None),
    # 3 the copy just before its own announcement, by the same thread
    case("list-3", "b0", ISSUE, "".join(f"{x}\n" for x in reversed(ISSUE.splitlines())), None),
    # 4 products that chain on one accumulator
    case(
        "list-4",
        "b0",
        MMA,
        MMA.replace("a_s[k].rows(64 * wg, 64), b_s[k]", "a_s[k].rows(64 * wg, 64).cols(0, 32), b_s[k].cols(0, 32)")
        + MMA.replace(
            "a_s[k].rows(64 * wg, 64), b_s[k], init=k == 0",
            "a_s[k].rows(64 * wg, 64).cols(32, 32), b_s[k].cols(32, 32)",
        ),
        None,
    ),
    # 6 tensor memory that nobody writes again needs no release
    Case(
        "list-6",
        "tmem_alias_sm100",
        (
            (
                "        tmem_store(s_t, x + x)\n        tmem_store_wait()\n        arrive(stored[0])\n",
                "        store(y[0:, :], x)\n",
            ),
            (
                "    with second:\n        wait(stored[0])\n        z = tmem_load(s_t, tmem_d[128, 128])\n"
                "        tmem_load_wait()\n        store(y[0:, :], z)\n",
                "",
            ),
            ("    second = role(warpgroup)\n", ""),
            ("    stored = mbarrier()\n", ""),
        ),
        None,
    ),
    # 7 cp.async feeds ldmatrix: no proxy fence
    Case("list-7", "b2", (), None, target="sm_90a"),
    # 9 two roles wait for one completion
    Case(
        "list-9",
        "handshake_sm90",
        (
            ("    right = role(warpgroup)\n", "    right = role(warpgroup)\n    third = role(warpgroup)\n"),
            (
                "            store(y[i, :], v)\n",
                "            store(y[i, :], v)\n        with third:\n            wait(there[i])\n            arrive(back[i])\n",
            ),
        ),
        None,
    ),
    # 10 restarted numbers that fit: the loop runs a multiple of two rounds of the ring
    Case("list-10", "b1", (("where(K > 0, K % 8 == 0,", "where(K > 0, K % 512 == 0,"), *RESTARTED), None),
    Case("list-10", "b1", RESTARTED, "sync/phase-drift", "expect(full[k])"),
    Case(
        "list-10",
        "b1",
        (("where(K > 0, K % 8 == 0,", "where(K > 0, K % 256 == 0,"), *RESTARTED),
        "sync/phase-drift",
        "wait(full[k])",
    ),
    # 12 aliases with a proven edge, and without it (H36)
    Case("list-12", "ampere_alias", (), None),
    case(
        "H36",
        "ampere_alias",
        "        cp_async_wait(0)\n        sync(math)\n",
        "        cp_async_wait(0)\n",
        "data/unsynchronised-write",
        "store(d_s.rows",
    ),
    case(
        "H36",
        "ampere_alias",
        "        cp_async_wait(0)\n        sync(math)\n        store(d_s",
        "        sync(math)\n        store(d_s",
        "data/cp-async-wait-count",
        "store(d_s.rows",
    ),
    case(
        "H36",
        "ampere_alias",
        "cast(acc, bf16))\n        sync(math)\n",
        "cast(acc, bf16))\n",
        "data/unsynchronised-read",
        "load(d_s.rows",
    ),
    # 13 the first copy into memory that nobody has read
    Case("list-13", "b0_scaled_sm90", (), None, bindings={"STAGES": 2}),
    # 15 a barrier that is declared and not used
    case(
        "list-15",
        "b0",
        "    empty = mbarrier(stages=STAGES)\n",
        "    empty = mbarrier(stages=STAGES)\n    spare = mbarrier(stages=2)\n",
        "performance/unused-barrier",
        "spare = mbarrier",
        "warning",
    ),
    # H84 sums of fp8 products stay in the tensor core
    Case(
        "H84",
        "fp8_sm90",
        (
            (PROMOTED, "            wait(full[k])\n            wgmma(acc, a_s[k], b_s[k])\n"),
            ("            acc = acc + part\n", ""),
        ),
        "numeric/fp8-promotion",
        "wgmma(acc",
        "warning",
    ),
]
