"""sm_100a: data-centre Blackwell. Per-device facts are those of the B200."""

from __future__ import annotations

from cake_ir.targets.common import ASYNC, CPG_RATES, CPG_SPECS, TMEM, clusters, f, make, smem
from cake_ir.targets.matrix import MMA_SM89, TCGEN05_SM100A
from cake_ir.targets.table import Fact

SHEET = "NVIDIA HGX B200 data sheet"
RATE = "B200 data sheet dense peak over 148 SMs at 1.86 GHz"

FACTS: dict[str, Fact] = {
    "threads_per_sm": f(2048, "threads", CPG_SPECS, "doc"),
    "blocks_per_sm": f(32, "blocks", CPG_SPECS, "doc"),
    "sm_count": f(148, "SMs", "B200 device properties: two dies of 74", "vendor"),
    "clock_hz": f(
        1.86e9,
        "Hz",
        "data sheet bf16 peak 2.25e15 over 148 SMs x 8192 flop/clk",
        "derived",
        "what the data sheet peaks assume",
    ),
    "clock_max_hz": f(1.965e9, "Hz", "B200 maximum boost clock", "assumed"),
    "hbm_bytes_per_s": f(8e12, "bytes/s", SHEET, "vendor", "7.7e12 on some products"),
    "l2_bytes": f(126 * 1024 * 1024, "bytes", "B200 device properties", "assumed", "split over two dies"),
    "l2_bytes_per_clk_per_sm": f(64, "bytes/clk/SM", "as sm_80", "assumed"),
    "tc_bf16": f(8192, "flop/clk/SM", RATE, "derived", "2.25e15; f16 alike"),
    "tc_f16": f(8192, "flop/clk/SM", RATE, "derived"),
    "tc_tf32": f(4096, "flop/clk/SM", RATE, "derived", "1.12e15"),
    "tc_fp8": f(16384, "flop/clk/SM", RATE, "derived", "4.5e15; 6-bit types alike"),
    "tc_int8": f(16384, "op/clk/SM", RATE, "derived", "4.5e15"),
    "tc_fp4": f(32768, "flop/clk/SM", RATE, "derived", "9e15"),
    "tc_f64": f(128, "flop/clk/SM", SHEET, "assumed"),
    "fp32_lanes": f(128, "fma/clk/SM", CPG_RATES, "doc"),
    "fp64_lanes": f(64, "fma/clk/SM", CPG_RATES, "doc"),
    "f16_per_clk": f(256, "results/clk/SM", CPG_RATES, "assumed", "add, mul, fma; packed pairs count two"),
    "bf16_per_clk": f(256, "results/clk/SM", CPG_RATES, "assumed"),
}

TARGET = make(
    "sm_100a",
    (10, 0),
    "Blackwell",
    "B200",
    ASYNC,
    TMEM,
    smem(228 * 1024),
    clusters(8, 16),
    FACTS,
    mma_sync=MMA_SM89,
    tcgen05=TCGEN05_SM100A,
)
