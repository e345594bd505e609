"""sm_120a: consumer and workstation Blackwell. Per-device facts are those of the GeForce RTX 5090."""

from __future__ import annotations

from cake_ir.targets.common import ASYNC, CPG_RATES, CPG_SPECS, clusters, f, make, smem
from cake_ir.targets.matrix import MMA_SM120A
from cake_ir.targets.table import Fact

PAPER = "NVIDIA RTX Blackwell architecture paper"
RATE = "RTX Blackwell architecture paper dense peak over 170 SMs at 2.407 GHz"
FULL = "twice as fast on workstation products"

FACTS: dict[str, Fact] = {
    "threads_per_sm": f(1536, "threads", CPG_SPECS, "doc"),
    "blocks_per_sm": f(24, "blocks", CPG_SPECS, "doc"),
    "sm_count": f(170, "SMs", PAPER, "vendor"),
    "clock_hz": f(2.407e9, "Hz", PAPER, "vendor", "boost clock"),
    "hbm_bytes_per_s": f(1.792e12, "bytes/s", PAPER, "vendor", "GDDR7"),
    "l2_bytes": f(96 * 1024 * 1024, "bytes", PAPER, "vendor"),
    "l2_bytes_per_clk_per_sm": f(64, "bytes/clk/SM", "as sm_80", "assumed"),
    "tc_bf16": f(512, "flop/clk/SM", RATE, "derived", f"209.5e12; {FULL}"),
    "tc_f16": f(512, "flop/clk/SM", RATE, "derived", f"with f32 accumulation; {FULL}"),
    "tc_tf32": f(256, "flop/clk/SM", RATE, "derived", "104.8e12"),
    "tc_fp8": f(1024, "flop/clk/SM", RATE, "derived", f"419e12 with f32 accumulation; {FULL}"),
    "tc_int8": f(2048, "op/clk/SM", RATE, "derived", "838e12"),
    "tc_fp4": f(4096, "flop/clk/SM", RATE, "derived", "1676e12"),
    "fp32_lanes": f(128, "fma/clk/SM", CPG_RATES, "doc"),
    "fp64_lanes": f(2, "fma/clk/SM", CPG_RATES, "doc"),
    "alu_per_clk": f(128, "results/clk/SM", PAPER, "vendor", "32-bit integer add; unified with the float lanes"),
    "f16_per_clk": f(128, "results/clk/SM", CPG_RATES, "assumed", "add, mul, fma; packed pairs count two"),
    "bf16_per_clk": f(128, "results/clk/SM", CPG_RATES, "assumed"),
}

TARGET = make(
    "sm_120a",
    (12, 0),
    "Blackwell RTX",
    "GeForce RTX 5090",
    ASYNC,
    smem(100 * 1024),
    clusters(8, 8, "assumed", "multicast is not accelerated; vendor libraries use clusters of one"),
    FACTS,
    mma_sync=MMA_SM120A,
)
