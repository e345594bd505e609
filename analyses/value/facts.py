"""Arrival counts, expected bytes and named-barrier participants for one cluster, by running its control skeleton.

Only index arithmetic, loops and loads of In/Const data run; everything else gives an undefined scalar. `Counts` is
exact for the launched shape, so the value reading does not rest on the symbolic derivation that it is meant to check.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from analyses.value.carried import MAX_ROUNDS
from analyses.value.exprs import POISON, Scalar, native, scalar
from analyses.value.faults import PoisonUse, ValueFault
from cake_ir.bound import (
    Barrier,
    BarUse,
    BoundKernel,
    ElectedBlock,
    For,
    If,
    Op,
    Region,
    Role,
    RoleBlock,
    ScalarVar,
    SetScalar,
    View,
    WarpsBlock,
    While,
    walk,
)
from cake_ir.events import Endless, steps

_ARRIVING = {
    "arrive",
    "expect",
    "tcgen05_commit",
    "cp_async_arrive",
    "tma_load",
    "bulk_load",
    "named_arrive",
    "sync",
    "store_async",
}
Step = Callable[["_Run"], None]


class Counts:
    """What barriers of one cluster get. Keys: (rank, barrier, use); bytes also by role name; named by (rank,
    barrier, number)."""

    def __init__(self) -> None:
        self.arrivals: dict[tuple[int, Barrier, int], int] = defaultdict(int)
        self.bytes: dict[tuple[int, Barrier, int, str], int] = defaultdict(int)
        self.named: dict[tuple[int, Barrier, int], dict[Any, int]] = defaultdict(dict)

    def arrival_count(self, barrier: Barrier) -> int:
        """The one count of a barrier (1 when nobody arrives); unequal counts are a fault."""
        seen = {n: (rank, use) for (rank, b, use), n in self.arrivals.items() if b is barrier}
        if len(seen) > 1:
            text = ", ".join(f"use {use} of rank {rank} gets {n}" for n, (rank, use) in sorted(seen.items()))
            raise ValueFault("arrivals", f"{barrier.name}: unequal arrivals per use ({text})", barrier.span)
        return next(iter(seen), 1)


class _Run:
    """One agent's skeleton: environment, rank, identity."""

    def __init__(self, env: list[Any], rank: int, cluster: int, agent: Any, weight: int, counts: Counts) -> None:
        self.env, self.rank, self.cluster, self.agent, self.weight, self.counts = (
            env,
            rank,
            cluster,
            agent,
            weight,
            counts,
        )


