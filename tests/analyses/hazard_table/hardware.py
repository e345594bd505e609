"""Hazards of sections 5, 6, 8, 9, 10 and 12: forms, alignment, resources, numerics, performance."""

from __future__ import annotations

from tests.analyses.hazard_table.cases import Case, case

MATH = "math = role(warpgroup, count=2, registers=232)"
PRODUCER = "producer = role(thread, warps=4, registers=40)"

STORE = (
    "        stmatrix(d_s.rows(64 * wg, 64), cast(acc, bf16))\n        fence_async()\n        sync(math)\n        if wg == 0:\n"
    "            with elected():\n                tma_store(d[row:, col:], d_s)\n                bulk_commit()\n"
    "                bulk_wait_read(0)\n"
)

CASES: list[Case] = [
    # H43 widths of wgmma
    Case("H43", "forms_sm90", (), "language/layout-shape", "acc = fragment(", bindings={"BN": 12}),
    Case("H43", "forms_sm90", (), "hardware/wgmma-shape", "wgmma(acc", bindings={"BN": 264}),
    # integer products have other widths and are not offered at all
    Case(
        "H43",
        "forms_sm90",
        (),
        "hardware/mma-dtype",
        "wgmma(acc",
        bindings={"BN": 40, "T": "i8", "A": "i32", "B_COLS": 128},
    ),
    Case(
        "H43",
        "forms_sm90",
        (),
        "hardware/mma-dtype",
        "wgmma(acc",
        bindings={"BN": 48, "T": "i8", "A": "f32", "B_COLS": 128},
    ),
    Case("H43", "forms_sm90", (), None, bindings={"BN": 24}),
    # H44 operands of 8 bits are K-major
    Case(
        "H44",
        "forms_sm90",
        (("wgmma(acc, a_s, b_s,", "wgmma(acc, a_s, b_s.T,"),),
        "hardware/mma-major",
        "wgmma(acc",
        bindings={"T": "e4m3", "BN": 128, "B_COLS": 128},
    ),
    Case("H44", "forms_sm90", (), None, bindings={"T": "e4m3", "BN": 128, "B_COLS": 128}),
    # H45 the descriptor follows from the view; a start it cannot encode is refused
    case(
        "H45",
        "b0",
        "a_s[k].rows(64 * wg, 64), b_s[k],",
        "a_s[k].rows(64 * wg, 64).cols(8, 16), b_s[k].cols(8, 16),",
        "hardware/operand-alignment",
        "wgmma(acc",
    ),
    case(
        "H45",
        "b0",
        "a_s[k].rows(64 * wg, 64), b_s[k],",
        "a_s[k].rows(64 * wg, 64).cols(16, 16), b_s[k].cols(16, 16),",
        None,
    ),
    case("H45", "b0", "b_s[k], init=k == 0)", "b_s[k].cols(8, 16), init=k == 0)", "hardware/mma-shape", "wgmma(acc"),
    case(
        "H45",
        "b0",
        "a_s[k].rows(64 * wg, 64), b_s",
        "a_s[k].rows(4 * wg, 64), b_s",
        "hardware/operand-alignment",
        "wgmma(acc",
    ),
    # H53 tensor memory columns
    case(
        "H53",
        "b1",
        "acc_t = tmem(f32, 128, 256, stages=2,",
        "acc_t = tmem(f32, 128, 256, stages=3,",
        "hardware/tmem-capacity",
        "acc_t = tmem(",
    ),
    case(
        "H53",
        "b1",
        "acc_t = tmem(f32, 128, 256, stages=2,",
        "spare = tmem(f32, 128, 64, owner=issuer)\n    acc_t = tmem(f32, 128, 256, stages=2,",
        "hardware/tmem-capacity",
        "spare = tmem(",
    ),
    case(
        "H53",
        "b1",
        "tiles.count, device.sms))",
        "tiles.count, device.sms), ctas_per_sm=2)",
        "hardware/tmem-capacity",
        "acc_t = tmem(",
        STAGES=2,
    ),
    # H54 lanes of a quarter: a warpgroup starts at a warp that is a multiple of four
    case(
        "H54",
        "b1",
        "    epilogue = role(warpgroup)\n    producer = role(thread)\n",
        "    producer = role(thread)\n    epilogue = role(warpgroup)\n",
        "hardware/warpgroup-alignment",
        "epilogue = role",
    ),
    case(
        "H54",
        "b1",
        "tmem_load(acc_t[t].cols(64 * j, 64), tmem_d[128, 64])",
        "tmem_load(acc_t[t].rows(32, 64).cols(64 * j, 64), tmem_d[64, 64])",
        "language/layout-shape",
        "x = tmem_load",
    ),
    # H56 base and stride of swizzled operands
    case(
        "H56",
        "b0",
        "a_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)",
        "a_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128, pad=8)",
        "language/arguments",
        "a_s = smem(",
    ),
    case(
        "H56",
        "b0",
        "a_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)",
        "a_s = smem(bf16, 128, 64, stages=STAGES)",
        "hardware/mma-swizzle",
        "wgmma(acc",
    ),
    case(
        "H56", "b0", "    a_s = smem(bf16, 128, 64", "    odd_s = smem(bf16, 3, 8)\n    a_s = smem(bf16, 128, 64", None
    ),
    # H58 who issues
    case(
        "H58", "b1", "    issuer = role(thread)\n", "    issuer = role(warp)\n", "hardware/illegal-unit", "tcgen05_mma("
    ),
    case(
        "H58",
        "b1",
        "                x = tmem_load(acc_t[t].cols(64 * j, 64), tmem_d[128, 64])\n                tmem_load_wait()\n"
        "                store(d[row:, col + 64 * j:], cast(x, bf16))\n",
        "                with elected():\n                    x = tmem_load(acc_t[t].cols(64 * j, 64), tmem_d[128, 64])\n"
        "                    tmem_load_wait()\n                    store(d[row:, col + 64 * j:], cast(x, bf16))\n",
        "hardware/illegal-unit",
        "x = tmem_load",
    ),
    case(
        "H58",
        "b0",
        "    producer = role(thread, warps=4, registers=40)",
        "    producer = role(warpgroup, registers=40)",
        "hardware/illegal-unit",
        "expect(full[k])",
    ),
    # H65 the register pool
    Case(
        "H65",
        "b0",
        ((PRODUCER, PRODUCER.replace("40", "56")), (MATH, MATH.replace("232", "240"))),
        "sync/register-pool",
        "math = role",
    ),
    Case("H65", "b0", ((PRODUCER, PRODUCER.replace("40", "24")), (MATH, MATH.replace("232", "240"))), None),
    Case("H65", "b0", ((PRODUCER, PRODUCER.replace(", registers=40", "")),), "sync/register-pool", "math = role"),
    Case("H65", "b0", ((MATH, MATH.replace("232", "236")),), "hardware/setmaxnreg-range", "math = role"),
    Case(
        "H65",
        "b0",
        ((PRODUCER, "producer = role(thread, registers=40)\n    rest = role(thread, warps=3)"),),
        "hardware/setmaxnreg-warpgroup",
        "producer = role",
    ),
    # H67 shared memory
    case(
        "H67",
        "b0",
        "STAGES: range(2, 6) = 4",
        "STAGES: range(2, 9) = 4",
        "hardware/smem-capacity",
        "a_s = smem(",
        STAGES=7,
    ),
    case("H67", "b0", "STAGES: range(2, 6) = 4", "STAGES: range(2, 9) = 4", None, STAGES=6),
    Case(
        "H67",
        "b2",
        (('target=("sm_80", "sm_90a")', 'target="sm_120a"'),),
        "hardware/smem-capacity",
        "a_s = smem(",
        bindings={"STAGES": 4},
    ),
    Case("H67", "b2", (('target=("sm_80", "sm_90a")', 'target="sm_120a"'),), None, bindings={"STAGES": 3}),
    Case("H67", "b2", (), None, bindings={"STAGES": 5}, target="sm_80"),
    # H68 the register file
    Case("H68", "forms_sm90", (), "hardware/register-pressure", "acc = fragment(", bindings={"BN": 256, "ROWS": 128}),
    Case(
        "H68",
        "forms_sm90",
        (
            ("producer = role(thread, warps=4)", "producer = role(thread, warps=4, registers=40)"),
            ("math = role(warpgroup)", "math = role(warpgroup, registers=128)"),
        ),
        "performance/register-budget",
        "math = role",
        "warning",
        bindings={"BN": 208},
    ),
    # H69 boxes are cut into pieces the hardware takes; what no cut helps is refused
    Case(
        "H69",
        "b0",
        (
            (
                "d_s = smem(bf16, 128, 128, swizzle=128)",
                "d_s = smem(bf16, 128, 128, swizzle=128)\n    wide = smem(bf16, 1, 264)",
            ),
            ("tma_store(d[row:, col:], d_s)", "tma_store(d[row:, col:], wide)"),
        ),
        "hardware/tma-box",
        "tma_store(d[row:, col:], wide)",
    ),
    # H71 strides of tensor maps
    case("H71", "b0", "b: In[bf16, N, K]", "b: In[bf16, N, K:4]", "hardware/tma-inner-dimension", "tma_load(b_s[k]"),
    Case(
        "H71",
        "b0",
        (("a: In[bf16, M, K]", "a: In[bf16, M:500, K]"), ("where(K > 0, ", "where(K <= 496, K > 0, ")),
        "hardware/tma-stride",
        "tma_load(a_s[k]",
    ),
    Case(
        "H71",
        "b0",
        (("a: In[bf16, M, K]", "a: In[bf16, M:504, K]"), ("where(K > 0, ", "where(K <= 496, K > 0, ")),
        None,
    ),
    Case("H71", "b0", (("where(K > 0, K % 8 == 0, N % 8 == 0)", "where(K > 0, N % 8 == 0)"),), None),
    # H72 rows and swizzle span
    case(
        "H72",
        "b0",
        "d_s = smem(bf16, 128, 128, swizzle=128)",
        "d_s = smem(bf16, 128, 96, swizzle=128)",
        "hardware/swizzle-span",
        "d_s = smem(",
    ),
    # H73 a store whose last row piece is no multiple of 16 bytes
    Case(
        "H73",
        "b0",
        (
            ("where(K > 0, K % 8 == 0, N % 8 == 0)", "where(K > 0, K % 8 == 0, N <= 4096)"),
            ("d: Out[bf16, M, N]", "d: Out[bf16, M:4096, N]"),
        ),
        "data/tma-store-tail",
        "tma_store(",
        "warning",
    ),
    Case(
        "H73",
        "b0",
        (
            ("where(K > 0, K % 8 == 0, N % 8 == 0)", "where(K > 0, K % 8 == 0)"),
            (STORE, "        store(d[row + 64 * wg:, col:], cast(acc, bf16))\n"),
            ("    d_s = smem(bf16, 128, 128, swizzle=128)\n", ""),
        ),
        None,
    ),
    # H76
    case("H76", "b0", "a: In[bf16, M, K]", "a: In[i4, M, K]", "language/unknown-name", "def gemm"),
    # H78 rows of ldmatrix
    case(
        "H78",
        "b2",
        "a_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)",
        "a_s = smem(bf16, 128, 64, stages=STAGES, pad=4)",
        "hardware/operand-alignment",
        "fa = ldmatrix",
    ),
    case(
        "H78",
        "b2",
        "a_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)",
        "a_s = smem(bf16, 128, 64, stages=STAGES, pad=8)",
        None,
    ),
    # H81 rows over warps
    case("H81", "b2", "wm = 64 * (w // 4)", "wm = 96 * (w // 4)", "data/view-out-of-bounds", "fa = ldmatrix"),
    case("H81", "b2", "part = 16 * w", "part = 8 * w", "data/unsynchronised-write", "cp_async(a_s[n]#1"),
    # H82 rows in which nothing is valid
    case(
        "H82",
        "b4_smem_p_sm90",
        "base = select(top == -inf, 0.0, top)",
        "base = top",
        "numeric/softmax-empty-row",
        "p = exp2(",
        "warning",
    ),
    case(
        "H82",
        "b4_smem_p_sm90",
        "out * select(total == 0.0, 0.0, rcp(total))[:, None]",
        "out * rcp(total)[:, None]",
        "numeric/reciprocal-of-zero",
        "y = cast",
        "warning",
    ),
    case(
        "H82",
        "b4",
        "select(total == 0.0, 0.0, rcp(total))",
        "rcp(total)",
        "numeric/reciprocal-of-zero",
        "rcp(total)",
        "warning",
    ),
    # H84
    # H85 an accumulating output
    # H91 H92
    Case("H92", "b2", (), "performance/mma-sync", "mma(acc", "advice", target="sm_90a"),
    # H94 everybody meets so that one thread arrives
    case(
        "H94",
        "b0_scaled_sm90",
        "            arrive(empty[k])\n",
        "            sync(warpgroup)\n            with elected():\n                arrive(empty[k])\n",
        "performance/arrive-granularity",
        "sync(warpgroup)",
        "advice",
    ),
]
