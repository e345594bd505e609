"""sm_80: Ampere. Per-device facts are those of the A100 80 GB SXM."""

from __future__ import annotations

from cake_ir.targets.common import CPG_RATES, CPG_SPECS, clusters, f, make, smem
from cake_ir.targets.matrix import MMA_SM80
from cake_ir.targets.table import Fact

SHEET = "NVIDIA A100 data sheet"
RATE = "A100 data sheet peak over 108 SMs at 1.41 GHz"

FACTS: dict[str, Fact] = {
    "threads_per_sm": f(2048, "threads", CPG_SPECS, "doc"),
    "blocks_per_sm": f(32, "blocks", CPG_SPECS, "doc"),
    "sm_count": f(108, "SMs", SHEET, "vendor"),
    "clock_hz": f(1.41e9, "Hz", SHEET, "vendor", "boost clock"),
    "hbm_bytes_per_s": f(2.039e12, "bytes/s", SHEET, "vendor", "1.555e12 on the 40 GB product"),
    "l2_bytes": f(40 * 1024 * 1024, "bytes", SHEET, "vendor"),
    "l2_bytes_per_clk": f(5120, "bytes/clk/device", "NVIDIA A100 architecture paper", "vendor"),
    "l2_bytes_per_clk_per_sm": f(64, "bytes/clk/SM", "NVIDIA A100 architecture paper: SM port", "assumed"),
    "tc_bf16": f(2048, "flop/clk/SM", RATE, "derived", "312e12; f16 alike"),
    "tc_f16": f(2048, "flop/clk/SM", RATE, "derived"),
    "tc_tf32": f(1024, "flop/clk/SM", RATE, "derived", "156e12"),
    "tc_int8": f(4096, "op/clk/SM", RATE, "derived", "624e12"),
    "tc_f64": f(128, "flop/clk/SM", RATE, "derived", "19.5e12"),
    "fp32_lanes": f(64, "fma/clk/SM", CPG_RATES, "doc"),
    "fp64_lanes": f(32, "fma/clk/SM", CPG_RATES, "doc"),
    "f16_per_clk": f(256, "results/clk/SM", CPG_RATES, "doc", "add, mul, fma; packed pairs count two"),
    "bf16_per_clk": f(128, "results/clk/SM", CPG_RATES, "doc"),
}

TARGET = make(
    "sm_80",
    (8, 0),
    "Ampere",
    "A100 80 GB SXM",
    smem(164 * 1024),
    clusters(1, 1, note="no clusters"),
    FACTS,
    mma_sync=MMA_SM80,
)