class Skeleton:
    """The control skeleton of a kernel, compiled per role. read(tensor name, index tuple) -> element or None."""

    def __init__(self, bound: BoundKernel, read: Callable[[str, tuple[int, ...]], Any]) -> None:
        self.bound, self.read = bound, read
        self.roles = {r.name: self._block(bound.body, r) for r in bound.roles}
        self.needed = any(isinstance(s, Op) and s.name in _ARRIVING for s in walk(bound.body))

    def count(self, envs: list[list[Any]]) -> Counts:
        """Runs all agents of one cluster; envs: the start environment of each rank."""
        counts = Counts()
        if not self.needed:
            return counts
        for rank, env in enumerate(envs):
            for role in self.bound.roles:
                for i in range(role.count if role.unit != "thread" else 1):
                    run = _Run(list(env), rank, len(envs), (role.name, i), role.warps_per_instance, counts)
                    run.instance = i  # type: ignore[attr-defined]
                    for step in self.roles[role.name]:
                        step(run)
        return counts

    def _block(self, body: tuple[Any, ...], role: Role) -> list[Step]:
        return [s for s in (self._stmt(x, role) for x in body) if s is not None]

    def _stmt(self, s: Any, role: Role) -> Step | None:
        if isinstance(s, SetScalar):
            slot, value = s.var.slot, scalar(s.value)

            def assign(run: _Run) -> None:
                try:
                    run.env[slot] = value(run.env)
                except PoisonUse:
                    run.env[slot] = POISON

            return assign
        if isinstance(s, Op):
            return self._op(s, role)
        if isinstance(s, RoleBlock):
            return self._role(s, role)
        if isinstance(s, ElectedBlock):
            return _sequence(self._block(s.body, role))
        if isinstance(s, WarpsBlock):
            return self._warps(s, role)
        if isinstance(s, For):
            return self._for(s, role)
        if isinstance(s, If):
            return self._if(s, role)
        if isinstance(s, While):
            return self._while(s, role)
        return None

    def _role(self, s: RoleBlock, role: Role) -> Step | None:
        if s.role is not role:
            return None
        inner = _sequence(self._block(s.body, role))
        if inner is None or s.instance is None:
            return inner
        slot = s.instance.slot

        def enter(run: _Run) -> None:
            run.env[slot] = run.agent[1]
            inner(run)

        return enter

    def _warps(self, s: WarpsBlock, role: Role) -> Step | None:
        inner = _sequence(self._block(s.body, role))
        if inner is None:
            return None

        def each(run: _Run) -> None:
            env, agent, weight = run.env, run.agent, run.weight
            for w in range(4):
                run.env, run.agent, run.weight = list(env), (*agent, w), 1
                if s.warp is not None:
                    run.env[s.warp.slot] = w
                inner(run)
            run.env, run.agent, run.weight = env, agent, weight

        return each

    def _for(self, s: For, role: Role) -> Step | None:
        inner = _sequence(self._block(s.body, role))
        if inner is None:
            return None
        start, stop, step, slot = scalar(s.start), scalar(s.stop), scalar(s.step), s.var.slot
        critical = _has_barrier(s.body)

        def loop(run: _Run) -> None:
            env = run.env
            try:
                bounds = steps(start(env), stop(env), step(env), s.span)
            except Endless as fault:
                raise ValueFault("endless", f"this loop never ends: {fault.why}", s.span) from None
            except PoisonUse:
                if critical:
                    raise ValueFault(
                        "data-dependent", "a loop around barrier ops is bounded by data written in the kernel", s.span
                    ) from None
                return _forget(env, s.body)
            for i in bounds:
                env[slot] = i
                inner(run)
            return None

        return loop

    def _if(self, s: If, role: Role) -> Step | None:
        cond = scalar(s.cond)
        then, orelse = _sequence(self._block(s.then, role)), _sequence(self._block(s.orelse, role))
        if then is None and orelse is None:
            return None
        critical = _has_barrier(s.then) or _has_barrier(s.orelse)

        def branch(run: _Run) -> None:
            try:
                taken = then if cond(run.env) else orelse
            except PoisonUse:
                if critical:
                    raise ValueFault(
                        "data-dependent", "a branch around barrier ops depends on data written in the kernel", s.span
                    ) from None
                _forget(run.env, s.then + s.orelse)
                return
            if taken is not None:
                taken(run)

        return branch

    def _while(self, s: While, role: Role) -> Step | None:
        prelude, inner, cond = (
            _sequence(self._block(s.prelude, role)),
            _sequence(self._block(s.body, role)),
            scalar(s.cond),
        )
        critical = _has_barrier(s.body) or _has_barrier(s.prelude)

        def loop(run: _Run) -> None:
            try:
                for _ in range(MAX_ROUNDS):
                    if prelude is not None:
                        prelude(run)
                    if not cond(run.env):
                        return
                    if inner is not None:
                        inner(run)
                raise ValueFault("deadlock", f"while has not ended after {MAX_ROUNDS} rounds", s.span)
            except PoisonUse:
                if critical:
                    raise ValueFault(
                        "data-dependent", "a while around barrier ops depends on data written in the kernel", s.span
                    ) from None
                _forget(run.env, s.prelude + s.body)

        return loop

    # ---- ops ---------------------------------------------------------------------------------------------------------

    def _op(self, op: Op, role: Role) -> Step | None:
        scalars = [r.slot for r in op.results if isinstance(r, ScalarVar)]
        if scalars:
            region = op.operands.get("src")
            if op.name == "load_scalar" and isinstance(region, Region) and region.tensor.direction in ("In", "Const"):
                return self._load(scalars[0], op.results[0], region)

            def unknown(run: _Run) -> None:
                for slot in scalars:
                    run.env[slot] = POISON

            return unknown
        if op.name == "sync" and op.attrs.get("scope") != "named":
            return None
        if op.name in ("sync", "named_arrive"):
            return self._named(op.operands["bar"])
        if op.name in ("tma_load", "bulk_load", "store_async"):
            return self._signal(op, role)
        if op.name not in _ARRIVING:
            return None
        bar: BarUse = op.operands["bar"]
        use, rank = scalar(bar.use), None if bar.rank is None else scalar(bar.rank)
        ranks = _ranks(op.operands.get("multicast"))
        each = {"T": 1, "W": 1, "G": 4, "K": 4 if role.unit == "warpgroup" else 1}[op.unit]
        if op.name == "cp_async_arrive":
            each = 32 if op.unit == "W" else 128
        if op.name in ("expect", "tcgen05_commit"):
            each = 1
        barrier = bar.barrier

        def arrive(run: _Run) -> None:
            n = use(run.env)
            if ranks is not None:
                targets = ranks(run)
            else:
                targets = [run.rank if rank is None else rank(run.env)]
            for r in targets:
                run.counts.arrivals[r, barrier, n] += each

        return arrive

    def _load(self, slot: int, var: Any, region: Region) -> Step:
        starts = [scalar(d.start) for d in region.dims]
        name, dtype = region.tensor.name, region.tensor.dtype.name

        def load(run: _Run) -> None:
            try:
                item = self.read(name, tuple(int(s(run.env)) for s in starts))
            except PoisonUse:
                item = None
            run.env[slot] = POISON if item is None else native(item, dtype)

        return load

    def _named(self, bar: BarUse) -> Step:
        use = scalar(bar.use)

        def note(run: _Run) -> None:
            run.counts.named[run.rank, bar.barrier, use(run.env)][run.agent] = run.weight

        return note

    def _signal(self, op: Op, role: Role) -> Step:
        view, bar = op.operands["view"], op.operands["signal"]
        nbytes = view_bytes(view)
        use, rank = scalar(bar.use), None if bar.rank is None else scalar(bar.rank)
        ranks = _ranks(op.operands.get("multicast"))
        other = None if view.rank is None else scalar(view.rank)

        def signal(run: _Run) -> None:
            n = use(run.env)
            if ranks is not None:
                targets = ranks(run)
            elif rank is not None:
                targets = [rank(run.env)]
            else:
                targets = [run.rank if other is None else other(run.env)]
            for r in targets:
                run.counts.bytes[r, bar.barrier, n, role.name] += nbytes

        return signal


