"""What CTAs share: which bytes are distinct between CTAs that run at once, and which come from device memory.

L2 answers CTAs that ask for the same line at about the same time once. A line that was asked for before is still there while less than
L2 keeps has passed since: CTAs are looked at wave by wave, and of every panel (what an op reads at one place, its inner loops
included) the last wave that asked for it is remembered.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from analyses.cost.code import Kind
from analyses.cost.machine import Machine
from analyses.cost.program import Trace
from cake_ir import bound as B
from cake_ir.arithmetic import compile_sx
from cake_ir.derive.memory import memory_map

if TYPE_CHECKING:
    from analyses.cost.reading import Grid

L2 = Literal["cold", "warm"]
SAMPLE = 160
"""CTAs of a wave whose places are compared; of larger waves the first ones stand for the others."""
WAVES = 4
"""Waves that are looked at; later ones are like the last of them."""


@dataclass
class Traffic:
    """By site of an op that moves global memory: `shares`, the part of its bytes that is distinct between CTAs at one time; `misses`, the
    part of its bytes that passes device memory; `late`, how likely what it asks for is not in L2; `near`, the part of what registers load
    that L1 has. reads, writes: bytes of device memory."""

    shares: dict[int, float] = field(default_factory=dict)
    misses: dict[int, float] = field(default_factory=dict)
    late: dict[int, float] = field(default_factory=dict)
    near: dict[int, float] = field(default_factory=dict)
    reads: float = 0.0
    writes: float = 0.0


def traffic(bound: B.BoundKernel, env: list[Any], grid: Grid, trace: Trace, m: Machine, l2: L2) -> Traffic:
    """What the CTAs of a launch move, from what the traced cluster asks for. env is left as it was."""
    found, places = Traffic(), _Places(bound, env)
    sizes = tensor_bytes(bound, env)
    ops = {s.site: r for s in B.walk(bound.body) if isinstance(s, B.Op) and (r := _region(s)) is not None}
    asked: dict[int, float] = defaultdict(float)  # bytes of one CTA
    one: dict[int, float] = defaultdict(float)  # of one agent of it at most
    loads: set[int] = set()
    for a in trace.agents:
        own: dict[int, float] = defaultdict(float)
        for code, _, part, mult in a.events:
            if code.region is not None:
                own[code.site] += code.l2 * part * mult
                if code.kind == Kind.LOAD:
                    loads.add(code.site)
                asked[code.site] += code.l2 * part * mult * a.weight / bound.launch.cluster
        for site, amount in own.items():
            one[site] = max(one[site], amount)
    slots = min(grid.ctas, grid.sms * grid.busy)
    sampled = min(slots, SAMPLE)
    first = places.wave(sampled, slots, 0)
    for site, at in first.items():
        found.shares[site] = len(at) / sampled if sampled else 1.0
    gone = absent(_kept(bound, ops, found.shares, sizes), m)
    visit = {
        site: (asked[site] if found.shares.get(site, 1.0) > 0.5 else one[site]) / places.visits.get(site, 1)
        for site in asked
    }
    found.near = _near(bound, ops, first, found.shares, asked, visit, grid, loads)
    whole = {site: b * (1 - found.near.get(site, 0.0)) * grid.ctas * grid.average for site, b in asked.items()}
    need = _again(places, first, asked, grid, slots, sampled, m) if gone else {}
    by_tensor: dict[int, float] = defaultdict(float)
    for site, region in ops.items():
        by_tensor[id(region.tensor)] += whole.get(site, 0.0)
    for site, region in ops.items():
        t, bytes_ = region.tensor, whole.get(site, 0.0)
        if not bytes_:
            continue
        once = sizes[id(t)] * bytes_ / by_tensor[id(t)]  # compulsory, shared out over the ops on the tensor
        again = max(0.0, need.get(site, 0.0) - once)
        amount = min(bytes_, once * (gone if t.direction == "Out" or l2 == "warm" else 1.0) + again * gone)
        found.misses[site] = amount / bytes_
        found.late[site] = min(1.0, found.misses[site] / max(found.shares.get(site, 1.0), 1e-9))
        if t.direction == "In" or t.direction == "InOut":
            found.reads += amount
        if t.direction != "In":
            found.writes += min(amount, once * gone)
    return found


def _again(
    places: _Places,
    first: dict[int, set[Any]],
    asked: dict[int, float],
    grid: Grid,
    slots: int,
    sampled: int,
    m: Machine,
) -> dict[int, float]:
    """By site: bytes that are not in L2 when they are asked for, if nothing is at the start."""
    waves = places.waves(grid, slots)
    scale = slots / sampled if sampled else 1.0
    panel = {site: asked.get(site, 0.0) / places.visits.get(site, 1) for site in first}
    keeps = sum(m.l2_keeps) / 2
    seen: dict[Any, float] = {}  # panel -> bytes that had passed when it was last asked for
    passed = 0.0
    missed: dict[int, list[float]] = defaultdict(list)
    looked = min(waves, WAVES)
    for w in range(looked):
        sets = first if w == 0 else places.wave(sampled, slots, w)
        here = dict.fromkeys(sets, 0.0)
        fresh: dict[Any, float] = {}
        for site, at in sets.items():
            own = 0.0
            tensor = places.tensor[site]
            for place in at:
                key = (tensor, place)
                size = panel.get(site, 0.0) * scale
                if key in fresh:  # another op of the same wave: a second pass over it
                    if fresh[key] > keeps:
                        here[site] += size
                    continue
                before = seen.get(key)
                if before is None or passed - before > keeps:
                    here[site] += size
                own += size
                fresh[key] = 0.0
            passed += own
            for key in fresh:
                fresh[key] += own
        for key in fresh:
            seen[key] = passed
        for site, amount in here.items():
            missed[site].append(amount)
    return {site: sum(v) + (waves - looked) * v[-1] for site, v in missed.items()}


class _Places:
    """Where CTAs read and write global memory: a kernel's control flow with inner loops at their start."""

    def __init__(self, bound: B.BoundKernel, env: list[Any]) -> None:
        self.bound, self.env = bound, env
        self.tensor: dict[int, int] = {}
        self.visits: dict[int, int] = {}  # by site: how often a CTA comes there with other rows or tiles
        self._trips = 1
        self._compiled: dict[int, Any] = {}
        own = {bound.builtins["cluster_id"], bound.builtins["cta"]}
        self._persistent = {id(s) for s in B.walk(bound.body) if isinstance(s, B.For) and own & B.sx_vars(s.start)}
        self._items = self._relevant(bound.body)

    def waves(self, grid: Grid, slots: int) -> int:
        """How often a CTA slot is used, or a persistent CTA takes a tile. After the first wave."""
        if self._persistent:
            return max(self.visits.values(), default=1)
        return max(1, -(-grid.ctas // slots))

    def wave(self, ctas: int, slots: int, number: int) -> dict[int, set[Any]]:
        """Distinct places by site of the first `ctas` CTAs of a wave."""
        found: dict[int, set[Any]] = defaultdict(set)
        kept, names, env = list(self.env), self.bound.builtins, self.env
        cluster = self.bound.launch.cluster
        for i in range(ctas):
            cta = i if self._persistent else i + number * slots
            env[:] = kept
            env[names["cta"].slot] = cta
            env[names["cluster_rank"].slot] = cta % cluster
            env[names["cluster_id"].slot] = cta // cluster
            self._run(self._items, number, found)
        env[:] = kept
        return found

    def _value(self, x: Any) -> Any:
        f = self._compiled.get(id(x))
        if f is None:
            f = self._compiled[id(x)] = compile_sx(x)
        try:
            return f(self.env)
        except (TypeError, ZeroDivisionError, OverflowError):
            return 0

    def _relevant(self, body: tuple[B.Stmt, ...]) -> list[tuple[B.Stmt, Any]]:
        """What decides places, with its inner blocks or its region: the rest of a program is not looked at once per CTA."""
        out: list[tuple[B.Stmt, Any]] = []
        for s in body:
            if isinstance(s, B.SetScalar):
                out.append((s, None))
            elif isinstance(s, B.If):
                inner = (self._relevant(s.then), self._relevant(s.orelse))
                if inner[0] or inner[1]:
                    out.append((s, inner))
            elif isinstance(s, (B.For, B.RoleBlock, B.ElectedBlock, B.WarpsBlock, B.While)):
                within = self._relevant(s.body)
                if any(not isinstance(x, B.SetScalar) for x, _ in within):
                    out.append((s, within))
            elif isinstance(s, B.Op):
                region = _region(s)
                if region is not None and not _alone(s, region):
                    self.tensor[s.site] = id(region.tensor)
                    out.append((s, region))
        return out

    def _run(self, items: list[tuple[B.Stmt, Any]], wave: int, found: dict[int, set[Any]]) -> None:
        env, value = self.env, self._value
        for s, inner in items:
            if isinstance(s, B.SetScalar):
                env[s.var.slot] = value(s.value)
            elif isinstance(s, B.Op):
                found[s.site].add(tuple(value(d.start) for d in inner.dims))
                self.visits.setdefault(s.site, self._trips)
            elif isinstance(s, B.If):
                self._run(inner[0] if value(s.cond) else inner[1], wave, found)
            elif isinstance(s, B.For):
                at, outer = value(s.start), self._trips
                if id(s) in self._persistent:
                    step, stop = max(1, value(s.step)), value(s.stop)
                    self._trips = max(1, -(-(stop - at) // step))
                    at += wave * step
                    if at >= stop:
                        self._trips = outer
                        continue
                env[s.var.slot] = at
                self._run(inner, wave, found)
                self._trips = outer
            else:
                self._run(inner, wave, found)


def _region(op: B.Op) -> B.Region | None:
    return next((x for x in op.operands.values() if isinstance(x, B.Region)), None)


def _alone(op: B.Op, region: B.Region) -> bool:
    """Whether no two CTAs share the traffic: every atomic is done for itself, and data decide where a gathered row lies."""
    return op.name.startswith("atomic_") or any(d.kind == "gather" for d in region.dims)


def tensor_bytes(bound: B.BoundKernel, env: Sequence[Any]) -> dict[int, float]:
    """Bytes of every tensor at the shape in env, by id."""
    return {id(t): t.dtype.bits / 8 * math.prod(compile_sx(e)(env) for e in t.extents) for t in bound.tensors}


SHARED = 0.75
"""Distinct places per CTA below which lines count as read by several SMs."""


def _kept(
    bound: B.BoundKernel, ops: Mapping[int, B.Region], shares: Mapping[int, float], sizes: Mapping[int, float]
) -> float:
    """Bytes of L2 that all tensors take. L2 has two halves, and keeps a line in both when SMs of both read it: always what several SMs
    read, every other line of what one does; what is written is kept once (H200: 40 MiB of own lines stay, of 60)."""
    total = 0.0
    for t in bound.tensors:
        sites = [s for s, r in ops.items() if r.tensor is t]
        several = any(shares.get(s, 1.0) < SHARED for s in sites)
        total += sizes[id(t)] * (2.0 if several else 1.5)
    return total


def _near(
    bound: B.BoundKernel, ops: Mapping[int, B.Region], first: Mapping[int, set[Any]], shares: Mapping[int, float],
    asked: Mapping[int, float], visit: Mapping[int, float], grid: Grid, loads: set[int],
) -> dict[int, float]:  # fmt: skip
    """By site of a load to registers: the part that L1 has, because the CTA or another one of its SM read it before."""
    room = bound.target.value("smem_per_sm") - grid.busy * memory_map(bound).total
    out: dict[int, float] = {}
    seen: dict[int, set[Any]] = defaultdict(set)
    for site in sorted(loads):
        region = ops[site]
        tensor, at, bytes_ = id(region.tensor), first.get(site, set()), asked.get(site, 0.0)
        if not at or not bytes_ or region.tensor.direction == "Out":
            continue
        common = shares.get(site, 1.0) <= 0.5  # neighbours on an SM read the same
        lines = visit[site]  # bytes until a CTA goes on to other rows
        if lines * (1 if common else grid.busy) > room:
            continue
        if at <= seen[tensor]:
            out[site] = 1.0
        elif common:
            out[site] = max(0.0, 1.0 - lines / (bytes_ * max(1.0, grid.per_sm)))
        seen[tensor] |= at
    return out


def absent(footprint: float, m: Machine) -> float:
    """The part of what takes `footprint` bytes of L2 that is lost from launch to launch."""
    low, high = m.l2_keeps
    return min(1.0, max(0.0, (footprint - low) / (high - low)))
