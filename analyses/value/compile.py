"""Statements as closures: one projected program per role.

Every statement becomes (statement, is_generator, function of the agent). Generators yield blockers, or None where a
fine-grained schedule may switch agents (before every op that touches memory or barriers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from analyses.value import ops_copy, ops_global, ops_matrix, ops_registers, ops_sync
from analyses.value.barriers import WaitUntil
from analyses.value.carried import carried
from analyses.value.exprs import fit, scalar, vector
from analyses.value.faults import PoisonUse, ValueFault
from analyses.value.formats import poison
from analyses.value.machine import Agent, FragState, Machine
from cake_ir.bound import (
    Assume,
    BoundKernel,
    ElectedBlock,
    For,
    Fragment,
    If,
    Let,
    Op,
    Role,
    RoleBlock,
    SConst,
    SetScalar,
    SOp,
    SVar,
    VFrag,
    WarpsBlock,
    While,
    walk,
)
from cake_ir.events import SETTLED, Endless, steps

Item = tuple[Any, bool, Callable[[Agent], Any]]
SILENT = {"griddep_wait", "griddep_launch"}

HANDLERS: dict[str, Callable[["Compiler", Op], tuple[bool, Callable[[Agent], Any]]]] = {
    **ops_copy.HANDLERS,
    **ops_global.HANDLERS,
    **ops_matrix.HANDLERS,
    **ops_registers.HANDLERS,
    **ops_sync.HANDLERS,
}


class Compiler:
    """Compiles a bound kernel for a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.bound = machine, machine.bound
        self.fragments = fragments_of(self.bound)
        self.slots = {f: i for i, f in enumerate(self.fragments)}
        self.role: Role = self.bound.roles[0]
        self.programs = {}
        for role in self.bound.roles:
            self.role = role
            self.programs[role.name] = self.block(self.bound.body)

    def vx(self, x: Any) -> Callable[[Agent], Any]:
        """A tile expression, widened to its type."""
        f, shape = vector(x, self.slots), (x.type.rows, x.type.cols)
        return lambda ag: fit(f(ag), shape)

    def agent_gen(self, role: Role, agent: Agent) -> Iterator[Any]:
        """The coroutine of one role instance."""
        yield from run_items(self.programs[role.name], agent)

    def block(self, body: tuple[Any, ...]) -> list[Item]:
        """A block, projected to the current role."""
        out: list[Item] = []
        for s in body:
            item = self.statement(s)
            if item is not None:
                out.append(item)
        return out

    def statement(self, s: Any) -> Item | None:
        if isinstance(s, Op):
            return self._op(s)
        if isinstance(s, SetScalar):
            return self._set(s)
        if isinstance(s, Let):
            return (s, False, self._let(s))
        if isinstance(s, For):
            return self._for(s)
        if isinstance(s, While):
            return self._while(s)
        if isinstance(s, If):
            return self._if(s)
        if isinstance(s, RoleBlock):
            return self._role(s)
        if isinstance(s, ElectedBlock):
            return group(s, self.block(s.body))
        if isinstance(s, WarpsBlock):
            return self._warps(s)
        if isinstance(s, Assume):
            return (s, False, self._assume(s))
        raise ValueFault(
            "unsupported", f"statement {type(s).__name__} has no value semantics", getattr(s, "span", self.bound.span)
        )

    def _op(self, op: Op) -> Item | None:
        if op.name in SILENT:
            return None
        handler = HANDLERS.get(op.name)
        if handler is None:
            raise ValueFault("unsupported", f"op {op.name} has no value semantics", op.span)
        is_gen, f = handler(self, op)
        if self.machine.fine and not is_gen and (op.decl.accesses or op.decl.syncs):

            def switching(ag: Agent) -> Iterator[Any]:
                yield None
                ag.at = op
                f(ag)

            return (op, True, switching)
        if self.machine.fine and op.name == "wait":

            def late(ag: Agent) -> Iterator[Any]:
                yield None  # the barrier is looked at when the agent moves again: it may have gone on by two phases
                ag.at = op
                yield from f(ag)

            return (op, True, late)
        return (op, is_gen, f)

    def _set(self, s: SetScalar) -> Item:
        slot, value = s.var.slot, scalar(s.value)

        def run(ag: Agent) -> None:
            ag.env[slot] = value(ag.env)

        return (s, False, run)

    def _let(self, s: Let) -> Callable[[Agent], None]:
        slot, frag = self.slots[s.frag], s.frag
        shape = (frag.type.rows, frag.type.cols)
        if s.value is None:

            def fresh(ag: Agent) -> None:
                ag.write_frag(slot, frag, poison(frag.type.dtype, shape), np_ones(shape))

            return fresh
        value = self.vx(s.value)

        def assign(ag: Agent) -> None:
            data, undef = value(ag)
            ag.write_frag(slot, frag, data, undef)

        return assign

    def _for(self, s: For) -> Item | None:
        items = self.block(s.body)
        if not items:
            return None
        start, stop, step, slot = scalar(s.start), scalar(s.stop), scalar(s.step), s.var.slot

        def rounds(ag: Agent) -> range:
            try:
                return steps(start(ag.env), stop(ag.env), step(ag.env), s.span)
            except Endless as fault:
                raise ag.fault("endless", f"this loop never ends: {fault.why}") from fault

        if not any(g for _, g, _ in items):
            body = [(st, f) for st, _, f in items]

            def plain(ag: Agent) -> None:
                env = ag.env
                for i in rounds(ag):
                    env[slot] = i
                    for st, f in body:
                        ag.at = st
                        f(ag)

            return (s, False, plain)

        def loop(ag: Agent) -> Iterator[Any]:
            env = ag.env
            for i in rounds(ag):
                env[slot] = i
                for st, is_gen, f in items:
                    ag.at = st
                    if is_gen:
                        yield from f(ag)
                    else:
                        f(ag)

        return (s, True, loop)

    def _while(self, s: While) -> Item:
        prelude, body, cond = self.block(s.prelude), self.block(s.body), scalar(s.cond)
        decides, limit = carried(s), self.machine.rounds

        def loop(ag: Agent) -> Iterator[Any]:
            before = None
            for n in range(limit):
                yield from run_items(prelude, ag)
                ag.at = s
                if not cond(ag.env):
                    return
                if n >= SETTLED and not decides.memory:
                    now = self.state(ag, decides.names)
                    if now == before:
                        raise ag.fault("endless", "the rounds of this while repeat, with its condition still true")
                    before = now
                self.machine.entered.add(s.span)
                yield from run_items(body, ag)
            ag.at = s
            raise ag.fault("deadlock", f"while has not ended after {limit} rounds")

        return (s, True, loop)

    def state(self, ag: Agent, names: tuple[Any, ...]) -> list[Any]:
        """The values of scalars and fragments, comparable bit by bit."""
        held = [ag.frags[self.slots[v]] for v in names if isinstance(v, Fragment)]
        return [repr(ag.env[v.slot]) for v in names if not isinstance(v, Fragment)] + [
            part.tobytes() for f in held for part in (f.data, np.asarray(f.undef))
        ]

    def _if(self, s: If) -> Item | None:
        then, orelse, cond = self.block(s.then), self.block(s.orelse), scalar(s.cond)
        if not then and not orelse:
            return None
        if not any(g for _, g, _ in then + orelse):

            def plain(ag: Agent) -> None:
                for st, _, f in then if cond(ag.env) else orelse:
                    ag.at = st
                    f(ag)

            return (s, False, plain)

        def branch(ag: Agent) -> Iterator[Any]:
            yield from run_items(then if cond(ag.env) else orelse, ag)

        return (s, True, branch)

    def _role(self, s: RoleBlock) -> Item | None:
        if s.role is not self.role:
            return None
        items = self.block(s.body)
        if not items:
            return None
        if s.instance is not None:
            slot = s.instance.slot

            def number(ag: Agent) -> None:
                ag.env[slot] = ag.index

            items = [(s, False, number), *items]
        return group(s, items)

    def _warps(self, s: WarpsBlock) -> Item | None:
        items = self.block(s.body)
        if not items:
            return None
        mine = [self.slots[f] for f in _written(s.body)]
        slot = None if s.warp is None else s.warp.slot
        machine, fragments = self.machine, self.fragments

        def fork(ag: Agent) -> Iterator[Any]:
            children = []
            for w in range(4):
                frags = list(ag.frags)
                for i in mine:
                    frags[i] = FragState(fragments[i])
                child = Agent(machine, ag.cta, ag.role, ag.index, list(ag.env), frags, parent=ag, warp=w)
                if slot is not None:
                    child.env[slot] = w
                child.at, child.epoch, child.dirty, child.warp_epoch = s, ag.epoch, ag.dirty, ag.warp_epochs[w]
                child.open_bulk, child.bulk = ag.warp_bulk[w]
                machine.spawn(child, run_items(items, child))  # type: ignore[arg-type]
                children.append(child)
            yield WaitUntil(lambda: all(c.done for c in children), "its warps")
            for c in children:
                ag.unfenced += c.unfenced
                ag.fenced += c.fenced
                ag.dirty |= c.wrote
                ag.warp_epochs[c.warp] = c.warp_epoch

        return (s, True, fork)

    def _assume(self, s: Assume) -> Callable[[Agent], None]:
        if isinstance(s.cond, (SConst, SVar, SOp)):
            cond = scalar(s.cond)

            def check(ag: Agent) -> None:
                if not cond(ag.env):
                    raise ag.fault("assume", "an assumed fact does not hold for this data")

            return check
        value = self.vx(s.cond)

        def check_all(ag: Agent) -> None:
            data, undef = value(ag)
            if undef is not None and undef.any():
                raise PoisonUse
            if not data.all():
                raise ag.fault("assume", "an assumed fact does not hold for every element of this data")

        return check_all


