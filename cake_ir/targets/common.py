"""Facts shared by all targets, and the helpers with which the target files are written.

Rates are per SM and clock unless the unit says otherwise; a multiply-add counts as two flop.
"""

from __future__ import annotations

from types import MappingProxyType

from cake_ir.targets.features import FEATURES
from cake_ir.targets.matrix import MmaSyncForm, Tcgen05Form, WgmmaForm
from cake_ir.targets.table import Checked, Fact, Target

CPG_SPECS = "CUDA C++ Programming Guide, 'Technical Specifications per Compute Capability'; CCCL arch_traits.h"
CPG_RATES = "CUDA C++ Programming Guide, 'Arithmetic Instructions' throughput table"
CPG_CLUSTERS = "CUDA C++ Programming Guide, 'Thread Block Clusters'"
PTX_MBARRIER = "PTX ISA, 'mbarrier: Size and alignment, Contents'"
PTX_TENSORMAP = "CUDA Driver API, 'Tensor Map Object Management'"
PTX_TMA = "PTX ISA, 'cp.async.bulk.tensor'"
PTX_BULK = "PTX ISA, 'cp.async.bulk'"
PTX_SETMAXNREG = "PTX ISA, 'setmaxnreg'"
PTX_TMEM = "PTX ISA, 'Tensor Memory' and 'tcgen05.alloc'"

KIB = 1024


def f(value: int | float | tuple[int, ...], unit: str, source: str, checked: Checked, note: str = "") -> Fact:
    """Short constructor used by the tables."""
    return Fact(value, unit, source, checked, note)


COMMON: dict[str, Fact] = {
    "warp_size": f(32, "threads", CPG_SPECS, "doc"),
    "warps_per_warpgroup": f(
        4, "warps", "PTX ISA, 'wgmma: Warpgroup'", "doc", "the first warp's index is a multiple of 4"
    ),
    "schedulers_per_sm": f(4, "warp schedulers", "NVIDIA architecture papers", "vendor"),
    "smem_reserved": f(KIB, "bytes per block", CPG_SPECS, "doc", "counted against the SM for every resident block"),
    "smem_without_opt_in": f(
        48 * KIB, "bytes", CPG_SPECS, "doc", "more needs the function attribute for dynamic shared memory"
    ),
    "smem_bytes_per_clk": f(
        128, "bytes/clk/SM", "CUDA C++ Programming Guide, 'Shared Memory': 32 banks of 4 bytes", "doc"
    ),
    "smem_banks": f(32, "banks", "CUDA C++ Programming Guide, 'Shared Memory'", "doc"),
    "registers_per_sm": f(65536, "32-bit registers", CPG_SPECS, "doc"),
    "registers_per_block": f(65536, "32-bit registers", CPG_SPECS, "doc"),
    "max_registers_per_thread": f(255, "32-bit registers", CPG_SPECS, "doc"),
    "register_unit": f(
        256, "32-bit registers per warp", "CUDA occupancy calculator: register allocation unit", "doc", "8 per thread"
    ),
    "max_threads_per_block": f(1024, "threads", CPG_SPECS, "doc", "the assembler does not check it"),
    "max_grid_x": f(2**31 - 1, "blocks", CPG_SPECS, "doc"),
    "max_grid_yz": f(65535, "blocks", CPG_SPECS, "doc"),
    "named_barriers": f(
        16, "barriers per block", "PTX ISA, 'bar, barrier'", "ptxas", "ids 0..15; id 0 is the whole-block barrier"
    ),
    "named_barrier_multiple": f(
        32, "threads", "PTX ISA, 'bar, barrier'", "ptxas", "the thread count of a barrier is a multiple of a warp"
    ),
    "mbarrier_bytes": f(8, "bytes", PTX_MBARRIER, "doc", "8-byte aligned, in shared memory"),
    "mbarrier_count_max": f(2**20 - 1, "arrivals", PTX_MBARRIER, "doc", "at least 1; the assembler does not check it"),
    "global_access_bytes_max": f(16, "bytes", "PTX ISA, 'ld, st' vector forms", "doc", "per thread and instruction"),
    "sfu_per_clk": f(16, "results/clk/SM", CPG_RATES, "doc", "ex2, lg2, rcp, rsqrt, sin, cos"),
    "shuffle_per_clk": f(32, "results/clk/SM", CPG_RATES, "doc"),
    "cmp_per_clk": f(64, "results/clk/SM", CPG_RATES, "doc", "compare, minimum, maximum"),
    "logic_per_clk": f(64, "results/clk/SM", CPG_RATES, "doc", "and, or, xor, shifts"),
    "alu_per_clk": f(64, "results/clk/SM", CPG_RATES, "doc", "32-bit integer add"),
    "cp_async_sizes": f(
        (4, 8, 16), "bytes", "PTX ISA, 'cp.async'", "ptxas", "16 only for the form that bypasses L1 (.cg)"
    ),
    "ldmatrix_row_bytes": f(16, "bytes", "PTX ISA, 'ldmatrix'", "doc", "each row address is 16-byte aligned"),
}

