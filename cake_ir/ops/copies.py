"""Data movement ops: TMA, bulk copies, cp.async, loads and stores, ldmatrix/stmatrix, tensor memory, atomics."""

from __future__ import annotations

from cake_ir.ops.decl import Access, OpDecl, Param, Sync

_CACHE = Param("cache", "name", required=False, keyword=True, choices=("evict_first", "evict_last", "no_allocate"))
_VIEW, _REGION = Param("view", "view"), Param("region", "region")
_REDUCE = Param("op", "name", keyword=True, choices=("add", "min", "max"))
_WHEN = Param("when", "mask", required=False, keyword=True)
_K = Param("k", "static")

OPS = [
    OpDecl(
        "tma_load", "T",
        (_VIEW, _REGION, Param("signal", "barrier", keyword=True), Param("multicast", "ranks", required=False, keyword=True), _CACHE),
        form="cp.async.bulk.tensor.Nd.shared::cluster.global.mbarrier::complete_tx::bytes",
        source="PTX ISA: cp.async.bulk.tensor",
        doc="Tensor copy global -> shared. One instruction per swizzle panel and per 256 rows. Completion: bytes on `signal` in each "
        "receiving CTA. Clips at the tensor's extents only (zero fill); clipped boxes count in full. `signal=bar[n].on(r)` on the "
        "sm_100 family signals the pair leader's barrier (.cta_group::2).",
        feature="tma", accesses=(Access("region", "read", "async", True), Access("view", "write", "async", True)), completion="mbarrier",
        examples=("tma_load(a_s[n], a[row:, k * BK:], signal=full[n])",),
    ),
    OpDecl(
        "tma_store", "T", (_REGION, _VIEW),
        form="cp.async.bulk.tensor.Nd.global.shared::cta.bulk_group", source="PTX ISA: cp.async.bulk.tensor",
        doc="Tensor copy shared -> global, clipped at the extents. Completion: the issuing thread's bulk group.",
        feature="tma", accesses=(Access("view", "read", "async", True), Access("region", "write", "async", True)),
        completion="group:bulk", examples=("tma_store(d[row:, col:], d_s[e])",),
    ),
    OpDecl(
        "tma_reduce", "T", (_REGION, _VIEW, _REDUCE),
        form="cp.reduce.async.bulk.tensor.Nd.global.shared::cta.OP.bulk_group", source="PTX ISA: cp.reduce.async.bulk.tensor",
        doc="Tensor reduction shared -> global (element-wise OP at L2).",
        feature="tma_reduce", accesses=(Access("view", "read", "async", True), Access("region", "update", "async", True)),
        completion="group:bulk",
    ),
    OpDecl(
        "bulk_load", "TWG", (_VIEW, _REGION, Param("signal", "barrier", keyword=True)),
        form="cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", source="PTX ISA: cp.async.bulk",
        doc="Row-wise bulk copy, each row contiguous and a multiple of 16 bytes. No clipping.",
        feature="bulk_copy", accesses=(Access("region", "read", "async", True), Access("view", "write", "async", True)), completion="mbarrier",
    ),
    OpDecl(
        "bulk_store", "TWG", (_REGION, _VIEW), form="cp.async.bulk.global.shared::cta.bulk_group", source="PTX ISA: cp.async.bulk",
        doc="Row-wise bulk copy shared -> global. No clipping.",
        feature="bulk_copy", accesses=(Access("view", "read", "async", True), Access("region", "write", "async", True)), completion="group:bulk",
    ),
    OpDecl(
        "bulk_reduce", "TWG", (_REGION, _VIEW, _REDUCE, _WHEN),
        form="cp.reduce.async.bulk.global.shared::cta.bulk_group.OP", source="PTX ISA: cp.reduce.async.bulk",
        doc="Row-wise bulk reduction into global memory. With an index vector row r goes to its row, issued by the thread that "
        "holds the index (bf16/f16: add.noftz).",
        feature="bulk_copy", accesses=(Access("view", "read", "async", True), Access("region", "update", "async", True)), completion="group:bulk",
    ),
    OpDecl(
        "bulk_commit", "TWG", (), form="cp.async.bulk.commit_group", source="PTX ISA: cp.async.bulk.commit_group",
        doc="Closes the issuing thread's bulk group.", feature="bulk_copy", syncs=(Sync("commit", group="bulk"),),
    ),
    OpDecl(
        "bulk_wait_read", "TWG", (_K,), form="cp.async.bulk.wait_group.read", source="PTX ISA: cp.async.bulk.wait_group",
        doc="At most k younger bulk groups of this thread still read their sources.",
        feature="bulk_copy", syncs=(Sync("wait_group", group="bulk", read_only=True),), completion="blocks",
    ),
    OpDecl(
        "bulk_wait", "TWG", (_K,), form="cp.async.bulk.wait_group", source="PTX ISA: cp.async.bulk.wait_group",
        doc="At most k younger bulk groups of this thread are pending; the writes of the others are visible.",
        feature="bulk_copy", syncs=(Sync("wait_group", group="bulk"),), completion="blocks",
    ),
    OpDecl(
        "cp_async", "WG", (_VIEW, _REGION), form="cp.async.cg.shared.global 16 (.ca for 4 and 8)", source="PTX ISA: cp.async",
        doc="Non-bulk asynchronous copy, spread over the unit's threads; what lies outside is zero-filled (src-size). Generic proxy.",
        feature="cp_async", accesses=(Access("region", "read", "generic", True), Access("view", "write", "generic", True)), completion="group:cp_async",
    ),
    OpDecl(
        "cp_async_commit", "WG", (), form="cp.async.commit_group", source="PTX ISA: cp.async.commit_group",
        doc="Closes each thread's cp.async group.", feature="cp_async", syncs=(Sync("commit", group="cp_async"),),
    ),
    OpDecl(
        "cp_async_wait", "WG", (_K,), form="cp.async.wait_group", source="PTX ISA: cp.async.wait_group",
        doc="At most k groups of each thread pending; other threads need a sync as well.",
        feature="cp_async", syncs=(Sync("wait_group", group="cp_async"),), completion="blocks",
    ),
    OpDecl(
        "cp_async_arrive", "WG", (Param("bar", "barrier"),), form="cp.async.mbarrier.arrive.noinc", source="PTX ISA: cp.async.mbarrier.arrive",
        doc="One arrival per thread when its earlier cp.async copies are done.",
        feature="cp_async", syncs=(Sync("arrive", "bar", group="cp_async"),),
    ),
    OpDecl(
        "load", "WG", (Param("src", "memory"), Param("layout", "layout"), Param("fill", "scalar", required=False, keyword=True), _CACHE),
        form="ld.global(.nc) / ld.shared", source="PTX ISA: ld",
        doc="Loads a tile or vector into registers; `fill` (default 0) where the region does not exist. The value is a completed load.",
        accesses=(Access("src", "read", "generic"),), examples=("load(x[row:, :], vec(8)[ROWS, D])",),
    ),
    OpDecl(
        "load_scalar", "TWGK", (Param("src", "memory"),), form="ld", source="PTX ISA: ld",
        doc="`load(x[i])`: one element, the same address for all lanes.", accesses=(Access("src", "read", "generic"),),
    ),
    OpDecl(
        "store", "WG", (Param("dst", "memory"), Param("x", "value"), _WHEN, _CACHE), form="st.global / st.shared(::cluster)", source="PTX ISA: st",
        doc="Stores a tile or vector; elements outside the region are skipped. A replicated vector is stored once.",
        accesses=(Access("dst", "write", "generic"),),
    ),
    OpDecl(
        "store_scalar", "TWG", (Param("dst", "memory"), Param("x", "scalar")), form="st", source="PTX ISA: st",
        doc="`store(x[i], s)`: one element by one thread.", accesses=(Access("dst", "write", "generic"),),
    ),
    OpDecl(
        "ldmatrix", "WG", (_VIEW, Param("layout", "layout")), form="ldmatrix.sync.aligned.m8n8.x1/x2/x4(.trans).shared.b16",
        source="PTX ISA: ldmatrix", doc="8x8 matrices of 16-bit elements from shared memory; a `.T` view uses .trans.",
        feature="ldmatrix", accesses=(Access("view", "read", "generic"),),
    ),
    OpDecl(
        "stmatrix", "WG", (_VIEW, Param("x", "value")), form="stmatrix.sync.aligned.m8n8.x1/x2/x4(.trans).shared.b16",
        source="PTX ISA: stmatrix", doc="8x8 matrices of 16-bit elements to shared memory; a `.T` view uses .trans.",
        feature="stmatrix", accesses=(Access("view", "write", "generic"),),
    ),
    OpDecl(
        "tmem_load", "G", (_VIEW, Param("layout", "layout")), form="tcgen05.ld.sync.aligned.32x32b.xN.b32", source="PTX ISA: tcgen05.ld",
        doc="Tensor memory -> registers; the values are pending until tmem_load_wait.",
        feature="tcgen05", accesses=(Access("view", "read", "tensor", True),), completion="group:tmem_load",
    ),
    OpDecl(
        "tmem_load_wait", "G", (), form="tcgen05.wait::ld.sync.aligned", source="PTX ISA: tcgen05.wait",
        doc="All earlier tmem_loads of the warps are complete.", feature="tcgen05", syncs=(Sync("wait_group", group="tmem_load"),), completion="blocks",
    ),
    OpDecl(
        "tmem_store", "G", (_VIEW, Param("x", "value")), form="tcgen05.st.sync.aligned.32x32b.xN.b32", source="PTX ISA: tcgen05.st",
        doc="Registers -> tensor memory; pending until tmem_store_wait.",
        feature="tcgen05", accesses=(Access("view", "write", "tensor", True),), completion="group:tmem_store",
    ),
    OpDecl(
        "tmem_store_wait", "G", (), form="tcgen05.wait::st.sync.aligned", source="PTX ISA: tcgen05.wait",
        doc="All earlier tmem_stores of the warps are complete.", feature="tcgen05", syncs=(Sync("wait_group", group="tmem_store"),), completion="blocks",
    ),
    *(
        OpDecl(
            f"atomic_{op}", "TWG", (_REGION, Param("x", "value"), _WHEN), form=f"red.global.{op}", source="PTX ISA: red",
            doc=f"Relaxed GPU-scope reduction into global memory ({op}).", accesses=(Access("region", "update", "generic"),),
        )
        for op in ("add", "min", "max")
    ),
]
