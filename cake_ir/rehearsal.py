"""How often every op of a kernel runs on a shape, without running it: what the choice of witness shapes asks.

The control skeleton is compiled once more, to counters only: ops between two control statements are one block with one
count, and a loop whose rounds are all alike (nothing that decides a loop, a branch or an assumption changes in it) is run
once and multiplied. Counts, budget and faults are those of `Skeleton.run` with the same arguments; the work is the size of
the text times the rounds of those loops only that are not alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
from cake_ir.events import SETTLED, AssumeViolated, DataOracle, Endless, SkeletonLimit, fragments, steps
from cake_ir.memo import memo
from cake_ir.skeleton import Skeleton, compile_skeleton, grows, set_scalar

_SX = (SConst, SVar, SOp)
_SAFE = frozenset(
    ("+", "-", "*", "&", "|", "^", "<", "<=", ">", ">=", "==", "!=", "min", "max", "neg", "not", "~", "lsb", "abs")
) | {"and", "or", "select", "fma", "cast"}
"""Operators that give a value for any integers."""


class _Run:
    """State of a rehearsal. left: budget; direct: whether the innermost loop round has run a node of its own; steps: one
    more than the largest value of an innermost loop variable at any node."""

    __slots__ = ("base", "counts", "cta", "direct", "env", "left", "oracle", "steps")

    def __init__(self, oracle: DataOracle, left: int) -> None:
        self.oracle, self.left = oracle, left
        self.env: list[Any] = []
        self.counts: list[int] = []
        self.cta = self.base = self.steps = 0
        self.direct = False


Step = Callable[[_Run], None]


class _Block:
    """Ops in a row. cost: budget they take; node: whether they make an event at all."""

    __slots__ = ("cost", "index", "node", "ops")

    def __init__(self, cost: int = 0, node: bool = False, op: Op | None = None) -> None:
        self.cost, self.node = cost, node
        self.ops = [] if op is None else [op]
        self.index = -1


@dataclass(frozen=True)
class Tally:
    """What a rehearsal counted: per agent its blocks with their executions, and loop steps as `steps` above."""

    agents: tuple[tuple[list[_Block], list[int]], ...]
    steps: int

    def executed(self) -> set[int]:
        """Sites of the ops that ran."""
        return {
            op.site for blocks, counts in self.agents for b, n in zip(blocks, counts, strict=True) if n for op in b.ops
        }

    def most(self, weights: dict[int, int]) -> int:
        """The largest number of executions of one op by one agent, times the weight of its site (0 where it has none)."""
        most = 0
        for blocks, counts in self.agents:
            found: dict[int, int] = {}
            for b, n in zip(blocks, counts, strict=True):
                if n:
                    for op in b.ops:
                        if op.site in weights:
                            found[op.site] = found.get(op.site, 0) + n * weights[op.site]
            most = max(most, *found.values()) if found else most
        return most


class Rehearsal:
    """A kernel compiled to counters."""

    def __init__(self, bound: BoundKernel) -> None:
        self.bound = bound
        self.skeleton: Skeleton = compile_skeleton(bound)
        self.needed = self._needed()
        self._blocks: list[_Block] = []
        self._bodies: dict[Role, tuple[list[Step], list[_Block]]] = {}
        for role in bound.roles:
            self._blocks = []
            steps = self._join(self._items(bound.body, role))
            self._bodies[role] = steps, self._blocks

    def run(
        self,
        dims: dict[str, int],
        sms: int,
        oracle: DataOracle,
        ctas: tuple[int, ...],
        limit: int,
        instances: int | None = None,
    ) -> Tally:
        """Counts for the given CTAs. Raises what `Skeleton.run` raises with these arguments."""
        bound, skeleton = self.bound, self.skeleton
        env = skeleton.environment(dims, {}, sms)
        if not skeleton.admits(env):
            raise ValueError("the shape violates `where`")
        count = skeleton.cta_count(env)
        run = _Run(oracle, limit)
        agents = []
        for cta in ctas:
            skeleton.place(env, cta, count)
            run.cta, run.base = cta, cta - cta % bound.launch.cluster
            for role in bound.roles:
                body, blocks = self._bodies[role]
                for instance in range(role.count if instances is None else min(instances, role.count)):
                    run.env = env.copy()
                    run.env[-1] = instance
                    run.counts = [0] * len(blocks)
                    spend(1 + len(blocks) // 8)
                    for step in body:
                        step(run)
                    agents.append((blocks, run.counts))
        return Tally(tuple(agents), run.steps)

    # ---- what control reads

    def _needed(self) -> set[ScalarVar]:
        """Scalars that decide loops, branches, assumptions or whether an operand has a value at all."""
        depends = self.skeleton._depends
        found: set[ScalarVar] = set()
        loads: list[tuple[Op, set[ScalarVar]]] = []
        sets: list[SetScalar] = []
        for s in walk(self.bound.body):
            if isinstance(s, For):
                for x in (s.start, s.stop, s.step):
                    found |= sx_vars(x)
            elif isinstance(s, (If, While, Assume)):
                if isinstance(s.cond, _SX) and not depends(s.cond):
                    found |= sx_vars(s.cond)
            elif isinstance(s, SetScalar):
                sets.append(s)
                if _may_fail(s.value) or grows(s.value):
                    found.add(s.var)
            elif isinstance(s, Op):
                reads = set().union(*(sx_vars(x) for v in s.operands.values() for x in _parts(v)), set())
                if any(_may_fail(x) for v in s.operands.values() for x in _parts(v)):
                    found |= reads
                if any(isinstance(r, ScalarVar) for r in s.results):
                    loads.append((s, reads))
        size = -1
        while size != len(found):
            size = len(found)
            for s in sets:
                if s.var in found:
                    found |= sx_vars(s.value)
            for op, reads in loads:
                if any(r in found for r in op.results):
                    found |= reads
        return found

    def _alike(self, body: tuple[Any, ...], var: ScalarVar) -> bool:
        """Whether no round changes anything that another round's control reads."""
        if var in self.needed:
            return False
        for s in walk(body):
            if isinstance(s, SetScalar) and s.var in self.needed and s.var not in self.skeleton.tainted:
                return False
            if isinstance(s, Op) and any(r in self.needed and r not in self.skeleton.tainted for r in s.results):
                return False
        return True

    # ---- compiling

    def _items(self, body: tuple[Any, ...], role: Role) -> list[_Block | Step]:
        return [x for s in body if (x := self._stmt(s, role)) is not None]

    def _join(self, items: list[_Block | Step]) -> list[Step]:
        """Steps, with the ops of neighbouring blocks under one count."""
        steps: list[Step] = []
        last: _Block | None = None
        for item in items:
            if isinstance(item, _Block):
                if last is None:
                    last = item
                    last.index = len(self._blocks)
                    self._blocks.append(last)
                    steps.append(_counted(last))
                else:
                    last.ops += item.ops
                    last.cost += item.cost
                    last.node |= item.node
            else:
                last = None
                steps.append(item)
        return steps

    def _stmt(self, s: Any, role: Role) -> _Block | Step | None:
        skeleton = self.skeleton
        if isinstance(s, Op):
            return self._op(s)
        if isinstance(s, SetScalar):
            if s.var in skeleton.tainted:
                return None
            if s.var not in self.needed:
                return _Block()
            return set_scalar(s)
        if isinstance(s, Let):
            if s.frag not in skeleton.tracked and not (fragments(s.value) & skeleton.tracked):
                return None
            return _Block(0, True)
        if isinstance(s, For):
            return self._for(s, role)
        if isinstance(s, While):
            return self._while(s, role)
        if isinstance(s, If):
            return self._if(s, role)
        if isinstance(s, RoleBlock):
            return self._role(s, role)
        if isinstance(s, ElectedBlock):
            items = self._items(s.body, role)
            return _sequence(self._join(items)) if items else None
        if isinstance(s, WarpsBlock):
            return self._warps(s, role)
        if isinstance(s, Assume):
            if not isinstance(s.cond, _SX) or skeleton._depends(s.cond):
                return None
            cond = compile_sx(s.cond)

            def check(c: _Run) -> None:
                if not cond(c.env):
                    raise AssumeViolated

            return check
        raise TypeError(f"unknown statement {type(s).__name__}")

    def _op(self, op: Op) -> _Block | Step:
        fails = any(_may_fail(x) for v in op.operands.values() for x in _parts(v))
        results = any(r in self.needed and r not in self.skeleton.tainted for r in op.results)
        block = _Block(1, True, op)
        if not fails and not results:
            return block
        block.index = len(self._blocks)
        self._blocks.append(block)
        count = _counted(block)
        if not fails and op.name == "load_scalar":
            return self._load(op, count)
        # the skeleton's own step, for what it computes and for the faults that computing raises
        parts = [(k, ev) for k, v in op.operands.items() if (ev := self.skeleton._operand(v)) is not None]
        setters = self.skeleton._results(op) if results else []

        def step(c: Any) -> None:
            vals = {name: ev(c) for name, ev in parts}
            count(c)
            for setter in setters:
                setter(c, vals)

        return step

    def _load(self, op: Op, count: Step) -> Step:
        """An integer that control reads: of its region only the last index matters to the oracle."""
        src = op.operands["src"]
        starts = [compile_sx(d.start) for d in src.dims if d.kind != "gather"]
        last = starts[-1] if starts else None
        extent = compile_sx(src.tensor.extents[-1]) if src.tensor.extents else None
        slot = next(r.slot for r in op.results if isinstance(r, ScalarVar))
        number = self.bound.tensors.index(src.tensor)

        def load(c: _Run) -> None:
            count(c)
            env = c.env
            env[slot] = c.oracle.value(last(env) if last else 0, extent(env) if extent else 1, number)

        return load

    def _role(self, s: RoleBlock, role: Role) -> _Block | Step | None:
        if s.role is not role:
            return None
        items = self._items(s.body, role)
        if s.instance is None:
            return _sequence(self._join(items)) if items else None
        slot, body = s.instance.slot, self._join(items)

        def block(c: _Run) -> None:
            c.env[slot] = c.env[-1]
            for step in body:
                step(c)

        return block

    def _for(self, s: For, role: Role) -> Step | None:
        first = len(self._blocks)
        body = self._join(self._items(s.body, role))
        if not body:
            return None
        last = len(self._blocks)
        size = len(body)
        start, stop, step_by, slot = compile_sx(s.start), compile_sx(s.stop), compile_sx(s.step), s.var.slot
        alike, span = self._alike(s.body, s.var), s.span

        def loop(c: _Run) -> None:
            env = c.env
            rounds = steps(start(env), stop(env), step_by(env), span)
            outer, done, ran = c.direct, 0, 0
            n = max(0, -((rounds.start - rounds.stop) // rounds.step))  # len() has an upper bound
            try:
                while done < n:
                    i = rounds[done]
                    env[slot] = i
                    c.direct = False
                    done += 1
                    ran += size
                    left, before = c.left, c.counts[first:last] if alike else ()
                    for step in body:
                        step(c)
                    c.left -= 1
                    if c.direct and i >= c.steps:
                        c.steps = i + 1
                    if c.left < 0:
                        raise SkeletonLimit
                    if alike and done < n:
                        more = min(n - done, c.left // (left - c.left))
                        for k, was in zip(range(first, last), before, strict=True):
                            c.counts[k] += (c.counts[k] - was) * more
                        c.left -= (left - c.left) * more
                        done += more
                        if c.direct and more and rounds[done - 1] >= c.steps:
                            c.steps = rounds[done - 1] + 1
            except SkeletonLimit as fault:
                fault.inside(span, done)
                raise
            finally:
                spend(ran // 8)
            c.direct = outer

        return loop

    def _while(self, s: While, role: Role) -> Step:
        prelude, body = self._join(self._items(s.prelude, role)), self._join(self._items(s.body, role))
        by_data, cond, span = self.skeleton._depends(s.cond), compile_sx(s.cond), s.span

        def loop(c: _Run) -> None:
            outer, rounds, at, known = c.direct, 0, 0, None
            try:
                while True:
                    c.direct = False
                    for step in prelude:
                        step(c)
                    if c.direct and at >= c.steps:  # the prelude belongs to the round before
                        c.steps = at + 1
                    if not (rounds < c.oracle.rounds if by_data else cond(c.env)):
                        break
                    if rounds >= SETTLED and not by_data:
                        if c.env == known:
                            raise Endless
                        known = c.env.copy()
                    at = rounds
                    c.direct = False
                    for step in body:
                        step(c)
                    if c.direct and at >= c.steps:
                        c.steps = at + 1
                    rounds += 1
                    c.left -= 1
                    if c.left < 0:
                        raise SkeletonLimit
            except SkeletonLimit as fault:
                fault.inside(span, rounds)
                raise
            finally:
                spend(rounds // 8)
            c.direct = outer

        return loop

    def _if(self, s: If, role: Role) -> Step | None:
        then, orelse = self._join(self._items(s.then, role)), self._join(self._items(s.orelse, role))
        if not then and not orelse:
            return None
        by_data, cond = self.skeleton._depends(s.cond), compile_sx(s.cond)

        def branch(c: _Run) -> None:
            for step in then if (c.oracle.rounds > 0 if by_data else cond(c.env)) else orelse:
                step(c)

        return branch

    def _warps(self, s: WarpsBlock, role: Role) -> Step:
        body = self._join(self._items(s.body, role))
        slot = s.warp.slot if s.warp else None

        def block(c: _Run) -> None:
            env = c.env
            for w in range(4):
                c.env = env.copy()
                if slot is not None:
                    c.env[slot] = w
                for step in body:
                    step(c)
            c.env = env

        return block


def _counted(block: _Block) -> Step:
    """The step of a block; its cost is read when it runs, since ops may still join it."""

    def count(c: _Run) -> None:
        c.counts[block.index] += 1
        if block.node:
            c.direct = True
        c.left -= block.cost
        if c.left < 0:
            raise SkeletonLimit

    return count


def _sequence(body: list[Step]) -> Step:
    def run(c: _Run) -> None:
        for step in body:
            step(c)

    return run


def _parts(value: Any) -> tuple[Any, ...]:
    """The scalar expressions of an operand that the skeleton evaluates."""
    if isinstance(value, _SX):
        return (value,)
    if isinstance(value, View):
        return tuple(x for x in (value.use, value.row0, value.col0, value.rank) if x is not None)
    if isinstance(value, BarUse):
        return tuple(x for x in (value.use, value.rank) if x is not None)
    if isinstance(value, Region):
        dims = (x for d in value.dims if d.kind != "gather" for x in (d.start, d.stop) if x is not None)
        return (*dims, *value.tensor.extents)
    if isinstance(value, tuple) and value and all(isinstance(v, _SX) for v in value):
        return value
    return ()


def _may_fail(x: Any) -> bool:
    """Whether an expression might have no value."""
    if not isinstance(x, SOp):
        return False
    if any(_may_fail(a) for a in x.args):
        return True
    if x.op in ("//", "%", "ceil_div"):
        return not (isinstance(x.args[1], SConst) and x.args[1].value)
    return x.op not in _SAFE


def rehearsal(bound: BoundKernel) -> Rehearsal:
    """The rehearsal of a kernel, compiled once per bound object."""
    return memo(bound, "rehearsal", lambda: Rehearsal(bound))
