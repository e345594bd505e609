"""Which instruction families each target has, each with a one-instruction probe for the assembler.

A probe is the inside of a PTX block. `%a` and friends are declared in the block, so a probe stands alone; it is only
ever assembled, never run. The tests assemble every probe for every target and compare with `targets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cake_ir.targets._feature import Feature

ALL = frozenset({"sm_80", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a"})
FROM_89 = ALL - {"sm_80"}
FROM_90 = FROM_89 - {"sm_89"}
BLACKWELL = FROM_90 - {"sm_90a"}
TCGEN = frozenset({"sm_100a", "sm_103a"})
HOPPER = frozenset({"sm_90a"})
RTX = frozenset({"sm_120a"})

_R32 = ".reg .b32 a, b, c, d, e, f, g, h; mov.b32 a, 0; mov.b32 b, 0; mov.b32 c, 0; mov.b32 d, 0; mov.b32 e, 0; mov.b32 f, 0; "
_R64 = ".reg .b64 x, y; mov.b64 x, 0; mov.b64 y, 0; "
_P = ".reg .pred p; setp.ne.b32 p, a, 0; "
_R = _R32 + _R64 + _P
_F = ".reg .f32 s, t, u, v; mov.f32 s, 0f00000000; mov.f32 t, s; mov.f32 u, s; mov.f32 v, s; "

_TABLE = (
    ("cp_async", "asynchronous copy global to shared", "PTX ISA, 'cp.async'", ALL, "cp.async.cg.shared.global [a], [x], 16;"),
    ("mbarrier", "arrival barriers in shared memory", "PTX ISA, 'mbarrier.init'", ALL, "mbarrier.init.shared.b64 [a], 1;"),
    ("ldmatrix", "load 8x8 matrices of 16-bit elements", "PTX ISA, 'ldmatrix'", ALL, "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {b, c, d, e}, [a];"),
    ("movmatrix", "transpose an 8x8 matrix across a warp", "PTX ISA, 'movmatrix'", ALL, "movmatrix.sync.aligned.m8n8.trans.b16 b, a;"),
    ("redux", "warp-wide integer reduction", "PTX ISA, 'redux.sync'", ALL, "redux.sync.add.s32 b, a, 0xffffffff;"),
    ("mma_sync", "warp matrix multiply, bf16", "PTX ISA, 'mma'", ALL,
     _F + "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {s, t, u, v}, {a, b, c, d}, {e, f}, {s, t, u, v};"),
    ("mma_sync_fp8", "warp matrix multiply, e4m3 and e5m2", "PTX ISA, 'mma'", FROM_89,
     _F + "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {s, t, u, v}, {a, b, c, d}, {e, f}, {s, t, u, v};"),
    ("cvt_fp8", "conversion between f32 and 8-bit floats", "PTX ISA, 'cvt'", FROM_89,
     _F + ".reg .b16 z; cvt.rn.satfinite.e4m3x2.f32 z, s, t;"),
    ("mbarrier_try_wait", "suspending mbarrier wait", "PTX ISA, 'mbarrier.try_wait'", FROM_90,
     "mbarrier.try_wait.parity.shared::cta.b64 p, [a], b;"),
    ("mbarrier_tx", "transaction bytes on mbarriers", "PTX ISA, 'mbarrier.expect_tx'", FROM_90,
     "mbarrier.arrive.expect_tx.shared::cta.b64 _, [a], b;"),
    ("tma", "tensor copies through a tensor map", "PTX ISA, 'cp.async.bulk.tensor'", FROM_90,
     "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [a], [x, {b, c}], [d];"),
    ("tma_multicast", "one tensor copy to several blocks of a cluster", "PTX ISA, 'cp.async.bulk.tensor'", FROM_90,
     ".reg .b16 z; mov.b16 z, 3; cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
     ".multicast::cluster [a], [x, {b, c}], [d], z;"),
    ("tma_reduce", "tensor copy shared to global with reduction", "PTX ISA, 'cp.reduce.async.bulk.tensor'", FROM_90,
     "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [x, {b, c}], [a];"),
    ("tma_gather4", "tensor copy of four chosen rows", "PTX ISA, 'cp.async.bulk.tensor': tile::gather4", TCGEN,
     "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes [a], [x, {b, c, d, e, f}], [d];"),
    ("tma_cta_group2", "tensor copy that may signal the barrier of the pair's leader", "PTX ISA, 'cp.async.bulk.tensor': .cta_group", TCGEN,
     "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes [a], [x, {b, c}], [d];"),
    ("bulk_copy", "one-dimensional bulk copy", "PTX ISA, 'cp.async.bulk'", FROM_90,
     "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [a], [x], 16, [b];"),
    ("fence_proxy_async", "orders generic accesses before the async proxy", "PTX ISA, 'membar, fence'", FROM_90,
     "fence.proxy.async.shared::cta;"),
    ("fence_mbarrier_init", "makes barrier initialisation visible to the cluster", "PTX ISA, 'membar, fence'", FROM_90,
     "fence.mbarrier_init.release.cluster;"),
    ("cluster", "clusters of blocks and their barrier", "PTX ISA, 'barrier.cluster'", FROM_90,
     "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"),
    ("mapa", "addresses in another block's shared memory", "PTX ISA, 'mapa'", FROM_90, "mapa.shared::cluster.u32 b, a, 1;"),
    ("st_async", "asynchronous remote store that signals a barrier", "PTX ISA, 'st.async'", FROM_90,
     "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [a], b, [c];"),
    ("elect", "one thread of a warp is chosen", "PTX ISA, 'elect.sync'", FROM_90, "elect.sync _|p, 0xffffffff;"),
    ("griddepcontrol", "dependent launch", "PTX ISA, 'griddepcontrol'", FROM_90, "griddepcontrol.wait;"),
    ("stmatrix", "store 8x8 matrices of 16-bit elements", "PTX ISA, 'stmatrix'", FROM_90,
     "mov.u32 a, %laneid; shl.b32 a, a, 4; stmatrix.sync.aligned.m8n8.x4.shared.b16 [a], {b, c, d, e};"),
    ("setmaxnreg", "register reallocation between warpgroups", "PTX ISA, 'setmaxnreg'", FROM_90,
     "setmaxnreg.dec.sync.aligned.u32 40;"),
    ("wgmma", "asynchronous warpgroup matrix multiply", "PTX ISA, 'wgmma.mma_async'", HOPPER,
     _F + "wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {s, t, u, v}, x, y, 1, 1, 1, 0, 0;"
     " wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"),
    ("clc", "cluster launch control (work stealing)", "PTX ISA, 'clusterlaunchcontrol.try_cancel'", BLACKWELL,
     "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [a], [b];"),
    ("tmem", "tensor memory", "PTX ISA, 'tcgen05.alloc'", TCGEN,
     "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [a], 32;"),
    ("tcgen05", "fifth-generation tensor core matrix multiply", "PTX ISA, 'tcgen05.mma'", TCGEN,
     "tcgen05.mma.cta_group::1.kind::f16 [a], x, y, b, p;"),
    ("red_vec", "f32 sums in global memory, two or four neighbours at once", "PTX ISA, 'red': .vec_32_bit", FROM_90,
     _F + "mov.u64 x, %clock64; red.relaxed.gpu.global.add.v4.f32 [x], {s, t, u, v};"),
    ("red_bf16", "bf16 sums in global memory", "PTX ISA, 'red'", FROM_90,
     ".reg .b16 z; mov.b16 z, 0; mov.u64 x, %clock64; red.relaxed.gpu.global.add.noftz.bf16 [x], z;"),
    ("tcgen05_i8", "tcgen05.mma with 8-bit integers", "PTX ISA, 'tcgen05.mma': kind::i8", frozenset({"sm_100a"}),
     "tcgen05.mma.cta_group::1.kind::i8 [a], x, y, b, p;"),
    ("tcgen05_block_scale", "tcgen05.mma with block scale factors", "PTX ISA, 'tcgen05.mma': block_scale", TCGEN,
     "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [a], x, y, b, [c], [d], p;"),
    ("ldmatrix_b8", "load 16x16 matrices of 8-bit elements", "PTX ISA, 'ldmatrix': m16n16", BLACKWELL,
     "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {b, c}, [a];"),
    ("stmatrix_b8", "store 16x8 matrices of 8-bit elements", "PTX ISA, 'stmatrix': m16n8", BLACKWELL,
     "mov.u32 a, %laneid; shl.b32 a, a, 4; stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [a], {b};"),
    ("mma_f8f6f4", "warp matrix multiply with 4- and 6-bit floats", "PTX ISA, 'mma': kind::f8f6f4", RTX,
     _F + "mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.e2m3.e2m1.f32 {s, t, u, v}, {a, b, c, d}, {e, f}, {s, t, u, v};"),
    ("mma_mxf8f6f4", "block-scaled warp matrix multiply, 8-bit and below", "PTX ISA, 'mma': Block Scaling", RTX,
     _F + "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0"
     " {s, t, u, v}, {a, b, c, d}, {e, f}, {s, t, u, v}, a, {0, 0}, b, {0, 0};"),
    ("mma_mxf4", "block-scaled warp matrix multiply, e2m1 with e8m0 scales", "PTX ISA, 'mma': Block Scaling", RTX,
     _F + "mma.sync.aligned.kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0"
     " {s, t, u, v}, {a, b, c, d}, {e, f}, {s, t, u, v}, a, {0, 0}, b, {0, 0};"),
    ("mma_mxf4nvf4", "block-scaled warp matrix multiply, e2m1 with e4m3 scales", "PTX ISA, 'mma': Block Scaling", RTX,
     _F + "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3"
     " {s, t, u, v}, {a, b, c, d}, {e, f}, {s, t, u, v}, a, {0, 0}, b, {0, 0};"),
    ("redux_f32", "warp-wide float minimum and maximum", "PTX ISA, 'redux.sync': f32", TCGEN,
     _F + "redux.sync.max.f32 t, s, 0xffffffff;"),
    ("min3", "three-operand float minimum and maximum", "PTX ISA, 'min, max': three inputs", BLACKWELL, _F + "max.f32 s, t, u, v;"),
    ("fma_f32x2", "packed pair of f32 multiply-adds", "PTX ISA, 'fma': f32x2", BLACKWELL, "fma.rn.f32x2 x, x, y, x;"),
)  # fmt: skip

_NOTES = {
    "tma_multicast": "sm_120a assembles it but does not accelerate it",
    "mbarrier_tx": "bytes per phase are limited by mbarrier_tx_max",
    "cp_async": "16 bytes for .cg, 4, 8 or 16 for .ca",
}

FEATURES: Mapping[str, Feature] = MappingProxyType(
    {
        name: Feature(name, meaning, source, where, _R + probe, _NOTES.get(name, ""))
        for name, meaning, source, where, probe in _TABLE
    }
)
