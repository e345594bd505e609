"""Value semantics of the synchronisation ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from analyses.value.barriers import Meeting, WaitPhase, WaitRound
from analyses.value.exprs import scalar
from analyses.value.machine import Agent, Cta
from cake_ir.bound import BarUse, Op

Compiled = tuple[bool, Callable[[Agent], Any]]


def target(use: BarUse) -> Callable[[Agent], Cta]:
    """The CTA whose barrier a use names."""
    if use.rank is None:
        return lambda ag: ag.cta
    rank = scalar(use.rank)
    return lambda ag: peer(ag, rank(ag.env))


def peer(ag: Agent, rank: int) -> Cta:
    """CTA `rank` of the agent's cluster; a fault outside it."""
    if not 0 <= rank < len(ag.cta.peers):
        raise ag.fault("bounds", f"rank {rank} lies outside the cluster of {len(ag.cta.peers)}")
    return ag.cta.peers[rank]


def receivers(multicast: Any, own: Callable[[Agent], Cta]) -> Callable[[Agent], list[Cta]]:
    """CTAs that receive: the cluster, the listed ranks, or one."""
    if multicast is None:
        return lambda ag: [own(ag)]
    if multicast == "cluster":
        return lambda ag: ag.cta.peers
    ranks = [scalar(x) for x in multicast]
    return lambda ag: [peer(ag, r(ag.env)) for r in ranks]


def _wait(c: Any, op: Op) -> Compiled:
    bar: BarUse = op.operands["bar"]
    use, barrier = scalar(bar.use), bar.barrier
    together = op.unit != "T"

    def wait(ag: Agent) -> Iterator[Any]:
        n = use(ag.env)
        if n >= 0:
            yield WaitPhase(ag.cta.rings[barrier], n, op.span, ag.name)
            if together:
                ag.synced()  # lenient: every thread of the unit has passed a barrier that others of it may have fed

    return True, wait


def _arrive(c: Any, op: Op) -> Compiled:
    bar: BarUse = op.operands["bar"]
    use, barrier, where = scalar(bar.use), bar.barrier, target(bar)
    together = op.unit != "T"
    fixed = {"T": 1, "W": 1, "G": 4, "K": 4 if c.role.unit == "warpgroup" else 1}[op.unit]

    def arrive(ag: Agent) -> None:
        if together:
            # a warp syncs before its arrival; for a warpgroup this is lenient
            ag.warp_synced() if ag.warp is not None else ag.synced()
        there = where(ag)
        if there is not ag.cta:
            there.must_live(f"an arrival for {barrier.name} comes", op.span, ag.name)
        there.rings[barrier].arrive(use(ag.env), fixed, op.span, ag.name)

    return False, arrive


def _expect(c: Any, op: Op) -> Compiled:
    bar: BarUse = op.operands["bar"]
    use, barrier = scalar(bar.use), bar.barrier

    def expect(ag: Agent) -> None:
        n = use(ag.env)
        nbytes = ag.cta.counts.bytes.get((ag.cta.rank, barrier, n, ag.role.name), 0)
        if not nbytes:
            raise ag.fault(
                "tx", f"expect({barrier.name}[{n}]) announces nothing: no copy of role {ag.role.name} signals this use"
            )
        derived = ag.machine.derived.expect_bytes.get(op.site, nbytes)
        if derived != nbytes and ag.machine.derived.ok:
            raise ag.fault("derived", f"expect({barrier.name}[{n}]): derived {derived} bytes, this use gets {nbytes}")
        if barrier.bytes is not None and barrier.bytes != nbytes:
            raise ag.fault("tx", f"{barrier.name} asserts {barrier.bytes} bytes, but its copies deliver {nbytes}")
        ag.cta.rings[barrier].arrive(n, 1, op.span, ag.name, tx=nbytes)

    return False, expect


def _named(ag: Agent, barrier: Any, number: int) -> Meeting:
    who = ag.cta.counts.named.get((ag.cta.rank, barrier, number), {})
    return ag.cta.meeting((barrier, number), f"{barrier.name}[{number}]", sum(who.values()))


def _check_number(ag: Agent, barrier: Any, n: int) -> None:
    if not 0 <= n < barrier.stages:
        raise ag.fault("bounds", f"{barrier.name}[{n}]: there are {barrier.stages} named barriers")


def _named_arrive(c: Any, op: Op) -> Compiled:
    bar: BarUse = op.operands["bar"]
    use, barrier = scalar(bar.use), bar.barrier

    def arrive(ag: Agent) -> None:
        n = use(ag.env)
        _check_number(ag, barrier, n)
        # every thread arrives after its own writes, and the barrier completes when all have
        ag.warp_synced() if ag.warp is not None else ag.synced()
        _named(ag, barrier, n).enter(ag, ag.weight, op.span, ag.name)

    return False, arrive


def _synced_warp(ag: Agent) -> None:
    """The lanes of a warp agent see each other's writes; a warpgroup agent's warps do not see each other's."""
    if ag.warp is not None:
        ag.warp_synced()
    elif ag.weight == 1:
        ag.synced()
        ag.waited_alone.clear()


def _sync(c: Any, op: Op) -> Compiled:
    scope = op.attrs["scope"]
    bound = c.bound
    if scope == "warp":
        return False, _synced_warp
    if scope == "named":
        bar: BarUse = op.operands["bar"]
        use, barrier = scalar(bar.use), bar.barrier

        def named(ag: Agent) -> Iterator[Any]:
            ag.synced()
            ag.waited_alone.clear()
            n = use(ag.env)
            _check_number(ag, barrier, n)
            m = _named(ag, barrier, n)
            yield WaitRound(m, m.enter(ag, ag.weight, op.span, ag.name))

        return True, named
    threads = bound.threads // 32
    role = op.operands.get("role")

    def meet(ag: Agent) -> Iterator[Any]:
        ag.synced()
        ag.waited_alone.clear()
        if scope == "warpgroup":
            if ag.warp is None:
                return
            m = ag.cta.meeting(("warpgroup", ag.role, ag.index), f"sync(warpgroup) of {ag.role.name}[{ag.index}]", 4)
        elif scope == "role":
            assert role is not None
            m = ag.cta.meeting(("role", role), f"sync({role.name})", role.warps)
        elif scope == "cta":
            m = ag.cta.meeting("cta", "sync(cta)", threads)
        elif scope == "cluster":
            m = ag.cta.peers[0].meeting("cluster", "sync(cluster)", threads * len(ag.cta.peers))
        else:
            grid = ag.machine.grid_meetings
            m = grid.setdefault("grid", Meeting("sync(grid)", threads * ag.machine.grid))
        yield WaitRound(m, m.enter(ag, ag.weight, op.span, ag.name))

    return True, meet


def _fence(c: Any, op: Op) -> Compiled:
    if op.attrs.get("space", "shared") == "global":
        return (
            False,
            lambda ag: None,
        )  # global accesses are not split by proxy here; the order reading checks this fence

    thread = op.unit == "T"  # a single thread's fence covers what that thread touched, not its unit

    def fence(ag: Agent) -> None:
        if not thread:  # every thread fences its own; the others know only once they meet
            ag.fenced += ag.unfenced
            ag.unfenced = []
            return
        for t in ag.unfenced:
            if t.unit == "T":
                t.clear()
        ag.unfenced = [t for t in ag.unfenced if t.unit != "T"]

    return False, fence


HANDLERS = {
    "wait": _wait,
    "arrive": _arrive,
    "expect": _expect,
    "named_arrive": _named_arrive,
    "sync": _sync,
    "fence_async": _fence,
}
