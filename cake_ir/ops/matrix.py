"""Matrix products: acc += a @ b.T with a (M, K) and b (N, K); init=True overwrites. A `.T` view is the MN-major operand."""

from __future__ import annotations

from cake_ir.ops.decl import Access, OpDecl, Param, Sync

_INIT = Param("init", "cond", required=False, keyword=True, default=False)

OPS = [
    OpDecl(
        "wgmma",
        "G",
        (Param("acc", "frag"), Param("a", "frag_or_view"), Param("b", "view"), _INIT),
        form="wgmma.mma_async.sync.aligned.m64nNk32B",
        source="PTX ISA: wgmma.mma_async",
        doc="Warpgroup product over the whole K of its operands, asynchronous: the accumulator and a register A are pending, shared "
        "operands are being read, until wgmma_wait.",
        feature="wgmma",
        accesses=(
            Access("a", "read", "async", True),
            Access("b", "read", "async", True),
            Access("acc", "update", "register", True),
        ),
        completion="group:wgmma",
        examples=("wgmma(acc, a_s[n].rows(64 * wg, 64), b_s[n], init=k == 0)",),
    ),
    OpDecl(
        "wgmma_commit",
        "G",
        (),
        form="wgmma.commit_group.sync.aligned",
        source="PTX ISA: wgmma.commit_group",
        doc="Closes the warpgroup's wgmma group.",
        feature="wgmma",
        syncs=(Sync("commit", group="wgmma"),),
    ),
    OpDecl(
        "wgmma_wait",
        "G",
        (Param("k", "static"),),
        form="wgmma.wait_group.sync.aligned",
        source="PTX ISA: wgmma.wait_group",
        doc="At most k wgmma groups of the warpgroup are pending.",
        feature="wgmma",
        syncs=(Sync("wait_group", group="wgmma"),),
        completion="blocks",
    ),
    OpDecl(
        "mma",
        "W",
        (Param("acc", "frag"), Param("a", "value"), Param("b", "value")),
        form="mma.sync.aligned.m16n8kK.row.col",
        source="PTX ISA: mma.sync",
        doc="Warp product, synchronous: acc mma_d, a mma_a, b mma_b; the dtypes select k16 (16 bit), k32 (8 bit), k8 (tf32).",
        feature="mma_sync",
        accesses=(Access("acc", "update", "register"),),
        examples=("mma(acc, fa, fb)",),
    ),
    OpDecl(
        "tcgen05_mma",
        "T",
        (
            Param("acc", "view"),
            Param("a", "view"),
            Param("b", "view"),
            _INIT,
            Param("cta_group", "static", required=False, keyword=True, default=1),
        ),
        form="tcgen05.mma.cta_group::G.kind::K",
        source="PTX ISA: tcgen05.mma",
        doc="Product into tensor memory by one thread. With cta_group=2 the issuing leader reads the a rows and b rows of both CTAs of "
        "the pair at the same place, and writes both CTAs' accumulators.",
        feature="tcgen05",
        accesses=(
            Access("a", "read", "async", True),
            Access("b", "read", "async", True),
            Access("acc", "update", "tensor", True),
        ),
        completion="group:tcgen05",
        collective=False,
    ),
    OpDecl(
        "tcgen05_commit",
        "T",
        (Param("bar", "barrier"), Param("multicast", "ranks", required=False, keyword=True)),
        form="tcgen05.commit.mbarrier::arrive::one",
        source="PTX ISA: tcgen05.commit",
        doc="One arrival (in each receiving CTA) when all earlier tcgen05 ops of the thread are done.",
        feature="tcgen05",
        syncs=(Sync("tcommit", "bar", group="tcgen05"),),
        collective=False,
    ),
]
