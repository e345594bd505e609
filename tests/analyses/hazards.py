"""Public GPU hazards as single edits of right programs: what really broke somewhere, and the rule that must name it here.

`old` -> `new` at an occurrence in a program; an empty `new` deletes the line. `line` is part of the source line of the
finding. `seen` says where the fault was met in public. The numbers group variants of one hazard.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from analyses.rules import page

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Hazard:
    number: str
    seen: str
    program: str
    old: str
    new: str
    rule: str
    line: str
    occurrence: int = 0
    bindings: dict[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        text, at = read(self.program), -1
        for _ in range(self.occurrence + 1):
            at = text.find(self.old, at + 1)
            assert at >= 0, f"{self.program} has no {self.old!r}"
        if self.new:
            return text[:at] + self.new + text[at + len(self.old) :]
        start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at + len(self.old)) + 1
        return text[:start] + text[end:]


def read(program: str) -> str:
    """A corpus kernel by name, a sketch by its number, or one of the programs below."""
    if program in PROGRAMS:
        return PROGRAMS[program]
    if program[0].isdigit():
        return next((ROOT / "tests/data/sketches").glob(f"{program}_*.cake")).read_text(encoding="utf-8")
    return (ROOT / "corpus/kernels" / f"{program}.cake").read_text(encoding="utf-8")


SCORES = """@kernel(target="sm_90a")
def scores(q: In[bf16, 64, 64], k: In[bf16, 64, 64], v: In[bf16, 64, 64], o: Out[f32, 64, 64]):
    launch(ctas=1)
    loader = role(thread, warps=4)
    math = role(warpgroup)
    q_s = smem(bf16, 64, 64, swizzle=128)
    k_s = smem(bf16, 64, 64, swizzle=128)
    v_s = smem(bf16, 64, 64, swizzle=128)
    p_s = smem(bf16, 64, 64, swizzle=128)
    full = mbarrier()
    with loader:
        expect(full[0])
        tma_load(q_s, q[:, :], signal=full[0])
        tma_load(k_s, k[:, :], signal=full[0])
        tma_load(v_s, v[:, :], signal=full[0])
    with math:
        s = fragment(f32, wgmma_d[64, 64])
        out = fragment(f32, wgmma_d[64, 64])
        wait(full[0])
        wgmma(s, q_s, k_s, init=True)
        wgmma_commit()
        wgmma_wait(0)
        stmatrix(p_s, cast(exp2(s), bf16))
        fence_async()
        sync(warpgroup)
        wgmma(out, p_s, v_s.T, init=True)
        wgmma_commit()
        wgmma_wait(0)
        store(o[:, :], out)
"""

COPIED = """@kernel(target="sm_90a")
def copied(a: In[bf16, 64, 64], b: In[bf16, 64, 64], d: Out[f32, 64, 64]):
    launch(ctas=1)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, swizzle=128)
    b_s = smem(bf16, 64, 64, swizzle=128)
    with math:
        acc = fragment(f32, wgmma_d[64, 64])
        cp_async(a_s, a[:, :])
        cp_async(b_s, b[:, :])
        cp_async_commit()
        cp_async_wait(0)
        fence_async()
        sync(warpgroup)
        wgmma(acc, a_s, b_s, init=True)
        wgmma_commit()
        wgmma_wait(0)
        store(d[:, :], acc)
"""

CROSSED = """@kernel(target="sm_90a")
def crossed(y: Out[f32, M, 32]):
    launch(ctas=M)
    left = role(warp)
    right = role(warp)
    first = mbarrier()
    second = mbarrier()
    with left:
        arrive(first[0])
        wait(second[0])
        store(y[cta, :], fragment(f32, vec(1).cols[32], 1.0))
    with right:
        wait(first[0])
        arrive(second[0])
