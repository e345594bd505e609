"""What one op or elementwise statement asks of the machine, in clocks of the SM resource it occupies.

Resources (per SM): tensor, smem, fma, alu, sfu, shuffle; and bytes: l2 (moved between L2 and the SM). Rates come from the target's
table. Elementwise work is counted per warp instruction.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from cake_ir import bound as B
from cake_ir.dtypes import F32
from cake_ir.layouts import placement

Work = dict[str, float]  # resource -> clocks (l2: bytes)

_FMA = {"+", "-", "*", "fma", "fnma", "fms", "neg"}
_SFU = {"exp2", "rcp", "rsqrt", "log2", "sqrt", "tanh"}
# instructions of a cross-lane reduction step: one shuffle and one combine
_BUTTERFLY = 2


class Rates:
    """Service rates of a target, per SM and clock."""

    def __init__(self, target: Any) -> None:
        def fact(key: str, default: float) -> float:
            found = target.facts.get(key)
            return float(found.value) if found is not None else default

        self.target = target
        self.smem = fact("smem_bytes_per_clk", 128)
        self.fma = fact("fp32_lanes", 128)
        self.alu = fact("alu_per_clk", 64)
        self.sfu = fact("sfu_per_clk", 16)
        self.shuffle = fact("shuffle_per_clk", 32)
        self.mma_sync = fact("mma_sync_fraction", 1.0)

    def tensor(self, bits: int) -> float:
        """Dense FLOP per clock and SM of a matrix input width."""
        key = {16: "tc_bf16", 8: "tc_fp8", 32: "tc_tf32"}[bits]
        found = self.target.facts.get(key)
        return float(found.value) if found is not None else float(self.target.facts["tc_bf16"].value)


def elementwise(x: Any, slots: int, warps: int, rates: Rates, out: Work) -> None:
    """Add the instructions of an elementwise expression: `slots` elements per thread in `warps` warps."""
    if not isinstance(x, B.VOp):
        if isinstance(x, B.VExpand):
            elementwise(x.x, placement(x.x.type).slots, warps, rates, out)
        return
    lanes = 32.0 * slots * warps
    if x.op in _FMA and x.type.dtype is F32:
        out["fma"] += lanes / rates.fma
    elif x.op in _SFU:
        out["sfu"] += lanes / rates.sfu
    elif x.op != "bitcast":
        out["alu"] += lanes / rates.alu
    for a in x.args:
        elementwise(a, slots, warps, rates, out)


def _tile(view: B.View) -> float:
    return view.rows * view.cols * view.buffer.dtype.bits / 8


def _region_bytes(region: B.Region) -> float:
    n = 1.0
    for size in region.shape:
        n *= size
    return n * region.tensor.dtype.bits / 8


def _multicast(op: B.Op, cluster: int) -> int:
    ranks = op.operands.get("multicast")
    return cluster if ranks == "cluster" else len(ranks) if ranks else 1


def op_work(op: B.Op, rates: Rates, cluster: int, warps: int) -> Work:
    """The work of one execution of an op by one unit of `warps` warps."""
    w: Work = defaultdict(float)
    name, o = op.name, op.operands
    if name in ("tma_load", "bulk_load", "cp_async"):
        receivers = _multicast(op, cluster)
        w["smem"] += _tile(o["view"]) * receivers / rates.smem
        w["l2"] += _tile(o["view"])
    elif name in ("tma_store", "tma_reduce", "bulk_store", "bulk_reduce"):
        w["smem"] += _tile(o["view"]) / rates.smem
        w["l2"] += _tile(o["view"])
    elif name == "wgmma":
        t, b = o["acc"].type, o["b"]
        k = b.shape[1]
        w["tensor"] += 2.0 * t.rows * t.cols * k / rates.tensor(b.buffer.dtype.bits)
        reads = _tile(b) * (t.rows // 64) + (_tile(o["a"]) if isinstance(o["a"], B.View) else 0.0)
        w["smem"] += reads / rates.smem
    elif name == "mma":
        t, a = o["acc"].type, o["a"].type
        w["tensor"] += 2.0 * t.rows * t.cols * a.cols / rates.tensor(a.dtype.bits) / rates.mma_sync
    elif name == "tcgen05_mma":
        n, k = o["acc"].shape[1], o["a"].shape[1]
        # a pair's product keeps both SMs busy for the same time
        w["tensor"] += 2.0 * 128 * n * k / rates.tensor(o["a"].buffer.dtype.bits)
        w["smem"] += (_tile(o["a"]) + _tile(o["b"])) / rates.smem
    elif name in ("load", "store", "ldmatrix", "stmatrix", "load_scalar", "store_scalar"):
        memory = next(o[k] for k in ("src", "dst", "view") if k in o)
        if isinstance(memory, B.View):
            w["smem"] += max(_tile(memory), 32.0) / rates.smem
        else:
            w["l2"] += max(_region_bytes(memory), 32.0)
            w["alu"] += 2.0 * 32 * warps / rates.alu
        if "x" in o and not isinstance(o["x"], (B.SConst, B.SVar, B.SOp)):
            elementwise(o["x"], placement(o["x"].type).slots, warps, rates, w)
    elif name.startswith("atomic_"):
        w["l2"] += 2 * _region_bytes(o["region"])
    elif name.split("_")[0] in ("row", "col") or name in ("pick", "shift"):
        x = o["x"]
        slots = placement(x.type).slots
        elementwise(x, slots, warps, rates, w)
        w["alu"] += 32.0 * slots * warps / rates.alu
        w["shuffle"] += _BUTTERFLY * 32.0 * warps / rates.shuffle
    elif name in ("tmem_load", "tmem_store"):
        w["alu"] += 32.0 * warps * o["view"].cols / rates.alu / 4
    return w


def let_work(let: B.Let, rates: Rates, warps: int) -> Work:
    """The work of an elementwise statement."""
    w: Work = defaultdict(float)
    if let.value is not None:
        elementwise(let.value, placement(let.frag.type).slots, warps, rates, w)
    return w
