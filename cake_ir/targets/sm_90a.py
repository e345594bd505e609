"""sm_90a: Hopper. Per-device facts are those of the H200 SXM (the H100 SXM differs in memory only)."""

from __future__ import annotations

from cake_ir.targets.common import ASYNC, CPG_RATES, CPG_SPECS, clusters, f, make, smem
from cake_ir.targets.matrix import MMA_SM89, WGMMA_SM90A
from cake_ir.targets.table import Fact

SHEET = "NVIDIA H200 data sheet"
RATE = "H200 data sheet dense peak over 132 SMs at 1.83 GHz"

FACTS: dict[str, Fact] = {
    "threads_per_sm": f(2048, "threads", CPG_SPECS, "doc"),
    "blocks_per_sm": f(32, "blocks", CPG_SPECS, "doc"),
    "sm_count": f(132, "SMs", SHEET, "vendor", "114 on the H100 PCIe"),
    "clock_hz": f(
        1.83e9,
        "Hz",
        "data sheet bf16 peak 989e12 over 132 SMs x 4096 flop/clk",
        "derived",
        "what the data sheet peaks assume",
    ),
    "clock_max_hz": f(1.98e9, "Hz", "NVIDIA H100 SXM maximum boost clock", "vendor", "not held under tensor load"),
    "hbm_bytes_per_s": f(4.8e12, "bytes/s", SHEET, "vendor", "3.35e12 on the H100 SXM"),
    "l2_bytes": f(50 * 1024 * 1024, "bytes", "NVIDIA H100 architecture paper", "vendor"),
    "l2_bytes_per_clk": f(5120, "bytes/clk/device", "as sm_80: two partitions", "assumed"),
    "l2_bytes_per_clk_per_sm": f(64, "bytes/clk/SM", "as sm_80", "assumed"),
    "tc_bf16": f(4096, "flop/clk/SM", RATE, "derived", "989e12; f16 alike"),
    "tc_f16": f(4096, "flop/clk/SM", RATE, "derived"),
    "tc_tf32": f(2048, "flop/clk/SM", RATE, "derived", "495e12"),
    "tc_fp8": f(8192, "flop/clk/SM", RATE, "derived", "1979e12"),
    "tc_int8": f(8192, "op/clk/SM", RATE, "derived", "1979e12"),
    "tc_f64": f(256, "flop/clk/SM", RATE, "derived", "67e12"),
    "mma_sync_fraction": f(
        0.62, "of the wgmma rate", "public microbenchmarks of mma.sync on H100", "assumed", "to be measured"
    ),
    "fp32_lanes": f(128, "fma/clk/SM", CPG_RATES, "doc"),
    "fp64_lanes": f(64, "fma/clk/SM", CPG_RATES, "doc"),
    "f16_per_clk": f(256, "results/clk/SM", CPG_RATES, "doc", "add, mul, fma; packed pairs count two"),
    "bf16_per_clk": f(256, "results/clk/SM", CPG_RATES, "doc"),
}

TARGET = make(
    "sm_90a",
    (9, 0),
    "Hopper",
    "H200 SXM",
    ASYNC,
    smem(228 * 1024),
    clusters(8, 16),
    FACTS,
    wgmma=WGMMA_SM90A,
    mma_sync=MMA_SM89,
)
