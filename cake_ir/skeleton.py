"""The control skeleton: what every agent executes, op by op, for one concrete shape.

A kernel is compiled once into closures over an environment list; `Skeleton.run` then gives one event list per role
instance of each traced CTA. Index arithmetic, loops and integer loads are executed; other data is not: a branch or loop
that depends on it follows the oracle's choice. Kernel-level statements are executed by every instance of every role.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cake_ir.arithmetic import compile_sx
from cake_ir.bound import (
    Assume,
    BarUse,
    BoundKernel,
    ElectedBlock,
    For,
    If,
    Let,
    Op,
    Region,
    Role,
    RoleBlock,
    ScalarVar,
    SConst,
    SetScalar,
    SOp,
    SVar,
    View,
    WarpsBlock,
    While,
    sx_vars,
    walk,
)
from cake_ir.effort import spend
from cake_ir.events import (
    SETTLED,
    AgentTrace,
    AssumeViolated,
    BarAt,
    DataOracle,
    Endless,
    Event,
    RegionAt,
    SkeletonLimit,
    ViewAt,
    fragments,
    steps,
    tainted_scalars,
    tracked_fragments,
)
from cake_ir.memo import memo

__all__ = [
    "AgentTrace",
    "AssumeViolated",
    "BarAt",
    "DataOracle",
    "Event",
    "RegionAt",
    "Skeleton",
    "SkeletonLimit",
    "ViewAt",
    "compile_skeleton",
    "fragments",
    "tracked_fragments",
]

HUGE = 1 << 512
"""Numbers beyond it end a run: no index of a kernel is one, and arithmetic with them has no bound on its time."""
EVENT_LIMIT = 60_000
"""Events and loop steps of one run; more makes the shape undecided, never silently cut."""

_SX = (SConst, SVar, SOp)


class _Run:
    """State of one agent's execution."""

    __slots__ = ("base", "budget", "cta", "env", "oracle", "out", "path", "rounds")

    def __init__(self, env: list[Any], cta: int, base: int, oracle: DataOracle, budget: list[int]) -> None:
        self.env, self.cta, self.base, self.oracle, self.budget = env, cta, base, oracle, budget
        self.out: list[Event] = []
        self.path: list[int] = []


Step = Callable[[_Run], None]


