"""One statement of a program as the simulation sees it: what executing it once asks of the machine, and what it does to time.

`code_of` turns an op or an elementwise statement, in the role that executes it, into a `Code`; amounts come from `analyses.cost.work`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from analyses.cost.machine import SCHEDULERS, Machine
from analyses.cost.work import PIPES, Count, Folded, Work, lanes_sharing, let_work, op_work, pieces
from cake_ir import bound as B
from cake_ir.layouts import placement


class Kind:
    """How the simulation treats an event."""

    EXEC = 0  # instructions of the unit
    LOCAL = 1  # instructions, then a fixed delay
    LOAD = 2  # global memory to registers
    STORE = 3  # registers to global memory
    COPY_IN = 4  # bulk copy that signals a barrier
    COPY_OUT = 5  # bulk copy of a bulk group
    WGMMA = 6
    WGMMA_COMMIT = 7
    WGMMA_WAIT = 8
    WAIT = 9
    ARRIVE = 10
    SYNC = 11  # named barriers, rendezvous of roles, CTAs, clusters
    BULK_COMMIT = 12
    BULK_WAIT = 13
    CP_ASYNC = 14
    CP_COMMIT = 15
    CP_WAIT = 16
    CP_ARRIVE = 17
    MMA = 18
    TC_MMA = 19  # tcgen05
    TC_COMMIT = 20
    SEND = 21  # store_async to another CTA
    SHARED = 22  # shared memory to registers


_KINDS = {
    "tma_load": Kind.COPY_IN, "bulk_load": Kind.COPY_IN, "tma_store": Kind.COPY_OUT, "bulk_store": Kind.COPY_OUT,
    "tma_reduce": Kind.COPY_OUT, "bulk_reduce": Kind.COPY_OUT, "wgmma": Kind.WGMMA, "wgmma_commit": Kind.WGMMA_COMMIT,
    "wgmma_wait": Kind.WGMMA_WAIT, "wait": Kind.WAIT, "arrive": Kind.ARRIVE, "expect": Kind.ARRIVE, "sync": Kind.SYNC,
    "named_arrive": Kind.SYNC, "bulk_commit": Kind.BULK_COMMIT, "bulk_wait": Kind.BULK_WAIT, "bulk_wait_read": Kind.BULK_WAIT,
    "cp_async": Kind.CP_ASYNC, "cp_async_commit": Kind.CP_COMMIT, "cp_async_wait": Kind.CP_WAIT, "cp_async_arrive": Kind.CP_ARRIVE,
    "mma": Kind.MMA, "tcgen05_mma": Kind.TC_MMA, "tcgen05_commit": Kind.TC_COMMIT, "store_async": Kind.SEND,
    "fence_async": Kind.LOCAL, "ldmatrix": Kind.SHARED,
}  # fmt: skip
ARRIVING = frozenset((Kind.ARRIVE, Kind.COPY_IN, Kind.SYNC, Kind.CP_ARRIVE, Kind.TC_COMMIT, Kind.SEND))
SHUFFLE_CLK = 29.0
"""Clocks of one step of a butterfly, shuffle and combination (H200: a row maximum over four lanes, two steps, takes 86 with what is
around it)."""
WARP_SYNC_CLK = 10.0
WARPS = {"thread": 1, "warp": 1, "warpgroup": 4}


@dataclass(frozen=True, eq=False)
class Code:
    """See the module. All in clocks of an SM or bytes, of one execution by one instance.

    pipes: (number of the pipe in PIPES, clocks that the SM's pipe is busy); own: clocks that the unit itself needs at least, with
    the schedulers that it has; smem, tensor: of those units; l2, port: bytes that are asked of L2 and that pass the SM's port; delay:
    what comes after; k: groups that a wait leaves open; reads, results: fragments; arrives: it counts towards completions; waits: it
    blocks until one; far: of another CTA, maybe; sources: a wait for what is read only; pieces: see
    `work.pieces`.
    """

    kind: int
    name: str
    line: int
    col: int
    pipes: tuple[tuple[int, float], ...]
    own: float
    issue: float
    drag: float = 0.0
    smem: float = 0.0
    tensor: float = 0.0
    flop: float = 0.0
    l2: float = 0.0
    port: float = 0.0
    delay: float = 0.0
    k: int = 0
    reads: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    region: B.Region | None = None
    site: int = -1
    arrives: bool = False
    waits: bool = False
    far: bool = False
    sources: bool = False
    subject: str = ""
    pieces: float = 1.0


def code_of(
    s: B.Let | B.Op, role: B.Role, narrow: str | None, m: Machine, cluster: int, folded: Folded, wide: bool
) -> Code | None:
    """The code of a statement that `role` executes (narrow: "T" inside elected(), "W" inside warps()); None when it costs
    nothing. wide: barriers of other CTAs need cluster scope (`bound.crosses_ctas`)."""
    warps = WARPS[role.unit]
    repeats = 1
    if isinstance(s, B.Op):
        unit = narrow or s.unit
        if unit == "T":
            warps = 1
        elif unit == "W" and warps == 4:
            warps, repeats = 1, 4
        work = op_work(s, m, cluster, warps, folded)
    else:
        work = let_work(s, m, warps, folded)
        if not work and not (isinstance(s.value, B.VFrag)):
            return None
    kind = _kind(s)
    op = s if isinstance(s, B.Op) else None
    delay, k = _after(op, m, warps, wide)
    return Code(
        kind=kind,
        name=s.name if isinstance(s, B.Op) else s.frag.name,
        line=s.span.line,
        col=s.span.col,
        pipes=tuple((i, work[p] * repeats) for i, p in enumerate(PIPES) if work.get(p, 0.0) > 0),
        own=max((work.get(p, 0.0) for p in PIPES), default=0.0) * SCHEDULERS / min(SCHEDULERS, warps),
        issue=work.get("issue", 0.0) * repeats,
        drag=_drag(work, m) * repeats,
        smem=work.get("smem", 0.0) * repeats,
        tensor=work.get("tensor", 0.0),
        flop=work.get("flop", 0.0) * repeats,
        l2=work.get("l2", 0.0) * repeats,
        port=work.get("port", 0.0) * repeats,
        delay=delay,
        k=k,
        reads=tuple(id(f) for f in reads(s)),
        results=_results(s),
        region=next((x for x in op.operands.values() if isinstance(x, B.Region)), None) if op is not None else None,
        site=op.site if op is not None else -1,
        arrives=kind in ARRIVING,
        waits=kind == Kind.WAIT or (kind == Kind.SYNC and s.name == "sync"),  # type: ignore[union-attr]
        far=_far(op),
        sources=op is not None and op.name == "bulk_wait_read",
        subject=_subject(op),
        pieces=pieces(op) if op is not None else 1.0,
    )


DIVISION_CLK, DIVISION_ISSUE = 130.0, 28
"""Clocks and instructions of a division of integers, floor or remainder or both, by what is known at run time only: a conversion, an
approximate reciprocal, and corrections, each after the one before."""


def division_of(s: B.SetScalar, role: B.Role, m: Machine, done: set[Any]) -> Code | None:
    """The code of an assignment that divides by what is known at run time only; None for others, which cost next to nothing. done: pairs
    that were divided before in the same block."""
    new = {key for key in _divisions(s.value) if key not in done}
    if not new:
        return None
    done |= new
    work: Work = {"issue": 0.0}
    Count(m, work).add("issue", DIVISION_ISSUE * len(new) * WARPS[role.unit])
    return Code(
        kind=Kind.EXEC, name=s.var.name, line=s.span.line, col=s.span.col, pipes=((PIPES.index("issue"), work["issue"]),),
        own=DIVISION_CLK * len(new), issue=work["issue"],
    )  # fmt: skip


def _divisions(x: B.SX) -> Iterator[Any]:
    if isinstance(x, B.SOp):
        if x.op in ("//", "%") and not isinstance(x.args[1], B.SConst):
            yield _scalar_key(x.args[0]), _scalar_key(x.args[1])
        for a in x.args:
            yield from _divisions(a)


def _scalar_key(x: B.SX) -> Any:
    """What tells the values of two scalar expressions apart."""
    if isinstance(x, B.SOp):
        return x.op, *map(_scalar_key, x.args)
    return x.value if isinstance(x, B.SConst) else x.var


def _drag(work: Work, m: Machine) -> float:
    """Clocks by which the instructions of a statement hold products up."""
    fma, other, _ = m.drag
    lanes = 32.0 * SCHEDULERS
    slots = work.get("fma", 0.0) * m.fma / lanes
    rest = sum(
        work.get(p, 0.0) * rate / lanes for p, rate in (("alu", m.alu), ("sfu", m.special), ("shuffle", m.shuffle))
    )
    return fma * slots + other * rest


def _results(s: B.Let | B.Op) -> tuple[int, ...]:
    if isinstance(s, B.Let):
        return (id(s.frag),)
    found = [r for r in s.results if isinstance(r, B.Fragment)]
    if s.name == "mma":
        acc = s.operands["acc"]
        found.append(acc.frag if isinstance(acc, B.VFrag) else acc)
    return tuple(id(r) for r in found)


def _far(op: B.Op | None) -> bool:
    """Whether CTAs of the cluster wait for each other."""
    if op is None:
        return False
    bar = op.operands.get("bar")
    return op.attrs.get("scope") in ("cluster", "grid") or (isinstance(bar, B.BarUse) and bar.rank is not None)


def _subject(op: B.Op | None) -> str:
    """What an op is about, by name: a barrier, a buffer, a tensor."""
    for x in op.operands.values() if op is not None else ():
        if isinstance(x, B.BarUse):
            return x.barrier.name
    for x in op.operands.values() if op is not None else ():
        if isinstance(x, B.View):
            return x.buffer.name
        if isinstance(x, B.Region):
            return x.tensor.name
    return ""


def _kind(s: B.Let | B.Op) -> int:
    if isinstance(s, B.Let):
        return Kind.EXEC
    on_chip = any(isinstance(x, B.View) for x in s.operands.values())
    if s.name in ("load", "load_scalar"):
        return Kind.SHARED if on_chip else Kind.LOAD
    if s.name in ("store", "store_scalar"):
        return Kind.EXEC if on_chip else Kind.STORE
    if s.name.startswith("atomic_"):
        return Kind.LOAD if s.results else Kind.STORE
    if s.name == "sync" and s.attrs.get("scope") in ("warp", "warpgroup"):
        return Kind.LOCAL
    return _KINDS.get(s.name, Kind.LOCAL if _reduction(s) else Kind.EXEC)


def _reduction(op: B.Op) -> bool:
    return op.name.split("_")[0] in ("row", "col") or op.name in ("pick", "shift")


def _after(op: B.Op | None, m: Machine, warps: int, wide: bool) -> tuple[float, int]:
    """(delay in clocks, groups that a wait leaves open)."""
    if op is None:
        return 0.0, 0
    name, latency = op.name, m.latency
    if name in ("wgmma_wait", "bulk_wait", "bulk_wait_read", "cp_async_wait"):
        return 0.0, int(op.attrs.get("k", 0))
    if name == "sync":
        return WARP_SYNC_CLK if op.attrs["scope"] == "warp" else latency["named"], 0
    if name == "fence_async":
        return latency["fence"], 0
    if name == "arrive" and wide and op.operands["bar"].rank is not None:
        return latency["release"], 0
    if _reduction(op):
        return SHUFFLE_CLK * lanes_sharing(op, warps) + _chain(op, warps), 0
    return 0.0, 0


CHAIN_CLK = 4.4
ARGUMENT_CLK = 100.0
"""Clocks of one step of a reduction within a thread: each needs the one before. With a payload (H200: row_argmin of 64 x 128, two chains
of 31 steps, takes 4086): two comparisons and selects of value and payload."""


def _chain(op: B.Op, warps: int) -> float:
    """Clocks that the steps of a reduction within a thread take beyond their issue slots; results of a thread have a chain each."""
    results = [r for r in op.results if isinstance(r, B.Fragment)]
    kept = placement(results[0].type).slots if results else 1
    steps = placement(op.operands["x"].type).slots - kept
    with_payload = op.name.startswith(("row_arg", "col_arg"))
    issue = 1.0 if op.name.endswith("sum") else 2.0
    return max(0.0, steps / kept * (ARGUMENT_CLK if with_payload else CHAIN_CLK) - steps * issue)


def reads(s: B.Let | B.Op) -> list[B.Fragment]:
    """Fragments that a statement reads."""
    found: dict[B.Fragment, None] = {}
    stack: list[Any] = [s.value] if isinstance(s, B.Let) else list(s.operands.values())
    while stack:
        x = stack.pop()
        if isinstance(x, B.VFrag):
            found[x.frag] = None
        elif isinstance(x, B.Fragment):
            found[x] = None
        elif isinstance(x, B.VOp):
            stack.extend(x.args)
        elif isinstance(x, B.VExpand):
            stack.append(x.x)
        elif isinstance(x, B.Region):
            stack.extend(d.rows for d in x.dims if d.rows is not None)
    return list(found)
