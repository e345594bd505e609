"""What CTAs share: which bytes are distinct between CTAs that run at once, and which come from device memory.

L2 answers CTAs that ask for the same line at about the same time once; a line that was asked for before is there while less than L2 holds
has passed since.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from analyses.cost.machine import Machine
from analyses.cost.program import Trace
from cake_ir import bound as B
from cake_ir.arithmetic import compile_sx

L2 = Literal["cold", "warm"]
SAMPLE = 160
"""CTAs whose places are compared; larger grids are sampled by their first ones."""


def shares(bound: B.BoundKernel, env: list[Any], ctas: int) -> dict[int, float]:
    """By site of an op that moves global memory: distinct places over CTAs that ask for one at the same time (the first `ctas` of the
    grid, each in its first tile). env is left as it was."""
    places: dict[int, set[tuple[Any, ...]]] = defaultdict(set)
    compiled: dict[int, Any] = {}
    kept, names = list(env), bound.builtins

    def value(x: Any) -> Any:
        f = compiled.get(id(x))
        if f is None:
            f = compiled[id(x)] = compile_sx(x)
        try:
            return f(env)
        except (TypeError, ZeroDivisionError, OverflowError):
            return 0

    def relevant(body: tuple[B.Stmt, ...]) -> list[tuple[B.Stmt, Any]]:
        """What decides places, with its inner blocks or its region: the rest of a program is not looked at once per CTA."""
        out: list[tuple[B.Stmt, Any]] = []
        for s in body:
            if isinstance(s, B.SetScalar):
                out.append((s, None))
            elif isinstance(s, B.If):
                out.append((s, (relevant(s.then), relevant(s.orelse))))
            elif isinstance(s, (B.For, B.RoleBlock, B.ElectedBlock, B.WarpsBlock, B.While)):
                inner = relevant(s.body)
                if any(not isinstance(x, B.SetScalar) for x, _ in inner):
                    out.append((s, inner))
            elif isinstance(s, B.Op):
                region = next((x for x in s.operands.values() if isinstance(x, B.Region)), None)
                if region is not None and not _alone(s, region):
                    out.append((s, region))
        return out

    def run(items: list[tuple[B.Stmt, Any]]) -> None:
        for s, inner in items:
            if isinstance(s, B.SetScalar):
                env[s.var.slot] = value(s.value)
            elif isinstance(s, B.Op):
                places[s.site].add(tuple(value(d.start) for d in inner.dims))
            elif isinstance(s, B.If):
                run(inner[0] if value(s.cond) else inner[1])
            else:
                if isinstance(s, B.For):
                    env[s.var.slot] = value(s.start)
                run(inner)

    items = relevant(bound.body)
    ctas = min(ctas, SAMPLE)
    for i in range(ctas):
        env[:] = kept
        env[names["cta"].slot] = i
        env[names["cluster_rank"].slot] = i % bound.launch.cluster
        env[names["cluster_id"].slot] = i // bound.launch.cluster
        run(items)
    env[:] = kept
    return {op: len(found) / ctas for op, found in places.items()} if ctas else {}


def _alone(op: B.Op, region: B.Region) -> bool:
    """Whether no two CTAs share the traffic: every atomic is done for itself, and data decide where a gathered row lies."""
    return op.name.startswith("atomic_") or any(d.kind == "gather" for d in region.dims)


def tensor_bytes(bound: B.BoundKernel, env: Sequence[Any]) -> dict[int, float]:
    """Bytes of every tensor at the shape in env, by id."""
    return {id(t): t.dtype.bits / 8 * math.prod(compile_sx(e)(env) for e in t.extents) for t in bound.tensors}


def absent(footprint: float, m: Machine) -> float:
    """The part of a footprint that L2 lost since the launch before read or wrote it."""
    low, high = m.l2_keeps
    return min(1.0, max(0.0, (footprint - low) / (high - low)))


def misses(
    bound: B.BoundKernel, env: Sequence[Any], trace: Trace, ctas: float, m: Machine, l2: L2
) -> tuple[dict[int, float], float, float]:
    """(by site the part of its bytes that pass device memory, bytes read from it, bytes written to it). ctas: how many do what the
    traced cluster does, in CTAs."""
    asked: Mapping[int, float] = defaultdict(float)
    for a in trace.agents:
        for code, _, part, mult in a.events:
            if code.region is not None:
                asked[id(code.region.tensor)] += code.l2 * part * mult * a.weight  # type: ignore[index]
    sizes = tensor_bytes(bound, env)
    gone = absent(sum(sizes.values()), m)
    reads = writes = 0.0
    need: dict[int, float] = {}
    for t in bound.tensors:
        first = gone if t.direction == "Out" or l2 == "warm" else 1.0
        need[id(t)] = first * sizes[id(t)]
        reads += need[id(t)] if t.direction != "Out" else 0.0
        writes += gone * sizes[id(t)] if t.direction in ("Out", "InOut") else 0.0
    out = {}
    for s in B.walk(bound.body):
        region = (
            next((x for x in s.operands.values() if isinstance(x, B.Region)), None) if isinstance(s, B.Op) else None
        )
        if region is not None:
            whole = asked[id(region.tensor)] * ctas / bound.launch.cluster
            out[s.site] = min(1.0, need[id(region.tensor)] / whole) if whole else 0.0
    return out, reads, writes