def view_bytes(view: View) -> int:
    """Bytes of a view (clipped boxes count in full)."""
    return view.rows * view.cols * view.buffer.dtype.bits // 8


def _ranks(multicast: Any) -> Callable[[_Run], list[int]] | None:
    if multicast is None:
        return None
    if multicast == "cluster":
        return lambda run: list(range(run.cluster))
    parts: list[Scalar] = [scalar(x) for x in multicast]
    return lambda run: [int(p(run.env)) for p in parts]


def _sequence(steps: list[Step]) -> Step | None:
    if not steps:
        return None
    if len(steps) == 1:
        return steps[0]

    def run_all(run: _Run) -> None:
        for s in steps:
            s(run)

    return run_all


def _has_barrier(body: tuple[Any, ...]) -> bool:
    return any(
        isinstance(s, Op) and s.name in _ARRIVING and not (s.name == "sync" and s.attrs.get("scope") != "named")
        for s in walk(body)
    )


def _forget(env: list[Any], body: tuple[Any, ...]) -> None:
    """Scalars that an unknown branch may assign become undefined."""
    for s in walk(body):
        if isinstance(s, SetScalar):
            env[s.var.slot] = POISON
        elif isinstance(s, Op):
            for r in s.results:
                if isinstance(r, ScalarVar):
                    env[r.slot] = POISON


def reader(arrays: dict[str, np.ndarray]) -> Callable[[str, tuple[int, ...]], Any]:
    """Element reads of In/Const tensors; None outside."""

    def read(name: str, index: tuple[int, ...]) -> Any:
        a = arrays.get(name)
        if a is None or any(i < 0 or i >= n for i, n in zip(index, a.shape, strict=True)):
            return None
        return a[index]

    return read