def np_ones(shape: tuple[int, int]) -> Any:
    """A mask of undefined elements."""
    return np.ones(shape, bool)


def run_items(items: list[Item], ag: Agent) -> Iterator[Any]:
    """Runs a block."""
    for st, is_gen, f in items:
        ag.at = st
        if is_gen:
            yield from f(ag)
        else:
            f(ag)


def group(s: Any, items: list[Item]) -> Item | None:
    """A block as one item."""
    if not items:
        return None
    if not any(g for _, g, _ in items):

        def plain(ag: Agent) -> None:
            for st, _, f in items:
                ag.at = st
                f(ag)

        return (s, False, plain)
    return (s, True, lambda ag: run_items(items, ag))


def _written(body: tuple[Any, ...]) -> list[Fragment]:
    """Fragments first written inside a block (results and Lets): private to each warp."""
    out: dict[Fragment, None] = {}
    for s in walk(body):
        if isinstance(s, Let):
            out[s.frag] = None
        elif isinstance(s, Op):
            for r in s.results:
                if isinstance(r, Fragment):
                    out[r] = None
    return list(out)


def fragments_of(bound: BoundKernel) -> list[Fragment]:
    """Every fragment that a kernel names, in text order."""
    out: dict[Fragment, None] = {}
    for s in walk(bound.body):
        if isinstance(s, Let):
            out[s.frag] = None
        elif isinstance(s, Op):
            for r in s.results:
                if isinstance(r, Fragment):
                    out[r] = None
            acc = s.operands.get("acc")
            if isinstance(acc, VFrag):
                out[acc.frag] = None
    return list(out)
