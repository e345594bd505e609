"""Which scalars follow from loaded data, and which loops run alike for every tile: read off the text, once per kernel."""

from __future__ import annotations

from typing import Any

from cake_ir.bound import BoundKernel, For, If, Op, ScalarVar, SConst, SetScalar, SOp, SVar, While, sx_vars

_SX = (SConst, SVar, SOp)
PLACES = ("cta", "cluster_id")


class Sources:
    """roots: for each scalar the loaded scalars it follows from, also by way of loop bounds. free: sites of ops whose
    execution depends on data, on the tile, or on a counter (a `while`, an `if`)."""

    def __init__(self, bound: BoundKernel) -> None:
        self.loaded: set[ScalarVar] = set()
        self.parents: dict[ScalarVar, set[ScalarVar]] = {}
        self.counters: set[ScalarVar] = set()
        self.guards: dict[int, frozenset[ScalarVar]] = {}
        self.in_while: set[int] = set()
        self._visit(bound.body, frozenset(), False)
        self.reach: dict[ScalarVar, frozenset[ScalarVar]] = {}

    def _visit(self, body: tuple[Any, ...], guards: frozenset[ScalarVar], looped: bool) -> None:
        for s in body:
            if isinstance(s, Op):
                self.loaded.update(r for r in s.results if isinstance(r, ScalarVar))
                if guards:
                    self.guards[s.site] = guards
                if looped:
                    self.in_while.add(s.site)
            elif isinstance(s, SetScalar):
                read = sx_vars(s.value)
                if s.var in read or looped:
                    self.counters.add(s.var)
                self.parents.setdefault(s.var, set()).update(read, guards)
            elif isinstance(s, For):
                self.parents.setdefault(s.var, set()).update(sx_vars(s.start), sx_vars(s.stop), sx_vars(s.step))
                self._visit(s.body, guards, looped)
            elif isinstance(s, While):
                self._visit(s.prelude, guards, True)
                self._visit(s.body, guards, True)
            elif isinstance(s, If):
                inner = guards | (sx_vars(s.cond) if isinstance(s.cond, _SX) else set())
                self._visit(s.then, inner, looped)
                self._visit(s.orelse, inner, looped)
            else:
                self._visit(getattr(s, "body", ()), guards, looped)

    def reached(self, var: ScalarVar) -> frozenset[ScalarVar]:
        """A scalar and all that it follows from."""
        found = self.reach.get(var)
        if found is None:
            seen, todo = {var}, [var]
            while todo:
                for p in self.parents.get(todo.pop(), ()):
                    if p not in seen:
                        seen.add(p)
                        todo.append(p)
            found = self.reach[var] = frozenset(seen)
        return found

    def behind(self, variables: set[ScalarVar] | frozenset[ScalarVar]) -> frozenset[ScalarVar]:
        """All that an expression over these scalars follows from."""
        return frozenset().union(*(self.reached(v) for v in variables)) if variables else frozenset()

    def roots(self, x: Any) -> frozenset[ScalarVar]:
        """The loaded scalars behind an expression."""
        return self.behind(sx_vars(x)) & self.loaded

    def uniform(self, variables: set[ScalarVar] | frozenset[ScalarVar]) -> bool:
        """Whether the scalars take the same values for every tile and all data."""
        return not any(v in self.loaded or v in self.counters or v.kind in PLACES for v in self.behind(variables))

    def swept(self, x: Any, site: int) -> bool:
        """Whether an op's coordinate runs alike in all tiles."""
        return (
            site not in self.in_while and self.uniform(sx_vars(x)) and self.uniform(self.guards.get(site, frozenset()))
        )