# Hopper and later: asynchronous bulk and tensor copies, transaction barriers.
ASYNC: dict[str, Fact] = {
    "mbarrier_tx_max": f(
        2**20 - 1, "bytes pending per phase", "PTX ISA, 'mbarrier: Tx-Count'", "doc", "the assembler does not check it"
    ),
    "bulk_multiple": f(
        16, "bytes", PTX_BULK, "ptxas", "size of a one-dimensional bulk copy; both addresses are 16-byte aligned too"
    ),
    "tma_rank_max": f(5, "dimensions", PTX_TENSORMAP, "ptxas"),
    "tma_box_max": f(256, "elements per dimension", PTX_TENSORMAP, "doc"),
    "tma_inner_multiple": f(16, "bytes", PTX_TENSORMAP, "doc", "row of the box"),
    "tma_global_align": f(16, "bytes", PTX_TENSORMAP, "doc"),
    "tma_stride_multiple": f(
        16, "bytes", PTX_TENSORMAP, "doc", "strides of dimensions 1 and up; dimension 0 is contiguous"
    ),
    "tma_stride_max": f(2**40 - 1, "bytes", PTX_TENSORMAP, "doc"),
    "tma_extent_max": f(2**32, "elements", PTX_TENSORMAP, "doc"),
    "tma_element_stride_max": f(8, "elements", PTX_TENSORMAP, "doc"),
    "tma_swizzles": f(
        (0, 32, 64, 128), "bytes", PTX_TENSORMAP, "doc", "the row of the box is at most the swizzle width"
    ),
    "tma_smem_align": f(128, "bytes", PTX_TMA, "doc", "and the period of the swizzle where there is one"),
    "swizzle_period": f((256, 512, 1024), "bytes for 32/64/128", "CUDA C++ Programming Guide, 'TMA Swizzle'", "doc"),
    "tensor_map_bytes": f(128, "bytes", PTX_TENSORMAP, "doc", "64-byte aligned kernel parameter"),
    "multicast_ctas": f(16, "bits in the mask", PTX_TMA, "doc"),
    "setmaxnreg_min": f(24, "registers per thread", PTX_SETMAXNREG, "ptxas"),
    "setmaxnreg_max": f(256, "registers per thread", PTX_SETMAXNREG, "ptxas"),
    "setmaxnreg_step": f(8, "registers per thread", PTX_SETMAXNREG, "ptxas"),
}

TMEM: dict[str, Fact] = {
    "tmem_columns": f(512, "columns of 32 bits x 128 lanes", PTX_TMEM, "doc"),
    "tmem_lanes": f(128, "lanes", PTX_TMEM, "doc"),
    "tmem_alloc_min": f(32, "columns", PTX_TMEM, "ptxas", "allocations are powers of two"),
    "tmem_lanes_per_warp": f(
        32, "lanes", "PTX ISA, 'tcgen05: Access restrictions'", "doc", "warp w reaches lanes 32*(w % 4) and up"
    ),
    "tmem_ld_bytes_per_clk": f(
        512, "bytes/clk/SM", "four warp windows of 32 lanes x 4 bytes", "assumed", "no published rate; to be measured"
    ),
}


def smem(per_sm: int) -> dict[str, Fact]:
    """Shared memory facts from the bytes per SM: one block may take all but its own reservation."""
    return {
        "smem_per_sm": f(per_sm, "bytes", CPG_SPECS, "doc"),
        "smem_per_block": f(per_sm - KIB, "bytes", CPG_SPECS, "doc", "with opt-in; per SM less the reservation"),
    }


def clusters(portable: int, most: int, checked: Checked = "doc", note: str = "") -> dict[str, Fact]:
    """Cluster size limits in blocks."""
    return {
        "cluster_max_portable": f(portable, "blocks", CPG_CLUSTERS, checked, note),
        "cluster_max": f(
            most, "blocks", CPG_CLUSTERS, checked, note or "above the portable size needs the function attribute"
        ),
    }


def make(
    name: str,
    capability: tuple[int, int],
    architecture: str,
    product: str,
    *tables: dict[str, Fact],
    wgmma: tuple[WgmmaForm, ...] = (),
    mma_sync: tuple[MmaSyncForm, ...] = (),
    tcgen05: tuple[Tcgen05Form, ...] = (),
) -> Target:
    """A target from tables merged left to right (later ones win) over the common one."""
    facts: dict[str, Fact] = dict(COMMON)
    for table in tables:
        facts.update(table)
    return Target(
        name=name,
        compute_capability=capability,
        architecture=architecture,
        product=product,
        facts=MappingProxyType(facts),
        features=frozenset(x.name for x in FEATURES.values() if name in x.targets),
        wgmma=wgmma,
        mma_sync=mma_sync,
        tcgen05=tcgen05,
        feature_table=FEATURES,
    )
