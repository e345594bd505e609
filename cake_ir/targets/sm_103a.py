"""sm_103a: Blackwell Ultra. Per-device facts are those of the B300; what differs from sm_100a is stated here.

There is no 8-bit integer tensor rate: tcgen05 kind i8 does not exist and no source gives a per-SM rate.
"""

from __future__ import annotations

from cake_ir.targets import sm_100a
from cake_ir.targets.common import ASYNC, TMEM, clusters, f, make, smem
from cake_ir.targets.matrix import MMA_SM89, TCGEN05_SM103A
from cake_ir.targets.table import Fact

ULTRA = "NVIDIA Blackwell Ultra architecture article"
SAME = "as sm_100a; B300 data sheet peaks agree"

_DROPPED = ("tc_int8", "tc_f64", "clock_max_hz")

FACTS: dict[str, Fact] = {k: v for k, v in sm_100a.FACTS.items() if k not in _DROPPED} | {
    "sm_count": f(148, "SMs", "B300 device properties", "assumed", "160 on the full die"),
    "clock_hz": f(1.92e9, "Hz", "B300 maximum boost clock", "assumed"),
    "hbm_bytes_per_s": f(8e12, "bytes/s", ULTRA, "vendor"),
    "tc_bf16": f(8192, "flop/clk/SM", SAME, "derived"),
    "tc_f16": f(8192, "flop/clk/SM", SAME, "derived"),
    "tc_tf32": f(4096, "flop/clk/SM", SAME, "derived"),
    "tc_fp8": f(16384, "flop/clk/SM", SAME, "derived"),
    "tc_fp4": f(49152, "flop/clk/SM", ULTRA, "derived", "15e15 dense: 1.5 times sm_100a, with the k 96 form"),
    "sfu_per_clk": f(32, "results/clk/SM", ULTRA, "vendor", "exponential only; other functions 16"),
}

TARGET = make(
    "sm_103a",
    (10, 3),
    "Blackwell Ultra",
    "B300",
    ASYNC,
    TMEM,
    smem(228 * 1024),
    clusters(8, 16),
    FACTS,
    mma_sync=MMA_SM89,
    tcgen05=TCGEN05_SM103A,
)