class Skeleton:
    """A compiled kernel. `async_fragments`: targets of asynchronous register writes and poison; only Lets that touch
    one of them make events. `data_control`: statements whose branch depends on data."""

    def __init__(self, bound: BoundKernel) -> None:
        self.bound = bound
        self.ctas = compile_sx(bound.launch.ctas)
        self.tainted = tainted_scalars(bound)
        self.data_control = [s for s in walk(bound.body) if isinstance(s, (If, While)) and self._depends(s.cond)]
        self.int_loads = [
            s for s in walk(bound.body) if isinstance(s, Op) and s.name == "load_scalar" and not self._result_tainted(s)
        ]
        self.tracked = tracked_fragments(bound)
        self._where = [compile_sx(w.cond) for w in bound.where]
        self._bodies = {role: self._block(bound.body, role, False) for role in bound.roles}
        self._extent = {t: tuple(compile_sx(e) for e in t.extents) for t in bound.tensors}
        self._number = {t: i for i, t in enumerate(bound.tensors)}

    # ---- running

    def environment(self, dims: dict[str, int], args: dict[str, float], sms: int) -> list[Any]:
        """The launch-wide part of the environment."""
        env: list[Any] = [0] * (len(self.bound.scalars) + 1)
        for name, var in self.bound.dims.items():
            env[var.slot] = dims[name]
        for var in self.bound.args:
            env[var.slot] = args.get(var.name, dims.get(var.name, 1))
        if "sms" in self.bound.builtins:
            env[self.bound.builtins["sms"].slot] = sms
        return env

    def admits(self, env: list[Any]) -> bool:
        """Whether `where` holds."""
        try:
            return all(w(env) for w in self._where)
        except ZeroDivisionError:
            return False

    def cta_count(self, env: list[Any]) -> int:
        """CTAs of the launch."""
        return int(self.ctas(env))

    def place(self, env: list[Any], cta: int, count: int) -> None:
        """Writes what a CTA of a launch of `count` knows of its place into the environment."""
        cluster = self.bound.launch.cluster
        for name, value in (
            ("cta", cta),
            ("cta_count", count),
            ("cluster_rank", cta % cluster),
            ("cluster_id", cta // cluster),
            ("cluster_count", max(1, count // cluster)),  # a grid below one cluster is a finding of its own
        ):
            if name in self.bound.builtins:
                env[self.bound.builtins[name].slot] = value

    def run(
        self,
        dims: dict[str, int],
        args: dict[str, float] | None = None,
        sms: int = 2,
        oracle: DataOracle | None = None,
        ctas: tuple[int, ...] | None = None,
        limit: int = EVENT_LIMIT,
        instances: int | None = None,
    ) -> list[AgentTrace]:
        """Traces of the role instances (the first `instances` of each role) of the given CTAs (all when None).
        Raises SkeletonLimit, AssumeViolated, and
        ValueError when `where` does not hold for the shape."""
        bound = self.bound
        env = self.environment(dims, args or {}, sms)
        if not self.admits(env):
            raise ValueError("the shape violates `where`")
        count = self.cta_count(env)
        budget = [limit]
        traces = []
        for cta in range(count) if ctas is None else ctas:
            self.place(env, cta, count)
            for role in bound.roles:
                for instance in range(role.count if instances is None else min(instances, role.count)):
                    left = budget[0]
                    try:
                        events = self.agent(env, cta, role, instance, oracle, budget)
                    finally:
                        spend(1 + left - budget[0])
                    traces.append(AgentTrace(cta, role, instance, events))
        return traces

    def agent(
        self, env: list[Any], cta: int, role: Role, instance: int, oracle: DataOracle | None, budget: list[int]
    ) -> list[Event]:
        """The events of one role instance of a CTA that `place` has put into the environment (which stays as it is).
        budget[0]: events and loop steps left, counted down; raises SkeletonLimit below zero, and AssumeViolated."""
        run = _Run(env.copy(), cta, cta - cta % self.bound.launch.cluster, oracle or DataOracle(), budget)
        run.env[-1] = instance
        for step in self._bodies[role]:
            step(run)
        return run.out

    # ---- compiling

    def _depends(self, x: Any) -> bool:
        return isinstance(x, _SX) and bool(sx_vars(x) & self.tainted)

    def _result_tainted(self, op: Op) -> bool:
        return any(r in self.tainted for r in op.results)

    def _block(self, body: tuple[Any, ...], role: Role, warp: bool) -> tuple[Step, ...]:
        steps: list[Step] = []
        for stmt in body:
            step = self._stmt(stmt, role, warp)
            if step is not None:
                steps.append(step)
        return tuple(steps)

    def _stmt(self, s: Any, role: Role, warp: bool) -> Step | None:
        if isinstance(s, Op):
            return self._op(s, role)
        if isinstance(s, SetScalar):
            if s.var in self.tainted:
                return None
            return set_scalar(s)
        if isinstance(s, Let):
            if s.frag not in self.tracked and not (fragments(s.value) & self.tracked):
                return None

            def let(c: _Run) -> None:
                c.out.append(Event(s, {}, False, tuple(c.path)))

            return let
        if isinstance(s, For):
            return self._for(s, role, warp)
        if isinstance(s, While):
            return self._while(s, role, warp)
        if isinstance(s, If):
            return self._if(s, role, warp)
        if isinstance(s, RoleBlock):
            return self._role(s, role, warp)
        if isinstance(s, ElectedBlock):
            return _sequence(self._block(s.body, role, warp))
        if isinstance(s, WarpsBlock):
            return self._warps(s, role)
        if isinstance(s, Assume):
            return self._assume(s)
        raise TypeError(f"unknown statement {type(s).__name__}")

    def _role(self, s: RoleBlock, role: Role, warp: bool) -> Step | None:
        if s.role is not role:
            return None
        body = self._block(s.body, role, warp)
        if s.instance is None:
            return _sequence(body)
        slot = s.instance.slot

        def block(c: _Run) -> None:
            c.env[slot] = c.env[-1]
            for step in body:
                step(c)

        return block

    def _for(self, s: For, role: Role, warp: bool) -> Step | None:
        body = self._block(s.body, role, warp)
        if not body:
            return None
        start, stop, step_by, slot = compile_sx(s.start), compile_sx(s.stop), compile_sx(s.step), s.var.slot

        def loop(c: _Run) -> None:
            env, path, budget = c.env, c.path, c.budget
            path.append(0)
            rounds = steps(start(env), stop(env), step_by(env), s.span)
            i = rounds.start
            try:
                for i in rounds:
                    env[slot] = i
                    path[-1] = i
                    for step in body:
                        step(c)
                    budget[0] -= 1
                    if budget[0] < 0:
                        raise SkeletonLimit
            except SkeletonLimit as fault:
                fault.inside(s.span, 1 + (i - rounds.start) // rounds.step)
                raise
            path.pop()

        return loop

    def _while(self, s: While, role: Role, warp: bool) -> Step:
        prelude, body = self._block(s.prelude, role, warp), self._block(s.body, role, warp)
        by_data = self._depends(s.cond)
        cond = compile_sx(s.cond)

        def loop(c: _Run) -> None:
            c.path.append(0)
            rounds, before = 0, None
            try:
                while True:
                    for step in prelude:
                        step(c)
                    if not (rounds < c.oracle.rounds if by_data else cond(c.env)):
                        break
                    if rounds >= SETTLED and not by_data:
                        if c.env == before:
                            raise Endless
                        before = c.env.copy()
                    c.path[-1] = rounds
                    for step in body:
                        step(c)
                    rounds += 1
                    c.budget[0] -= 1
                    if c.budget[0] < 0:
                        raise SkeletonLimit
            except SkeletonLimit as fault:
                fault.inside(s.span, rounds)
                raise
            c.path.pop()

        return loop

    def _if(self, s: If, role: Role, warp: bool) -> Step | None:
        then, orelse = self._block(s.then, role, warp), self._block(s.orelse, role, warp)
        if not then and not orelse:
            return None
        by_data = self._depends(s.cond)
        cond = compile_sx(s.cond)

        def branch(c: _Run) -> None:
            for step in then if (c.oracle.rounds > 0 if by_data else cond(c.env)) else orelse:
                step(c)

        return branch

    def _warps(self, s: WarpsBlock, role: Role) -> Step:
        body = self._block(s.body, role, True)
        slot = s.warp.slot if s.warp else None

        def block(c: _Run) -> None:
            outer, env = c.out, c.env
            children: list[list[Event]] = []
            for w in range(4):
                c.env = env.copy()
                if slot is not None:
                    c.env[slot] = w
                c.out = []
                for step in body:
                    step(c)
                children.append(c.out)
            c.out, c.env = outer, env
            outer.append(Event(s, {}, False, tuple(c.path), children))

        return block

    def _assume(self, s: Assume) -> Step | None:
        if not isinstance(s.cond, _SX) or self._depends(s.cond):
            return None
        cond = compile_sx(s.cond)

        def check(c: _Run) -> None:
            if not cond(c.env):
                raise AssumeViolated

        return check

    def _op(self, op: Op, role: Role) -> Step:
        parts = [(name, ev) for name, value in op.operands.items() if (ev := self._operand(value)) is not None]
        thread = op.unit == "T" or role.unit == "thread"
        setters = self._results(op)

        def emit(c: _Run) -> None:
            vals = {name: ev(c) for name, ev in parts}
            c.out.append(Event(op, vals, thread, tuple(c.path)))
            c.budget[0] -= 1
            if c.budget[0] < 0:
                raise SkeletonLimit
            for setter in setters:
                setter(c, vals)

        return emit

    def _results(self, op: Op) -> list[Callable[[_Run, dict[str, Any]], None]]:
        setters: list[Callable[[_Run, dict[str, Any]], None]] = []
        for r in op.results:
            if not isinstance(r, ScalarVar) or r in self.tainted:
                continue
            slot = r.slot
            if op.name == "load_scalar":

                def load(c: _Run, vals: dict[str, Any], slot: int = slot) -> None:
                    at = vals["src"]
                    index = tuple(d[0] for d in at.dims if d is not None)
                    extents = self._extent[at.region.tensor]
                    extent = extents[-1](c.env) if extents else 1
                    c.env[slot] = c.oracle.value(index[-1] if index else 0, extent, self._number[at.region.tensor])

                setters.append(load)
            elif op.name == "row_bits":

                def bits(c: _Run, vals: dict[str, Any], slot: int = slot) -> None:
                    c.env[slot] = (0, 1, 0x8001)[min(2, c.oracle.rounds)]

                setters.append(bits)
            else:

                def zero(c: _Run, vals: dict[str, Any], slot: int = slot) -> None:
                    c.env[slot] = 0

                setters.append(zero)
        return setters

    def _operand(self, value: Any) -> Callable[[_Run], Any] | None:
        if isinstance(value, View):
            return _view(value)
        if isinstance(value, BarUse):
            return _bar(value)
        if isinstance(value, Region):
            return _region(value)
        if isinstance(value, _SX):
            if self._depends(value):
                return None
            f = compile_sx(value)
            return lambda c: f(c.env)
        if isinstance(value, tuple) and value and all(isinstance(v, _SX) for v in value):
            fs = [compile_sx(v) for v in value]
            return lambda c: tuple(f(c.env) for f in fs)
        if isinstance(value, str):
            return lambda c: value
        return None


def set_scalar(s: SetScalar) -> Callable[[Any], None]:
    """The step of an assignment. Raises SkeletonLimit for a number that no machine word holds and that only grows on."""
    slot, value = s.var.slot, compile_sx(s.value)

    def assign(c: Any) -> None:
        c.env[slot] = value(c.env)

    def assign_bounded(c: Any) -> None:
        v = c.env[slot] = value(c.env)
        if v.__class__ is int and not -HUGE < v < HUGE:
            raise SkeletonLimit

    return assign_bounded if grows(s.value) else assign


def grows(x: Any) -> bool:
    """Whether an expression multiplies or shifts by something unknown."""
    if not isinstance(x, SOp):
        return False
    return (x.op in ("*", "<<") and not isinstance(x.args[1], SConst)) or any(grows(a) for a in x.args)


def _sequence(body: tuple[Step, ...]) -> Step | None:
    if not body:
        return None
    if len(body) == 1:
        return body[0]

    def run(c: _Run) -> None:
        for step in body:
            step(c)

    return run


def _view(v: View) -> Callable[[_Run], ViewAt]:
    stages, rows, cols = v.buffer.stages, v.rows, v.cols
    use = compile_sx(v.use) if v.use is not None else None
    row0, col0 = compile_sx(v.row0), compile_sx(v.col0)
    rank = compile_sx(v.rank) if v.rank is not None else None

    def at(c: _Run) -> ViewAt:
        env = c.env
        n = use(env) if use is not None else 0
        r, k = row0(env), col0(env)
        return ViewAt(v, c.cta if rank is None else c.base + rank(env), n, n % stages, r, r + rows, k, k + cols)

    return at


def _bar(b: BarUse) -> Callable[[_Run], BarAt]:
    barrier, stages = b.barrier, b.barrier.stages
    use = compile_sx(b.use)
    rank = compile_sx(b.rank) if b.rank is not None else None

    def at(c: _Run) -> BarAt:
        n = use(c.env)
        return BarAt(barrier, c.cta if rank is None else c.base + rank(c.env), n, n % stages, n // stages)

    return at


def _region(r: Region) -> Callable[[_Run], RegionAt]:
    parts = []
    for d, extent in zip(r.dims, r.tensor.extents, strict=False):
        parts.append(
            (
                d.kind,
                compile_sx(d.start),
                compile_sx(d.stop) if d.stop is not None else None,
                d.size,
                compile_sx(extent),
            )
        )

    def at(c: _Run) -> RegionAt:
        env = c.env
        dims: list[tuple[int, int] | None] = []
        for kind, start, stop, size, extent in parts:
            if kind == "gather":
                dims.append(None)
                continue
            a = start(env)
            b = min(a + size, extent(env)) if kind == "slice" else a + 1
            if stop is not None:
                b = min(b, stop(env))
            dims.append((a, b))
        return RegionAt(r, tuple(dims))

    return at


def compile_skeleton(bound: BoundKernel) -> Skeleton:
    """The skeleton of a kernel, compiled once per bound object."""
    return memo(bound, "skeleton", lambda: Skeleton(bound))
