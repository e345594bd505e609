"""Synchronisation ops. Slots, parities, counts, bytes and ids are derived; the ops themselves are always written."""

from __future__ import annotations

from cake_ir.ops.decl import OpDecl, Param, Sync

_BAR = Param("bar", "barrier")

OPS = [
    OpDecl(
        "wait",
        "TWGK",
        (_BAR,),
        form="mbarrier.try_wait.parity",
        source="PTX ISA: mbarrier.test_wait/try_wait",
        doc="Blocks until completion number n of the own CTA's barrier; n < 0 never waits. Acquire.",
        feature="mbarrier",
        syncs=(Sync("wait", "bar"),),
        completion="blocks",
    ),
    OpDecl(
        "arrive",
        "TWGK",
        (_BAR,),
        form="mbarrier.arrive.release",
        source="PTX ISA: mbarrier.arrive",
        doc="Release. Thread: one arrival; warp: one after a warp sync; warpgroup and kernel level: one per warp. `.on(r)` arrives in "
        "CTA r of the cluster.",
        feature="mbarrier",
        syncs=(Sync("arrive", "bar"),),
    ),
    OpDecl(
        "expect",
        "T",
        (_BAR,),
        form="mbarrier.arrive.expect_tx",
        source="PTX ISA: mbarrier.arrive.expect_tx",
        doc="One arrival that announces the bytes of this use (derived); own CTA, once per role and use.",
        feature="mbarrier_try_wait",
        syncs=(Sync("expect", "bar"),),
    ),
    OpDecl(
        "named_arrive",
        "WG",
        (_BAR,),
        form="bar.arrive id, threads",
        source="PTX ISA: bar",
        doc="`arrive(nb[i])`: counts this unit into the round of a named barrier, does not wait.",
        syncs=(Sync("named_arrive", "bar"),),
    ),
    OpDecl(
        "sync",
        "TWGK",
        (Param("scope", "scope"),),
        form="bar.sync / bar.warp.sync / barrier.cluster / grid barrier",
        source="PTX ISA: bar, bar.warp.sync, barrier.cluster",
        doc="Rendezvous and memory ordering: sync(warp), sync(warpgroup), sync(ROLE), sync(nb[i]); at kernel level sync(cta), "
        "sync(cluster), sync(grid).",
        syncs=(Sync("rendezvous", "scope"),),
        completion="blocks",
    ),
    OpDecl(
        "fence_async",
        "TWG",
        (Param("space", "name", required=False, keyword=True, default="shared", choices=("shared", "gmem")),),
        form="fence.proxy.async.shared::cta / .global",
        source="PTX ISA: membar/fence, Proxies",
        doc="Makes this unit's earlier generic accesses of the space visible to the async proxy; `gmem` is global memory.",
        feature="fence_proxy_async",
        syncs=(Sync("fence"),),
    ),
    OpDecl(
        "griddep_wait",
        "TWGK",
        (),
        form="griddepcontrol.wait",
        source="PTX ISA: griddepcontrol",
        doc="Predecessor grids are complete and visible.",
        feature="griddepcontrol",
        syncs=(Sync("griddep_wait"),),
        completion="blocks",
    ),
    OpDecl(
        "griddep_launch",
        "TWGK",
        (),
        form="griddepcontrol.launch_dependents",
        source="PTX ISA: griddepcontrol",
        doc="Dependent grids may start (a hint).",
        feature="griddepcontrol",
        syncs=(Sync("griddep_launch"),),
    ),
]
