"""sm_89: Ada. Per-device facts are those of the L40S."""

from __future__ import annotations

from cake_ir.targets.common import CPG_RATES, CPG_SPECS, clusters, f, make, smem
from cake_ir.targets.matrix import MMA_SM89
from cake_ir.targets.table import Fact

SHEET = "NVIDIA L40S data sheet"
RATE = "L40S data sheet dense peak over 142 SMs at 2.52 GHz, rounded to a power of two"
GEFORCE = "GeForce products halve the rate with 32-bit float accumulation"

FACTS: dict[str, Fact] = {
    "threads_per_sm": f(1536, "threads", CPG_SPECS, "doc"),
    "blocks_per_sm": f(24, "blocks", CPG_SPECS, "doc"),
    "sm_count": f(142, "SMs", SHEET, "vendor"),
    "clock_hz": f(2.52e9, "Hz", SHEET, "vendor", "boost clock"),
    "hbm_bytes_per_s": f(864e9, "bytes/s", SHEET, "vendor", "GDDR6"),
    "l2_bytes": f(96 * 1024 * 1024, "bytes", "NVIDIA Ada architecture paper", "vendor"),
    "l2_bytes_per_clk_per_sm": f(64, "bytes/clk/SM", "as sm_80", "assumed"),
    "tc_bf16": f(1024, "flop/clk/SM", RATE, "derived", f"362e12; {GEFORCE}"),
    "tc_f16": f(1024, "flop/clk/SM", RATE, "derived", GEFORCE),
    "tc_tf32": f(512, "flop/clk/SM", RATE, "derived", "183e12"),
    "tc_fp8": f(2048, "flop/clk/SM", RATE, "derived", f"733e12; {GEFORCE}"),
    "tc_int8": f(2048, "op/clk/SM", RATE, "derived", "733e12"),
    "fp32_lanes": f(128, "fma/clk/SM", CPG_RATES, "doc"),
    "fp64_lanes": f(2, "fma/clk/SM", CPG_RATES, "doc"),
    "f16_per_clk": f(128, "results/clk/SM", CPG_RATES, "doc", "add, mul, fma; packed pairs count two"),
    "bf16_per_clk": f(128, "results/clk/SM", CPG_RATES, "doc"),
}

TARGET = make(
    "sm_89", (8, 9), "Ada", "L40S", smem(100 * 1024), clusters(1, 1, note="no clusters"), FACTS, mma_sync=MMA_SM89
)
