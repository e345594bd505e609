"""The time reading of one CTA: what each role does in order, what all of them ask of the SM, and how the two meet.

One instance of every role is walked with a clock of its own. Its instructions take the time of the pipe that they fill most; a load or a
product runs on until something waits for it; a barrier costs its latency and nothing more, because whoever is the bottleneck waits for
nobody. Loops outside role blocks are where roles meet: an iteration takes

    max( own time of the slowest role,  what all instances ask of each resource of the SM,  round trip of a copy ring / its stages )

so steps of one role are serial, roles overlap, and instances of a role fill each other's gaps at the tensor cores. A loop body that holds
such loops takes the time of those, and what its critical role does beside them, less what the other instances' products cover.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from analyses.cost.machine import SCHEDULERS, Machine
from analyses.cost.work import PIPES, SHARED, Work, let_work, op_work
from cake_ir import bound as B
from cake_ir.arithmetic import compile_sx

ASYNCHRONOUS = frozenset(
    ("tma_load", "tma_store", "bulk_load", "bulk_store", "bulk_reduce", "tma_reduce", "cp_async", "tcgen05_mma")
)
"""Ops whose traffic costs the issuing unit nothing."""
_WARPS = {"thread": 1, "warp": 1, "warpgroup": 4}


@dataclass
class Clock:
    """One instance of a role of `warps` warps. `pending`: instructions not yet turned into time; `ready`: when a fragment's load arrives;
    `groups`: when open groups of products end, `last`: when the newest product does; `since`: when it got what it now holds of a ring,
    `held`: the longest that it held something."""

    warps: int
    t: float = 0.0
    pending: Work = field(default_factory=lambda: defaultdict(float))
    ready: dict[int, float] = field(default_factory=dict)
    groups: list[float] = field(default_factory=list)
    last: float = 0.0
    since: float | None = None
    held: float = 0.0

    def flush(self) -> float:
        """Turn what was issued into time; the time."""
        if self.pending:
            share = SCHEDULERS / min(
                SCHEDULERS, self.warps
            )  # fewer warps than schedulers reach a part of the SM's lanes
            pipes = max(self.pending[p] for p in PIPES) * share
            self.t += max(pipes, self.pending["smem"])
            self.pending.clear()
        return self.t

    def until(self, when: float) -> None:
        """Wait for a moment."""
        self.t = max(self.flush(), when)

    def skip(self, clocks: float) -> None:
        """Let time go by in which everything goes on as it does now."""
        self.t += clocks
        self.last += clocks
        self.groups = [g + clocks for g in self.groups]
        self.ready = {k: v + clocks for k, v in self.ready.items()}
        if self.since is not None:
            self.since += clocks


@dataclass
class Level:
    """One execution of a loop body, or of the kernel's. own: clocks of each role alone; work: of all instances of all roles. `inner`,
    `inner_own`, `inner_work`: the part in loops where roles meet; cover: products of other instances behind which a role's steps outside
    those hide. uses: how often each copy ring is filled. time and by: what it takes and what decides that."""

    own: dict[str, float] = field(default_factory=dict)
    work: Work = field(default_factory=lambda: defaultdict(float))
    inner: float = 0.0
    inner_own: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    inner_work: Work = field(default_factory=lambda: defaultdict(float))
    cover: dict[str, float] = field(default_factory=dict)
    uses: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    time: float = 0.0
    by: str = ""


class Schedule:
    """The walk. `top.time` is one CTA from its first to its last instruction in clocks while `resident` CTAs of an SM run alike.

    env: scalars by slot, with the extents and CTA 0; shares: per op the part of its L2 traffic that is distinct between CTAs.
    """

    def __init__(
        self, bound: B.BoundKernel, machine: Machine, env: list[Any], resident: int, shares: Mapping[int, float]
    ) -> None:
        self.bound, self.m, self.env, self.resident, self.shares = bound, machine, env, resident, shares
        self.sites: dict[tuple[int, int, str], float] = defaultdict(float)
        self._clocks = {r.name: Clock(_WARPS[r.unit]) for r in bound.roles}
        self._compiled: dict[int, Any] = {}
        self._works: dict[tuple[int, int], Work] = {}
        self._meets = {id(s): holds_roles(s.body) for s in B.walk(bound.body) if isinstance(s, B.For)}
        self._rings = self._find_rings()
        self._law = machine.law(resident * self._groups())
        self._factor = 1.0
        self._level = Level()
        self.top = self._run_level(bound.body)

    def value(self, x: Any) -> Any:
        """A uniform expression in the current environment; what depends on data is 0."""
        f = self._compiled.get(id(x))
        if f is None:
            f = self._compiled[id(x)] = compile_sx(x)
        try:
            return f(self.env)
        except (TypeError, ZeroDivisionError, OverflowError):
            return 0

    # ---- levels -----------------------------------------------------------------------------------------------------

    def _run_level(self, body: tuple[B.Stmt, ...]) -> Level:
        outer, level = self._level, Level()
        self._level = level
        begin = {n: c.flush() for n, c in self._clocks.items()}
        for c in self._clocks.values():
            c.held = 0.0
        self._run(body, None, self._clocks)
        level.own = {n: c.flush() - begin[n] for n, c in self._clocks.items()}
        self._settle(level)
        self._level = outer
        return level

    def _settle(self, level: Level) -> None:
        slowest = max(level.own, key=lambda n: level.own[n])
        level.time, by = level.own[slowest], f"role {slowest}"
        if level.inner:
            beside = self._beside(level)
            if level.inner + beside > level.time:
                level.time, by = level.inner + beside, level.by
        asked, which = self.asked(level.work)
        if asked * self.resident > level.time:
            level.time, by = asked * self.resident, which
        held = max(c.held for c in self._clocks.values())
        for ring, uses in level.uses.items():
            stages, latency = self._rings[ring]
            trip = uses * (latency + min(level.time, held)) / stages
            if trip > level.time:
                level.time, by = trip, "copy latency"
        level.by = by

    def _beside(self, level: Level) -> float:
        """What the critical role, the one with most to do in the inner loops, adds outside them. All its instances are there at about the
        same time, so they share the pipes; the products that the last of them still run cover a part."""
        critical = max(level.inner_own, key=lambda n: level.inner_own[n])
        alone = level.own[critical] - level.inner_own[critical]
        together = max(level.work[p] - level.inner_work[p] for p in PIPES)
        return max(0.0, alone - level.cover.get(critical, 0.0), together - level.cover.get(critical, 0.0))

    def asked(self, work: Work) -> tuple[float, str]:
        """Clocks of the most wanted resource of the SM, and its name. Instructions slow the products of other warpgroups down
        (`Machine.law`)."""
        m = self.m
        asks = {r: work.get(r, 0.0) for r in SHARED}
        if asks["tensor"] > 0:
            free, price = self._law
            asks["tensor"] += price * max(0.0, asks["issue"] - free * asks["tensor"])
        asks["l2"] = work.get("l2", 0.0) / (m.l2 / (m.sms * m.clock_hz))
        asks["port"] = work.get("port", 0.0) / m.port
        which = max(asks, key=lambda r: asks[r])
        return asks[which], which

    def _meet(self, s: B.For, trips: int, start: int, step: int) -> None:
        """A loop outside role blocks: the first iteration, then all others like the second."""
        level = self._level
        before = {n: c.flush() for n, c in self._clocks.items()}
        self.env[s.var.slot] = start
        first = steady = self._run_level(s.body)
        spent, own, work = first.time, dict(first.own), defaultdict(float, first.work)
        if trips > 1:
            rest = trips - 1
            self.env[s.var.slot] = start + max(1, trips // 2) * step
            with_factor, self._factor = self._factor, self._factor * rest
            steady = self._run_level(s.body)
            self._factor = with_factor
            spent += rest * steady.time
            for n in own:
                own[n] += rest * steady.own[n]
            for r, v in steady.work.items():
                work[r] += rest * v
        for n, c in self._clocks.items():
            c.skip(before[n] + own[n] - c.t)
            level.inner_own[n] += own[n]
        level.inner += spent
        level.by = steady.by
        for r, v in work.items():
            level.inner_work[r] += v
            level.work[r] += v
        for role in self.bound.roles:
            level.cover[role.name] = (role.count - 1) / role.count * steady.work.get("tensor", 0.0)

    # ---- statements -------------------------------------------------------------------------------------------------

    def _run(self, body: tuple[B.Stmt, ...], role: B.Role | None, clocks: dict[str, Clock]) -> None:
        for s in body:
            self._step(s, role, clocks)

    def _step(self, s: B.Stmt, role: B.Role | None, clocks: dict[str, Clock]) -> None:
        if isinstance(s, (B.Let, B.Op)):
            self._execute(s, role, clocks)
        elif isinstance(s, B.SetScalar):
            self.env[s.var.slot] = self.value(s.value)
        elif isinstance(s, B.RoleBlock):
            if s.instance is not None:
                self.env[s.instance.slot] = 0
            self._run(s.body, s.role, {s.role.name: self._clocks[s.role.name]})
        elif isinstance(s, B.For):
            start, stop, step = self.value(s.start), self.value(s.stop), max(1, self.value(s.step))
            trips = max(0, -(-(stop - start) // step))
            if trips and self._meets[id(s)]:
                self._meet(s, trips, start, step)
            elif trips:
                self._private(s, role, clocks, trips, start, step)
        elif isinstance(s, B.While):
            self._run((*s.prelude, *s.body), role, clocks)
        elif isinstance(s, B.If):
            self._run(s.then if self.value(s.cond) else s.orelse, role, clocks)
        elif isinstance(s, (B.ElectedBlock, B.WarpsBlock)):
            if isinstance(s, B.WarpsBlock) and s.warp is not None:
                self.env[s.warp.slot] = 0
            self._run(s.body, role, clocks)

    def _private(
        self, s: B.For, role: B.Role | None, clocks: dict[str, Clock], trips: int, start: int, step: int
    ) -> None:
        """A loop of one role, or of kernel-level ops only: two iterations are walked, the rest is like the second."""
        self.env[s.var.slot] = start
        self._run(s.body, role, clocks)
        if trips == 1:
            return
        level, rest = self._level, trips - 2
        begin = {n: c.flush() for n, c in clocks.items()}
        counted: list[tuple[dict[Any, float], dict[Any, float]]] = [
            (level.work, dict(level.work)),
            (level.uses, dict(level.uses)),
        ]
        self.env[s.var.slot] = start + max(1, trips // 2) * step
        factor, self._factor = self._factor, self._factor * (trips - 1)
        self._run(s.body, role, clocks)
        self._factor = factor
        for n, c in clocks.items():
            c.skip(rest * (c.flush() - begin[n]))
        for table, then in counted:
            for key in list(table):
                table[key] += rest * (table[key] - then.get(key, 0.0))

    # ---- ops --------------------------------------------------------------------------------------------------------

    def _execute(self, s: B.Let | B.Op, role: B.Role | None, clocks: dict[str, Clock]) -> None:
        op = s if isinstance(s, B.Op) else None
        for r in op.results if op is not None else ():
            if isinstance(r, B.ScalarVar):
                self.env[r.slot] = 0
        unit = _WARPS[role.unit] if role is not None else 1
        narrow = op is not None and op.unit in ("T", "W") and unit == 4
        warps = 1 if narrow else unit
        work = self._work(s, warps)
        # of a warpgroup's warps all four execute a warp op, one thread a thread op
        count = (role.count if role is not None else 1) * (4 if narrow and op is not None and op.unit == "W" else 1)
        for r, v in work.items():
            self._level.work[r] += v * count
        spent = max((work.get(r, 0.0) for r in SHARED), default=0.0)
        name = s.name if isinstance(s, B.Op) else s.frag.name
        self.sites[(s.span.line, s.span.col, name)] += spent * count * self._factor
        for clock in clocks.values():
            self._advance(clock, s, op, work)

    def _work(self, s: B.Let | B.Op, warps: int) -> Work:
        work = self._works.get((id(s), warps))
        if work is None:
            if isinstance(s, B.Op):
                work = op_work(s, self.m, self.bound.launch.cluster, warps)
                if "l2" in work:
                    there = self._there(s)
                    work["port"] *= there
                    work["l2"] *= there * self.shares.get(id(s), 1.0)
            else:
                work = let_work(s, self.m, warps)
            self._works[(id(s), warps)] = work
        return work

    def _there(self, op: B.Op) -> float:
        """The part of a global region that exists where the op is first executed: what lies outside is not moved."""
        region = next((x for x in op.operands.values() if isinstance(x, B.Region)), None)
        part = 1.0
        for dim, extent in zip(region.dims, region.tensor.extents, strict=True) if region is not None else ():
            if dim.kind == "slice":
                end = self.value(extent) if dim.stop is None else min(self.value(extent), self.value(dim.stop))
                part *= min(1.0, max(0.0, end - self.value(dim.start)) / dim.size)
        return part

    def _advance(self, c: Clock, s: B.Let | B.Op, op: B.Op | None, work: Work) -> None:
        for frag in reads(s):
            when = c.ready.pop(id(frag), None)
            if when is not None:
                c.until(when)
        name = op.name if op is not None else ""
        for p in (*PIPES, "smem"):
            # shared operands of a product are read by the tensor cores, copies move by themselves
            if p in work and not (p == "smem" and (name in ASYNCHRONOUS or name == "wgmma")):
                c.pending[p] += work[p]
        if op is not None:
            self._complete(c, op, name, work)

    def _complete(self, c: Clock, op: B.Op, name: str, work: Work) -> None:
        latency, o = self.m.latency, op.operands
        if name == "wgmma":
            c.last = max(c.flush(), c.last) + work["tensor"]
        elif name == "wgmma_commit":
            c.groups.append(c.last)
        elif name == "wgmma_wait":
            k = int(op.attrs["k"])
            if len(c.groups) > k:
                c.until(c.groups[-k - 1] + latency["wgmma"])
                del c.groups[: len(c.groups) - k]
        elif name == "mma":
            c.t = c.flush() + work["tensor"] * SCHEDULERS / min(SCHEDULERS, c.warps)
        elif name in ("load", "ldmatrix", "load_scalar"):
            source = o["src"] if "src" in o else o["view"]
            delay = latency["smem_load" if isinstance(source, B.View) else "load"]
            for r in op.results:
                c.ready[id(r)] = c.flush() + delay
        elif name.startswith(("row_", "col_")) or name in ("pick", "shift"):
            c.t = c.flush() + latency["reduce"]
        elif name == "wait":
            c.t = c.flush() + latency["passed"]
            if id(o["bar"].barrier) in self._rings:
                c.since = c.t
        elif name == "arrive" and c.since is not None:
            c.held = max(c.held, c.flush() - c.since)
            c.since = None
        elif name == "expect":
            if id(o["bar"].barrier) in self._rings:
                self._level.uses[id(o["bar"].barrier)] += 1.0
        elif name == "sync":
            scope = op.attrs["scope"]
            c.t = c.flush() + latency[scope if scope in ("cta", "cluster") else "named"]
        elif name == "fence_async":
            c.t = c.flush() + latency["fence"]
        elif name == "bulk_wait":
            c.t = c.flush() + latency["tma"]

    def _groups(self) -> int:
        """Warpgroups of a CTA that multiply."""
        multiply = {s.role for s in B.walk(self.bound.body) if isinstance(s, B.Op) and s.name == "wgmma"}
        return sum(r.count for r in self.bound.roles if r.name in multiply)

    def _find_rings(self) -> dict[int, tuple[int, float]]:
        """Barriers that bulk copies signal: (stages, clocks of a copy and of handing its slot over twice)."""
        around = self.m.latency["tma"] + 2 * self.m.latency["hop"]
        return {
            id(bar): (bar.stages, around)
            for s in B.walk(self.bound.body)
            if isinstance(s, B.Op) and (use := s.operands.get("signal")) is not None and (bar := use.barrier).stages
        }


def holds_roles(body: tuple[B.Stmt, ...]) -> bool:
    """Whether roles meet in this body."""
    return any(isinstance(s, B.RoleBlock) for s in B.walk(body))


def reads(s: B.Let | B.Op) -> list[B.Fragment]:
    """Fragments that a statement reads."""
    found: list[B.Fragment] = []
    stack: list[Any] = [s.value] if isinstance(s, B.Let) else list(s.operands.values())
    while stack:
        x = stack.pop()
        if isinstance(x, B.VFrag):
            found.append(x.frag)
        elif isinstance(x, B.VOp):
            stack.extend(x.args)
        elif isinstance(x, B.VExpand):
            stack.append(x.x)
        elif isinstance(x, B.Region):
            stack.extend(d.rows for d in x.dims if d.rows is not None)
    return found


def _alone(op: B.Op, region: B.Region) -> bool:
    """Whether no two CTAs share the traffic: every atomic is done for itself, and data decide where a gathered row lies."""
    return op.name.startswith("atomic_") or any(d.kind == "gather" for d in region.dims)


def shares(bound: B.BoundKernel, env: list[Any], ctas: int) -> dict[int, float]:
    """Per op that reads global memory: distinct places over CTAs that ask for one at the same time (the first `ctas` of the grid, each
    in its first tile). env is left as it was."""
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
                out.append((s, relevant(s.body)))
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
                places[id(s)].add(tuple(value(d.start) for d in inner.dims))
            elif isinstance(s, B.If):
                run(inner[0] if value(s.cond) else inner[1])
            else:
                if isinstance(s, B.For):
                    env[s.var.slot] = value(s.start)
                run(inner)

    items = relevant(bound.body)
    for i in range(ctas):
        env[:] = kept
        env[names["cta"].slot] = i
        env[names["cluster_rank"].slot] = i % bound.launch.cluster
        env[names["cluster_id"].slot] = i // bound.launch.cluster
        run(items)
    env[:] = kept
    return {op: len(found) / ctas for op, found in places.items()} if ctas else {}
