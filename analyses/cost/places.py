"""Where CTAs read and write global memory: a kernel's control flow with inner loops at their start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cake_ir import bound as B
from cake_ir.arithmetic import compile_sx
from cake_ir.memo import memo

Sets = dict[int, set[tuple[Any, ...]]]
"""Distinct places by site of an op."""
Go = Callable[["Places", list[Any]], None]


class Places:
    """What the CTAs of one launch ask for, wave by wave. tensor: id of the tensor by site; visits: by site, how often a CTA comes there
    with other rows or tiles (of the sites that were seen so far)."""

    def __init__(self, bound: B.BoundKernel, env: list[Any]) -> None:
        self.bound, self.env = bound, env
        flow = memo(bound, "cost places", lambda: _Flow(bound))
        self.tensor, self._body, self._persistent = flow.tensor, flow.body, bool(flow.persistent)
        self.visits: dict[int, int] = {}
        self.trips, self.number = 1, 0
        self.found: Sets = {}

    def waves(self, ctas: int, slots: int) -> int:
        """How often a CTA slot is used, or a persistent CTA takes a tile. After the first wave."""
        if self._persistent:
            return max(self.visits.values(), default=1)
        return max(1, -(-ctas // slots))

    def wave(self, ctas: Sequence[int], slots: int, number: int) -> Sets:
        """Distinct places by site of some CTAs of a wave, by their number in the first."""
        self.found, self.number = {}, number
        for i in ctas:
            env = at_cta(self.bound, self.env, i if self._persistent else i + number * slots)
            for go in self._body:
                go(self, env)
        return self.found


def at_cta(bound: B.BoundKernel, env: list[Any], cta: int) -> list[Any]:
    """The scalars of a launch as a CTA has them."""
    names, cluster = bound.builtins, bound.launch.cluster
    out = list(env)
    out[names["cta"].slot], out[names["cluster_rank"].slot], out[names["cluster_id"].slot] = cta, cta % cluster, cta // cluster
    return out


class _Flow:
    """The part of a kernel that decides places, compiled: the rest of a program is not looked at once per CTA."""

    def __init__(self, bound: B.BoundKernel) -> None:
        self.persistent = {id(s) for s in B.walk(bound.body) if isinstance(s, B.For) and B.persistent(bound, s)}
        self.tensor: dict[int, int] = {}
        self.body = self._block(bound.body)[0]

    def _block(self, body: tuple[B.Stmt, ...]) -> tuple[tuple[Go, ...], bool]:
        """(compiled statements, whether there is more than assignments)."""
        out: list[Go] = []
        more = False
        for s in body:
            if isinstance(s, B.SetScalar):
                out.append(_assign(s))
            elif isinstance(s, B.If):
                (then, _), (orelse, _) = self._block(s.then), self._block(s.orelse)
                if then or orelse:
                    out.append(_branch(_number(s.cond), then, orelse))
                    more = True
            elif isinstance(s, (B.For, B.RoleBlock, B.ElectedBlock, B.WarpsBlock, B.While)):
                within, places = self._block(s.body)
                if places:
                    out.extend([self._for(s, within)] if isinstance(s, B.For) else within)
                    more = True
            elif isinstance(s, B.Op):
                region = region_of(s)
                if region is not None and not _alone(s, region):
                    self.tensor[s.site] = id(region.tensor)
                    out.append(_place(s.site, region))
                    more = True
        return tuple(out), more

    def _for(self, s: B.For, within: tuple[Go, ...]) -> Go:
        start, slot = _number(s.start), s.var.slot

        def first(walk: Places, env: list[Any]) -> None:
            env[slot] = start(env)
            for go in within:
                go(walk, env)

        if id(s) not in self.persistent:
            return first
        stop, by = _number(s.stop), _number(s.step)

        def turn(walk: Places, env: list[Any]) -> None:
            at, step, end, outer = start(env), max(1, by(env)), stop(env), walk.trips
            walk.trips = max(1, -(-(end - at) // step))
            at += walk.number * step
            if at < end:
                env[slot] = at
                for go in within:
                    go(walk, env)
            walk.trips = outer

        return turn


def region_of(op: B.Op) -> B.Region | None:
    """The global region of an op, if it has one."""
    return next((x for x in op.operands.values() if isinstance(x, B.Region)), None)


def _alone(op: B.Op, region: B.Region) -> bool:
    """Whether no two CTAs share the traffic: every atomic is done for itself, and data decide where a gathered row lies."""
    return op.name.startswith("atomic_") or any(d.kind == "gather" for d in region.dims)


def _number(x: B.SX) -> Callable[[list[Any]], Any]:
    """A uniform expression; what data would decide is 0."""
    f = compile_sx(x)
    if isinstance(x, (B.SConst, B.SVar)):
        return f

    def number(env: list[Any]) -> Any:
        try:
            return f(env)
        except (TypeError, ZeroDivisionError, OverflowError):
            return 0

    return number


def _assign(s: B.SetScalar) -> Go:
    slot, value = s.var.slot, _number(s.value)

    def assign(walk: Places, env: list[Any]) -> None:
        env[slot] = value(env)

    return assign


def _branch(cond: Callable[[list[Any]], Any], then: tuple[Go, ...], orelse: tuple[Go, ...]) -> Go:
    def branch(walk: Places, env: list[Any]) -> None:
        for go in then if cond(env) else orelse:
            go(walk, env)

    return branch


def _place(site: int, region: B.Region) -> Go:
    starts = [_number(d.start) for d in region.dims]

    def add(walk: Places, env: list[Any], place: tuple[Any, ...]) -> None:
        found = walk.found.get(site)
        if found is None:
            walk.found[site] = {place}
            walk.visits.setdefault(site, walk.trips)
        else:
            found.add(place)

    if len(starts) == 2:
        rows, cols = starts
        return lambda walk, env: add(walk, env, (rows(env), cols(env)))
    return lambda walk, env: add(walk, env, tuple([x(env) for x in starts]))
