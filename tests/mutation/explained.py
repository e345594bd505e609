"""Rejects that the value reading cannot show to be wrong, by rule: the hardware text that forbids the program.

The value reading executes the program's meaning on one launch; it has no register file, no tensor-map encoder, no proxy
hazards towards earlier reads, no predecessor grid. Each entry says which text makes a program of that kind wrong on the
device although this reading ends well. A rule that is not here explains nothing: such a reject is listed as unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Law:
    """source: where the hardware (or Cake's own contract) says so. why: why no run of the value reading can show it."""

    source: str
    why: str


_FORM = "the value reading computes any shape and form; the device has only those of the table"
_LIMIT = "the value reading has no such capacity"
LAWS: dict[str, Law] = {
    "hardware/mma-shape": Law("PTX ISA, mma.sync: shape and type table", _FORM),
    "hardware/mma-dtype": Law("PTX ISA, mma.sync: shape and type table", _FORM),
    "hardware/mma-accumulator": Law("PTX ISA, wgmma.mma_async and mma.sync: .dtype of D", _FORM),
    "hardware/mma-major": Law("PTX ISA, wgmma: transpose bits exist for 16-bit types only", _FORM),
    "hardware/mma-swizzle": Law("PTX ISA, matrix descriptor: layout_type covers the swizzles of the operand", _FORM),
    "hardware/wgmma-shape": Law("PTX ISA, wgmma.mma_async: M 64, N a multiple of 8 up to 256, K 32 bytes", _FORM),
    "hardware/tcgen05-shape": Law("PTX ISA, tcgen05.mma: valid M, N, K and cta_group", _FORM),
    "hardware/tcgen05-form": Law("PTX ISA, tcgen05.mma: kinds and operand places", _FORM),
    "hardware/tmem-form": Law("PTX ISA, tcgen05.ld/st: .shape and .num", _FORM),
    "hardware/tmem-shape": Law("PTX ISA, tcgen05.ld: 32 lanes per warp of a warpgroup", _FORM),
    "hardware/tmem-owner": Law("PTX ISA, tcgen05.alloc: the allocating warp deallocates", _FORM),
    "hardware/tmem-capacity": Law("PTX ISA, tcgen05.alloc: 512 columns, powers of two from 32", _LIMIT),
    "hardware/ldmatrix-form": Law("PTX ISA, ldmatrix: 8x8 b16 matrices, 16-byte rows", _FORM),
    "hardware/stmatrix-form": Law("PTX ISA, stmatrix: 8x8 b16 matrices, 16-byte rows", _FORM),
    "hardware/atomic-form": Law("PTX ISA, red/atom: types per operation", _FORM),
    "hardware/operand-alignment": Law(
        "PTX ISA, matrix descriptor and ldmatrix: start addresses are multiples of 16 bytes; swizzle atoms of 8 rows",
        "the value reading reads the bytes that the view names; the device drops the low address bits",
    ),
    "hardware/panel-crossing": Law("PTX ISA, matrix descriptor: one leading-dimension stride between panels", _FORM),
    "hardware/swizzle": Law("CUDA driver API, cuTensorMapEncodeTiled: swizzle modes 32, 64, 128 B", _FORM),
    "hardware/swizzle-span": Law(
        "CUDA driver API, cuTensorMapEncodeTiled: inner box dimension at most the swizzle span", _FORM
    ),
    "hardware/tma-box": Law(
        "CUDA driver API, cuTensorMapEncodeTiled: boxDim at most 256, inner bytes a multiple of 16", _LIMIT
    ),
    "hardware/tma-inner-dimension": Law("CUDA driver API, cuTensorMapEncodeTiled: the inner dimension is dense", _FORM),
    "hardware/tma-stride": Law("CUDA driver API, cuTensorMapEncodeTiled: strides are multiples of 16 bytes", _FORM),
    "hardware/tma-rank": Law("CUDA driver API, cuTensorMapEncodeTiled: rank 1 to 5", _LIMIT),
    "hardware/tma-padding": Law(
        "PTX ISA, cp.async.bulk.tensor: the shared image is dense or swizzled, never padded", _FORM
    ),
    "hardware/tma-transpose": Law("PTX ISA, cp.async.bulk.tensor: no transposition", _FORM),
    "hardware/tma-runtime-bound": Law("CUDA driver API, cuTensorMapEncodeTiled: extents are those of the map", _FORM),
    "hardware/bulk-size": Law("PTX ISA, cp.async.bulk: size and addresses are multiples of 16 bytes", _FORM),
    "hardware/bulk-rows": Law("PTX ISA, cp.async.bulk: one contiguous range", _FORM),
    "hardware/cp-async-size": Law("PTX ISA, cp.async: cp-size 4, 8 or 16", _FORM),
    "hardware/cp-async-rows": Law("PTX ISA, cp.async: aligned to cp-size", _FORM),
    "hardware/illegal-unit": Law("PTX ISA: .aligned instructions are executed by all threads of the unit", _FORM),
    "hardware/smem-capacity": Law("CUDA programming guide, compute capabilities: shared memory per block", _LIMIT),
    "hardware/register-file": Law("CUDA programming guide, compute capabilities: 64 K registers per SM", _LIMIT),
    "hardware/register-pressure": Law("CUDA programming guide, compute capabilities: 255 registers per thread", _LIMIT),
    "hardware/setmaxnreg-range": Law("PTX ISA, setmaxnreg: 24 to 256 in steps of 8", _LIMIT),
    "hardware/setmaxnreg-warpgroup": Law(
        "PTX ISA, setmaxnreg.sync.aligned: all warps of a warpgroup execute it", _LIMIT
    ),
    "hardware/setmaxnreg-missing": Law("PTX ISA, setmaxnreg: the kernel is launched with a maximum that fits", _LIMIT),
    "sync/register-pool": Law("PTX ISA, setmaxnreg.inc blocks until the CTA's pool has enough registers", _LIMIT),
    "hardware/threads-per-block": Law("CUDA programming guide, compute capabilities: 1024 threads per block", _LIMIT),
    "hardware/warpgroup-alignment": Law("PTX ISA, warpgroup: four contiguous warps, the first a multiple of 4", _FORM),
    "hardware/cluster-portable": Law("CUDA programming guide, clusters: at most 8 blocks portably", _LIMIT),
    "hardware/cluster-shape": Law("CUDA programming guide, clusters: the grid is a multiple of the cluster", _LIMIT),
    "hardware/ctas-per-sm": Law(
        "CUDA programming guide, compute capabilities: registers and shared memory per SM", _LIMIT
    ),
    "hardware/tx-limit": Law("PTX ISA, mbarrier: tx-count range 2^20 - 1", _LIMIT),
    "hardware/arrival-limit": Law("PTX ISA, mbarrier: count range 2^20 - 1", _LIMIT),
    "hardware/wait-depth": Law("PTX ISA, cp.async.wait_group and wgmma.wait_group: N is a small constant", _LIMIT),
    "hardware/remote-barrier": Law("PTX ISA, mbarrier.try_wait: shared::cta only", _FORM),
    "hardware/remote-destination": Law(
        "PTX ISA, cp.async.bulk.tensor: destination and mbarrier in the same CTA", _FORM
    ),
    "hardware/remote-operand": Law("PTX ISA, wgmma and ldmatrix: shared::cta operands", _FORM),
    "hardware/cluster-rank": Law("PTX ISA, mapa: the rank lies inside the cluster", _LIMIT),
    "hardware/reduction-crosses-warps": Law("PTX ISA, shfl.sync: lanes of one warp", _FORM),
    "hardware/feature-missing": Law("PTX ISA, target notes of each instruction", _FORM),
    "hardware/cp-async-alignment": Law("PTX ISA, cp.async: both addresses are aligned to the size of the copy", _FORM),
    "hardware/reduce-form": Law("PTX ISA, cp.reduce.async.bulk: operations and types", _FORM),
    "hardware/grid-size": Law(
        "CUDA programming guide, compute capabilities: 2^31 - 1 blocks in x, 65535 in y and z", _LIMIT
    ),
    "hardware/tcgen05-mixed-groups": Law("PTX ISA, tcgen05: one .cta_group in a kernel", _FORM),
    "data/index-overflow": Law(
        "PTX ISA, integer arithmetic: the results of 32-bit instructions wrap", "the judge's launches are small"
    ),
    "sync/spin-without-residency": Law(
        "CUDA programming guide, cooperative groups: all blocks of a grid-wide sync are resident", _LIMIT
    ),
    "data/overlay-stale-read": Law(
        "Cake: a tile is read by the name that wrote it last (docs/language.md, over=)",
        "the bytes are those of the other name, or nobody uses what was read",
    ),
    "derive/named-ids": Law("PTX ISA, bar, barrier: 16 named barriers per CTA", _LIMIT),
    "data/proxy-fence-global": Law("PTX ISA, Proxies", "global memory is not split by proxy here"),
    "sync/wait-not-converged": Law(
        "PTX ISA, .aligned instructions need all threads converged", "agents of the value reading are whole units"
    ),
    "sync/release-misses-lanes": Law(
        "PTX ISA, Memory consistency model: a release covers the releasing thread's own accesses",
        "an arrival of a whole unit counts as a sync of its threads (lenient, docs/value-reading.md)",
    ),
    "data/lane-race": Law(
        "PTX ISA, Memory consistency model: threads of a warp are separate", "threads of a unit run together"
    ),
    "sync/cluster-exit": Law(
        "PTX ISA, barrier.cluster; CUDA programming guide, distributed shared memory: a peer's memory is valid while it runs",
        "the value reading ends a CTA's memory only with its last agent",
    ),
    "sync/griddep-access-before-wait": Law("PTX ISA, griddepcontrol.wait", "there is no predecessor grid here"),
    "derive/data-dependent": Law(
        "Cake: counts and bytes are launch constants", "counts are taken from the launch at hand"
    ),
    "language/where-unsatisfied": Law("Cake: a binding satisfies `where`", "not run"),
    "schedule/grid-not-divisible": Law(
        "CUDA programming guide, clusters: the grid is a multiple of the cluster",
        "all launches of the judge happen to divide",
    ),
    "sync/named-left-open": Law(
        "PTX ISA, bar, barrier: a barrier is re-initialised by its completion alone",
        "every CTA of the value reading gets fresh barriers, so that a count left behind meets nobody",
    ),
}


@dataclass(frozen=True)
class EditLaw(Law):
    """A law for one kind of edit: the rules that it may be found by (any, if none is named), the kind and ops edited, words of the
    description."""

    rules: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    words: str = ""


EDIT_LAWS: dict[str, EditLaw] = {
    "bytes written twice": EditLaw(
        "PTX ISA, Memory consistency model, races: two unordered accesses of one location of which one writes, asynchronous "
        "copies included",
        "the second write brings the bytes that are there already, so that no order shows",
        rules=("data/cp-async-wait-count", "data/slot-reuse-without-wait", "data/write-into-flight",
               "data/overwritten-while-read", "data/unsynchronised-write", "data/unsynchronised-read", "data/lane-race",
               "data/released-before-read"),
        kinds=("duplicate", "predicate", "loop"),
        ops=("tma_load", "bulk_load", "cp_async", "store", "stmatrix", "if", "for"),
    ),
    "wait by one thread": EditLaw(
        "PTX ISA, mbarrier.try_wait: the executing thread waits and acquires, nobody else",
        "an agent of the value reading is a whole unit, and it waits as a whole",
        rules=("data/read-before-arrival", "data/write-into-flight", "data/slot-reuse-without-wait", "data/unsynchronised-read",
               "data/unsynchronised-write", "data/tcgen05-commit-missing"),
        kinds=("role",),
        ops=("wait",),
        words="by one thread",
    ),
    "a wider where": EditLaw(
        "Cake: an accepted program is right for every shape that its `where` admits",
        "the finding names a shape that the removed fact excluded; the judge's launches all keep the fact",
        kinds=("extent",),
        ops=("where",),
    ),
}  # fmt: skip


def law(rules: list[str], kind: str = "", op: str = "", what: str = "") -> str | None:
    """The rule (or the edit law) that explains a reject, or None. Only the rules of the findings are asked, in order."""
    found = next((r for r in rules if r in LAWS), None)
    if found is not None:
        return found
    for name, e in EDIT_LAWS.items():
        if rules and (not e.rules or set(rules) & set(e.rules)) and kind in e.kinds and op in e.ops and e.words in what:
            return name
    return None
