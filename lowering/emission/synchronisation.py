"""mbarriers, named barriers, rendezvous, proxy fences, dependent launch."""

from __future__ import annotations

from cake_ir.binding.scalars import const, sop
from cake_ir.bound import SX, BarUse, Op, SConst
from lowering.emission.context import Context
from lowering.emission.scalars import add, split_sum


def wait(c: Context, op: Op) -> None:
    """Completion number n: slot n mod stages, parity of phase n div stages. n < 0 passes."""
    bar: BarUse = op.operands["bar"]
    stages = bar.barrier.stages
    base, offset = split_sum(bar.use)
    ring = offset < 0 and base is not None and -offset % stages == 0 and c.facts.nonnegative(base)
    if c.cluster_scope and bar.barrier in c.peer_barriers:
        call = c.helpers.use("mbar_wait_cluster")
    else:
        call = c.helpers.use("mbar_wait" if c.has("mbarrier_try_wait") else "mbar_test_wait")
    guard = ""
    if ring and -offset == stages:
        # n - stages: the slot of n, the phase before. In a fresh barrier that phase counts as complete, so n < stages passes.
        assert base is not None
        number, parity = base, sop("^", c.parity(base, stages), const(1))
    else:
        number, parity = bar.use, c.parity(bar.use, stages)
        if not c.facts.nonnegative(bar.use):
            guard = f"if ({c.sx(bar.use)} >= 0) "
    address = c.barrier(bar, number)
    c.record(
        "wait",
        op,
        "bar",
        parity,
        number=bar.use,
        address=address,
        stages=stages,
        guarded=bool(guard),
        barrier=bar.barrier.name,
    )
    c.out.line(f"{guard}{call}({c.sx.top(address)}, {c.sx.top(parity)});")
    c.tcgen05_after()
    if c.has("mbarrier_try_wait"):
        c.promise("wait", "mbarrier.try_wait")


def _one_per_warp(c: Context) -> str:
    """A condition for one lane of each warp of the unit."""
    return f"if ({c.sx(c.thread('lane'))} == 0) "


def arrive(c: Context, op: Op) -> None:
    """Release. T: one; W: one after a warp sync; G and kernel level: one per warp."""
    bar: BarUse = op.operands["bar"]
    c.tcgen05_before()
    if c.unit in ("W", "G") or (c.unit == "K" and c.role is not None and c.role.unit != "thread"):
        c.out.line("__syncwarp();")
        guard = _one_per_warp(c)
    else:
        guard = ""
    address = c.sx.top(c.barrier(bar))
    if bar.rank is not None and c.kernel.launch.cluster > 1:
        c.out.line(
            f"{guard}{c.helpers.use('mbar_arrive_on_cluster' if c.cluster_scope else 'mbar_arrive_on')}({address}, {c.sx.top(bar.rank)});"
        )  # type: ignore[arg-type]
    else:
        name = "mbar_arrive" if c.has("mbarrier_try_wait") else "mbar_arrive_sm80"
        c.out.line(f"{guard}{c.helpers.use(name)}({address});")
    c.promise("arrive", "mbarrier.arrive")


def expect(c: Context, op: Op) -> None:
    """One arrival that announces the derived bytes."""
    count = c.derived.expect_bytes[op.site]
    c.out.line(f"{c.helpers.use('mbar_expect')}({c.sx.top(c.barrier(op.operands['bar']))}, {count});")
    c.promise("expect", "mbarrier.arrive")


def named_id(c: Context, bar: BarUse) -> tuple[SX, SX]:
    """(hardware barrier id, threads) of a named barrier. Ids of one declaration follow each other (`derive` deals them out in order);
    an index that is not static picks the thread count too, where the barriers differ in it."""
    found = [c.derived.named_id(("named", bar.barrier, i)) for i in range(bar.barrier.stages)]
    if isinstance(bar.use, SConst):
        ident, threads = found[int(bar.use.value) % len(found)]
        return const(ident), const(threads)
    slot = c.slot(bar.use, bar.barrier.stages)
    count: SX = const(found[0][1])
    for i, (_, threads) in enumerate(found):
        if threads != found[0][1]:
            count = sop("select", sop("==", slot, const(i), dtype="bool"), const(threads), count)
    return add(slot, found[0][0]), count