"""

BIAS = """@kernel(target="sm_90a")
def bias_ring(a: In[bf16, M, K], b: In[bf16, 64, K], extra: In[f32, K], d: Out[f32, M, 64]):
    where(K > 0, K % 64 == 0)
    launch(ctas=ceil_div(M, 64))
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    e_s = smem(f32, 64, stages=2)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    with math:
        acc = fragment(f32, wgmma_d[64, 64], 0)
    for n in range(K // 64):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n], a[64 * cta:, 64 * n:], signal=full[n])
            tma_load(b_s[n], b[:, 64 * n:], signal=full[n])
            bulk_load(e_s[n], extra[64 * n:], signal=full[n])
        with math:
            wait(full[n])
            e = load(e_s[n], wgmma_d.cols[64])
            fence_async()
            wgmma(acc, a_s[n], b_s[n])
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
            acc = acc + e[None, :]
    with math:
        store(d[64 * cta:, :], acc)
"""

MATRIX = """@kernel(target="sm_90a")
def matrix(x: In[bf16, 16, 16], y: Out[bf16, 16, 16]):
    launch(ctas=1)
    team = role(warp)
    tile = smem(bf16, 16, 16, pad=8)
    with team:
        store(tile, load(x[:, :], vec(8, 2)[16, 16]))
        sync(warp)
        f = ldmatrix(tile, mma_d[16, 16])
        store(y[:, :], f)
"""

PROGRAMS = {
    "scores": SCORES,
    "copied": COPIED,
    "crossed": CROSSED,
    "bias": BIAS,
    "matrix": MATRIX,
    "fp8": page("hardware/mma-major").accepted,
    "peeled": BIAS.replace("where(K > 0, K % 64 == 0)", "where(K % 64 == 0)"),
}

G, K, G80, G100 = "gemm_sm90", "02", "gemm_sm80", "gemm_sm100"
ARRIVE_PAIR = "arrive(free[n - 1].on(0))"

HAZARDS: tuple[Hazard, ...] = (
    # ---- mbarrier protocol
    Hazard("H01", "tilelang issue 2566", G, "expect(full[n])", "", "derive/unexpected-bytes", "tma_load(a_s[n]"),
    Hazard(
        "H02",
        "triton pull 9498",
        "kmeans_assign",
        "                arrive(free[n])",
        "                arrive(free[n])\n                arrive(free[n])",
        "derive/asserted-arrivals",
        "free = mbarrier",
    ),
    Hazard(
        "H02",
        "cutlass issue 2404",
        "kmeans_assign",
        "                arrive(free[n])",
        "                if wg == 0:\n                    arrive(free[n])",
        "derive/asserted-arrivals",
        "free = mbarrier",
    ),
    Hazard(
        "H03",
        "triton pull 9046",
        "kmeans_assign",
        "full = mbarrier(stages=STAGES, arrivals=1)",
        "full = mbarrier(stages=STAGES, arrivals=1, bytes=16384)",
        "derive/asserted-bytes",
        "full = mbarrier",
    ),
    Hazard(
        "H03",
        "tilelang issue 2644",
        G,
        "signal=full[n], multicast=cluster)",
        "signal=full[n])",
        "data/uninitialised-memory",
        "wgmma(acc",
    ),
    Hazard(
        "H06", "TensorRT-LLM pull 12835", G, "wait(free[n - STAGES])", "wait(free[n])", "sync/deadlock", "wait(free[n])"
    ),
    Hazard(
        "H06",
        "TensorRT-LLM pull 12835",
        G,
        "wait(full[n])",
        "wait(full[n - STAGES])",
        "data/read-before-arrival",
        "wgmma(acc",
    ),
    Hazard(
        "H07",
        "Fuser pull 4473",
        G,
        "        for k in range(KT):",
        "        n = 0\n        for k in range(KT):",
        "sync/phase-drift",
        "expect(full[n])",
    ),
    Hazard("H07", "triton pull 2272", G, "            n += 1", "", "sync/use-not-advanced", "expect(full[n])"),
    Hazard(
        "H09",
        "triton pull 1141",
        "peeled",
        "    for n in range(K // 64):",
        "    with math:\n        wait(full[0])\n    for n in range(K // 64):",
        "sync/deadlock",
        "wait(full[0])",
    ),
    Hazard(
        "H10",
        "DeepGEMM pull 429",
        G,
        "                wait(full[n])",
        "                wait(full[n])\n                wait(full[n + 1])",
        "sync/deadlock",
        "wait(full[n + 1])",
    ),
    Hazard(
        "H16",
        "tilelang issue 374",
        K,
        "            expect(full[n])\n            tma_load(c_s[n], c[b, n * BC:, :], signal=full[n])",
        "            if n != 1:\n                expect(full[n])\n                tma_load(c_s[n], c[b, n * BC:, :], signal=full[n])",
        "sync/deadlock",
        "wait(full[n])",
    ),
    Hazard(
        "H18",
        "triton pull 10656",
        "crossed",
        "        arrive(first[0])\n        wait(second[0])",
        "        wait(second[0])\n        arrive(first[0])",
        "sync/deadlock",
        "wait(",
    ),
    # ---- named and block barriers
    Hazard(
        "H19",
        "FlashMLA pull 57",
        "06",
        "        if wg == 1:\n            arrive(turn[0])\n",
        "\n",
        "sync/deadlock",
        "sync(turn[wg])",
    ),
    Hazard(
        "H21",
        "cutlass issue 2672",
        "06",
        "named_barrier(2)",
        "named_barrier(20)",
        "derive/named-ids",
        "arrive(turn[0])",
    ),
    Hazard(
        "H22",
        "flashinfer pull 2996",
        K,
        "            wait(full[n])",
        "            sync(cta)\n            wait(full[n])",
        "sync/cta-sync-divergent",
        "sync(cta)",
    ),
    # ---- proxies and fences
    Hazard("H24", "Fuser pull 1962", G, "fence_async()", "", "data/proxy-fence-missing-write", "stmatrix(d_s[e]"),
    Hazard(
        "H24",
        "triton pull 368",
        G,
        "                fence_async()\n                sync(warpgroup)\n                with elected():\n",
        "                sync(warpgroup)\n                with elected():\n                    fence_async()\n",
        "data/proxy-fence-missing-write",
        "stmatrix(d_s[e]",
    ),
    Hazard(
        "H25",
        "triton pull 737",
        "scores",
        "        fence_async()",
        "",
        "data/proxy-fence-missing-write",
        "stmatrix(p_s",
    ),
    Hazard(
        "H26",
        "DeepGEMM pull 389",
        "bias",
        "            fence_async()",
        "",
        "data/proxy-fence-missing-release",
        "e = load",
    ),
    Hazard(
        "H26",
        "measured on an H200",
        "10",
        "            fence_async()",
        "",
        "data/proxy-fence-missing-release",
        "mma(acc",
    ),
    Hazard(
        "H29",
        "tilelang pull 1850",
        "copied",
        "        fence_async()",
        "",
        "data/proxy-fence-missing-write",
        "cp_async(a_s",
    ),
    # ---- groups and reuse
    Hazard(
        "H33",
        "DeepEP issue 657",
        G,
        "bulk_wait_read(1)",
        "bulk_wait_read(2)",
        "data/bulk-wait-depth",
        "bulk_wait_read(2)",
    ),
    Hazard(
        "H33",
        "Fuser pull 5448",
        G,
        "                with elected():\n                    bulk_wait_read(1)\n",
        "\n",
        "data/bulk-wait-depth",
        "stmatrix(d_s[e]",
    ),
    Hazard(
        "H37",
        "pytorch pull 2457",
        G80,
        "            cp_async_commit()\n            for j",
        "            for j",
        "data/cp-async-wait-count",
        "cp_async_wait",
    ),
    Hazard(
        "H38",
        "tilelang pull 2505",
        G80,
        "cp_async_wait(STAGES - 2)",
        "cp_async_wait(STAGES - 1)",
        "data/cp-async-wait-count",
        "cp_async_wait",
    ),
    # ---- wgmma
    Hazard(
        "H40",
        "Fuser issue 3561",
        K,
        "            wgmma_wait(0)\n            arrive(free[n])",
        "            arrive(free[n])\n            wgmma_wait(0)",
        "data/wgmma-release-before-wait",
        "arrive(free[n])",
    ),
    Hazard(
        "H40",
        "Fuser pull 4151",
        K,
        "            wgmma_wait(0)\n            arrive(free[n])",
        "            wgmma_wait(1)\n            arrive(free[n])",
        "data/wgmma-release-before-wait",
        "arrive(free[n])",
    ),
    Hazard(
        "H42",
        "ptxas note C7517",
        "scores",
        "        wgmma_wait(0)\n        store",
        "        store",
        "data/accumulator-read-early",
        "store(o[",
    ),
    Hazard(
        "H43",
        "tilelang issue 2593",
        "scores",
        "s = fragment(f32, wgmma_d[64, 64])",
        "s = fragment(f32, wgmma_d[64, 12])",
        "language/layout-shape",
        "s = fragment",
    ),
    Hazard("H44", "tilelang issue 3223", "fp8", "b_s[n], init", "b_s[n].T, init", "hardware/mma-major", "wgmma("),
    # ---- tensor memory
    Hazard(
        "H46",
        "vllm flash-attention pull 182",
        G100,
        "                tmem_load_wait()\n",
        "\n",
        "data/tmem-load-wait",
        "store(d_s[e]",
    ),
    Hazard(
        "H48", "DeepGEMM pull 384", G100, "            wait(done[t])", "", "data/tcgen05-commit-missing", "tmem_load"
    ),
    Hazard(
        "H53",
        "flashinfer pull 5302",
        G100,
        "stages=2, owner=issuer",
        "stages=4, owner=issuer",
        "hardware/tmem-capacity",
        "acc_t = tmem",
    ),
    Hazard(
        "H54",
        "DeepGEMM pull 341",
        G100,
        "    epi = role(warpgroup)\n    producer = role(thread)\n",
        "    producer = role(thread)\n    epi = role(warpgroup)\n",
        "hardware/warpgroup-alignment",
        "epi = role",
    ),
    Hazard(
        "H58",
        "DeepGEMM pull 384",
        G100,
        "issuer = role(thread)",
        "issuer = role(warp)",
        "hardware/illegal-unit",
        "tcgen05_mma",
    ),
    Hazard(
        "H59", "cutlass issue 2674", G100, "init=k == 0", "init=n == 0", "data/uninitialised-accumulator", "tcgen05_mma"
    ),
    Hazard("H59", "triton pull 10858", G, "init=k == 0", "init=n == 0", "data/uninitialised-accumulator", "wgmma(acc"),
    # ---- clusters
    Hazard("H60", "sglang issue 32907", G, "    sync(cluster)", "", "sync/cluster-exit", "arrive(free"),
    Hazard(
        "H62",
        "tvm pull 20074",
        G,
        "wait(full[n])",
        "wait(full[n].on(0))",
        "hardware/remote-barrier",
        "wait(full[n].on(0))",
    ),
    Hazard(
        "H63",
        "jax pull 33720",
        K,
        "launch(ctas=tiles.count)",
        "launch(ctas=32 * tiles.count, cluster=32)",
        "hardware/cluster-shape",
        "launch(",
    ),
    Hazard(
        "H63",
        "cupy issue 8851",
        G,
        "ctas=2 * min(tiles.count, device.sms // 2)",
        "ctas=2 * min(tiles.count, device.sms // 2) + 1",
        "schedule/grid-not-divisible",
        "launch(",
    ),
    # ---- resources
    Hazard("H65", "helion pull 3620", G, "registers=40", "registers=168", "sync/register-pool", "math = role"),
    Hazard(
        "H65",
        "tilelang issue 2559",
        G,
        "cluster=2)",
        "cluster=2, ctas_per_sm=2)",
        "sync/register-pool",
        "math = role",
        bindings={"STAGES": 2, "BN": 128},
    ),
    Hazard(
        "H67",
        "numba-cuda-mlir issue 143",
        G,
        "STAGES: range(2, 8) = 4",
        "STAGES: range(2, 8) = 7",
        "hardware/smem-capacity",
        "b_s = smem",
        bindings={"STAGES": 7},
    ),
    Hazard(
        "H68",
        "cutlass pull 2219",
        "scores",
        "s = fragment(f32, wgmma_d[64, 64])",
        "s = fragment(f32, wgmma_d[192, 256])",
        "hardware/register-pressure",
        "s = fragment",
    ),
    # ---- copies
    Hazard(
        "H71",
        "triton pull 8670",
        "scores",
        "q: In[bf16, 64, 64]",
        "q: In[bf16, 64, 60]",
        "hardware/tma-stride",
        "tma_load(q_s",
    ),
    Hazard(
        "H72",
        "tilelang issue 2630",
        "scores",
        "q_s = smem(bf16, 64, 64, swizzle=128)",
        "q_s = smem(bf16, 64, 48, swizzle=128)",
        "hardware/swizzle-span",
        "q_s = smem",
    ),
    Hazard("H78", "Hands-on-GEMM issue 11", "matrix", "pad=8", "pad=4", "hardware/operand-alignment", "ldmatrix"),
    # ---- ragged shapes, numerics, launches
    Hazard(
        "H80",
        "flash-attention pull 2407",
        "06",
        "v[b, j * BK:, group, :], signal",
        "v[b, j * BK:length, group, :], signal",
        "hardware/tma-runtime-bound",
        "tma_load(v_s",
    ),
    Hazard(
        "H81",
        "tilelang pull 2161",
        G80,
        "fragment(f32, mma_d[64, 32], 0)",
        "fragment(f32, mma_d[40, 32], 0)",
        "language/layout-shape",
        "acc = fragment",
    ),
    Hazard(
        "H85",
        "cutlass issue 3538",
        "softmax",
        "store(y[cta, c:], exp2",
        "atomic_add(y[cta, c:], exp2",
        "data/update-of-output",
        "atomic_add",
    ),
    Hazard(
        "H87",
        "flashinfer pull 5081",
        "10",
        "        griddep_wait()\n        for n",
        "        for n",
        "sync/griddep-access-before-wait",
        "tma_load(x_s",
    ),
)
