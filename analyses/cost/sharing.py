"""What CTAs share: which bytes are distinct between CTAs that run at once, and which come from device memory.

CTAs of one GPC that ask L2 for the same line at about the same time get it once; those of another GPC get it again (H200: what two SMs
of a GPC share comes to both almost twice as fast, what SMs of different GPCs share does not). A line that was asked for before is still
there while less than L2 keeps has passed since: CTAs are looked at wave by wave, and of every panel (what an op reads at one place, its
inner loops included) the last wave that asked for it is remembered.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from analyses.cost.code import Kind
from analyses.cost.machine import Machine
from analyses.cost.places import Places, region_of
from analyses.cost.program import Trace
from analyses.cost.work import region_bytes
from cake_ir import bound as B
from cake_ir.arithmetic import compile_sx
from cake_ir.derive.memory import memory_map

if TYPE_CHECKING:
    from analyses.cost.reading import Grid

L2 = Literal["cold", "warm"]
SAMPLE = 160
"""CTAs of a wave whose places are compared; of larger waves the first ones stand for the others."""
PLACES, NEIGHBOURS = 4096, 4
"""Places of a wave that are compared: of a kernel that asks at many (its loops unrolled) fewer CTAs, by groups of neighbours."""
WAVES = 4
"""Waves that are looked at; later ones are like the last of them."""


@dataclass
class Traffic:
    """By site of an op that moves global memory: `shares`, the part of its bytes that is distinct between CTAs at one time; `crossing`,
    that is distinct between those of a GPC; `misses`, the part of its bytes that passes device memory; `late`, how likely what it asks
    for is not in L2; `near`, the part of what registers load that L1 has. adds: atomic operations on the line of memory that most are
    done on. reads, writes: bytes of device memory."""

    shares: dict[int, float] = field(default_factory=dict)
    crossing: dict[int, float] = field(default_factory=dict)
    misses: dict[int, float] = field(default_factory=dict)
    late: dict[int, float] = field(default_factory=dict)
    near: dict[int, float] = field(default_factory=dict)
    adds: float = 0.0
    reads: float = 0.0
    writes: float = 0.0


def traffic(
    bound: B.BoundKernel, env: list[Any], grid: Grid, parts: Sequence[tuple[Trace, float]], m: Machine, l2: L2
) -> Traffic:
    """What the CTAs of a launch move, from what traced clusters ask for, each with the share of the clusters that do the same (the first
    cluster's trace comes first). env is left as it was."""
    found, places = Traffic(), Places(bound, env)
    sizes = tensor_bytes(bound, env)
    ops = {s.site: r for s in B.walk(bound.body) if isinstance(s, B.Op) and (r := region_of(s)) is not None}
    asked: dict[int, float] = defaultdict(float)  # bytes of the average CTA
    one: dict[int, float] = defaultdict(float)  # of one agent of it at most
    loads: set[int] = set()
    summed: dict[int, float] = defaultdict(float)
    for a, share in ((a, share / bound.launch.cluster) for trace, share in parts for a in trace.agents):
        own: dict[int, float] = defaultdict(float)
        for code, _, part, mult in a.events:
            if code.region is not None:
                if code.name.startswith("atomic_") and all(d.kind != "gather" for d in code.region.dims):
                    t = code.region.tensor
                    amount = code.pieces * region_bytes(code.region) * part * mult * a.weight * share
                    summed[id(t)] += amount
                own[code.site] += code.l2 * part * mult
                if code.kind == Kind.LOAD and not code.name.startswith("atomic_"):  # those pass L1
                    loads.add(code.site)
                asked[code.site] += code.l2 * part * mult * a.weight * share
        for site, amount in own.items():
            one[site] = max(one[site], amount)
    found.adds = max((n * grid.ctas * grid.average / sizes[t] for t, n in summed.items() if sizes[t]), default=0.0)
    slots = min(grid.ctas, grid.sms * grid.busy)
    chosen = _sample(slots, len(places.tensor), max(NEIGHBOURS, bound.launch.cluster))
    sampled = len(chosen)
    first: dict[int, set[Any]] = {}
    crossing: dict[int, int] = defaultdict(int)
    for ctas in _gpcs(chosen, bound.launch.cluster, min(slots, grid.sms), m.gpcs):
        for site, at in places.wave(ctas, slots, 0).items():
            first.setdefault(site, set()).update(at)
            crossing[site] += len(at)
    for site, at in first.items():
        found.shares[site] = len(at) / sampled
        found.crossing[site] = crossing[site] / sampled
    gone = absent(_kept(bound, ops, found.shares, sizes), m)
    visit = {
        site: (asked[site] if found.shares.get(site, 1.0) > 0.5 else one[site]) / places.visits.get(site, 1)
        for site in asked
    }
    found.near = _near(bound, ops, first, found.shares, asked, visit, grid, loads)
    whole = {site: b * (1 - found.near.get(site, 0.0)) * grid.ctas * grid.average for site, b in asked.items()}
    need = _again(places, first, asked, grid, slots, chosen, m) if gone and slots else {}
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


def _gpcs(ctas: Sequence[int], cluster: int, sms: int, gpcs: int) -> list[list[int]]:
    """CTAs by the GPC that they start on: clusters take turns, CTAs without fill one GPC after the other (H200)."""
    out: list[list[int]] = [[] for _ in range(gpcs)]
    for i in ctas:
        out[(i // cluster if cluster > 1 else i * gpcs // sms) % gpcs].append(i)
    return out


def _sample(slots: int, sites: int, near: int) -> Sequence[int]:
    """The CTAs of a wave that stand for it: the first ones, or groups of `near` from all over it, as the last wave may not be whole."""
    groups = -(-PLACES // max(1, sites) // near)
    if groups * near >= min(slots, SAMPLE):
        return range(min(slots, SAMPLE))
    starts = (((2 * i + 1) * slots - near * groups) // (2 * groups) for i in range(groups))
    return [start + j for start in starts for j in range(near)]


def _again(
    places: Places,
    first: dict[int, set[Any]],
    asked: dict[int, float],
    grid: Grid,
    slots: int,
    chosen: Sequence[int],
    m: Machine,
) -> dict[int, float]:
    """By site: bytes that are not in L2 when they are asked for, if nothing is at the start."""
    waves = places.waves(grid.ctas, slots)
    scale = slots / len(chosen) if chosen else 1.0
    panel = {site: asked.get(site, 0.0) / places.visits.get(site, 1) for site in first}
    keeps = sum(m.l2_keeps) / 2
    seen: dict[Any, float] = {}  # panel -> bytes that had passed when it was last asked for
    passed = 0.0
    missed: dict[int, list[float]] = defaultdict(list)
    looked = min(waves, WAVES)
    for w in range(looked):
        sets = first if w == 0 else places.wave(chosen, slots, w)
        start = passed
        fresh: dict[Any, float] = {}  # panel -> bytes of this wave before the op that asked for it first
        for site, at in sets.items():
            tensor, size = places.tensor[site], panel.get(site, 0.0) * scale
            oldest, here = passed - keeps, passed - start
            lost = asks = 0
            for place in at:
                key = (tensor, place)
                since = fresh.get(key)
                if since is not None:  # another op of the same wave: a second pass over it
                    lost += here - since > keeps
                    continue
                lost += seen.get(key, -math.inf) < oldest
                asks += 1
                fresh[key] = here
            passed += asks * size
            missed[site].append(lost * size)
        for key in fresh:
            seen[key] = passed
    return {site: sum(v) + (waves - looked) * v[-1] for site, v in missed.items()}


def tensor_bytes(bound: B.BoundKernel, env: list[Any]) -> dict[int, float]:
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