def named_arrive(c: Context, op: Op) -> None:
    """bar.arrive: counts in without waiting."""
    ident, threads = named_id(c, op.operands["bar"])
    if isinstance(ident, SConst):
        c.out.line(f"{c.helpers.use('bar_arrive')}<{ident.value}, {c.sx.top(threads)}>();")
    else:
        c.out.line(f"{c.helpers.use('bar_arrive_id')}({c.sx.top(ident)}, {c.sx.top(threads)});")
    c.promise("arrive", "bar.arrive")


def sync(c: Context, op: Op) -> None:
    """Rendezvous of the named scope."""
    scope = op.attrs["scope"]
    c.tcgen05_before()
    if scope == "warp":
        c.out.line("__syncwarp();")
    elif scope == "named":
        _bar_sync(c, *named_id(c, op.operands["bar"]))
    elif scope == "role":
        role = op.operands["role"]
        if role.unit == "warp" and role.count == 1:
            c.out.line("__syncwarp();")
        else:
            ident, threads = c.derived.named_id(("role", role.name))
            _bar_sync(c, const(ident), const(threads))
    elif scope == "warpgroup":
        role = c.role
        assert role is not None
        found = [c.derived.named_id(("warpgroup", role.name, i)) for i in range(role.count)]
        if any(f != (found[0][0] + i, found[0][1]) for i, f in enumerate(found)):
            raise c.unsupported("sync(warpgroup): the ids of the instances are not consecutive")
        _bar_sync(c, add(c.instance(), found[0][0]), const(found[0][1]))
    else:
        _wide(c, scope)
    c.tcgen05_after()


def _bar_sync(c: Context, ident: SX, threads: SX) -> None:
    if isinstance(ident, SConst):
        c.out.line(f"{c.helpers.use('bar_sync')}<{ident.value}, {c.sx.top(threads)}>();")
    else:
        c.out.line(f"{c.helpers.use('bar_sync_id')}({c.sx.top(ident)}, {c.sx.top(threads)});")
    c.promise("sync", "bar.sync")


def _wide(c: Context, scope: str) -> None:
    """CTA, cluster or grid. Inside a role's branch lanes of a warp may come from two places, so the forms are not `.aligned`."""
    inside = c.role is not None
    if scope == "cta":
        c.out.line(f"{c.helpers.use('cta_sync_any')}();" if inside else "__syncthreads();")
        c.promise("sync", "bar.sync")
    elif scope == "cluster":
        if c.kernel.launch.cluster == 1:
            c.out.line(f"{c.helpers.use('cta_sync_any')}();" if inside else "__syncthreads();")
            return
        c.out.line(f"{c.helpers.use('cluster_sync_any' if inside else 'cluster_sync')}();")
        c.promise("sync", "cluster.arrive")
    else:
        c.out.line(f"{c.helpers.use('grid_sync')}();")
        c.promise("sync", "bar.sync")


def fence_async(c: Context, op: Op) -> None:
    """Generic accesses before it are visible to the async proxy."""
    c.out.line(f"{c.helpers.use('fence_async_' + op.attrs['space'])}();")
    c.promise("fence_async", "fence.proxy.async")


def griddep_wait(c: Context, op: Op) -> None:
    """Waits for the predecessor grids."""
    c.out.line(f"{c.helpers.use('griddep_wait')}();")
    c.promise("griddep_wait", "griddepcontrol.wait")


def griddep_launch(c: Context, op: Op) -> None:
    """Lets dependent grids start."""
    c.out.line(f"{c.helpers.use('griddep_launch')}();")
    c.promise("griddep_launch", "griddepcontrol.launch_dependents")


EMITTERS = {
    "wait": wait, "arrive": arrive, "expect": expect, "named_arrive": named_arrive, "sync": sync, "fence_async": fence_async,
    "griddep_wait": griddep_wait, "griddep_launch": griddep_launch,
}  # fmt: skip
